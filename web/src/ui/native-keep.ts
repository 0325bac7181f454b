/** What the program behind the page can keep on its machine: a merged model as a file, and in Ollama. */

import type { FileEntry, Native } from "../api/index";
import { alertUser, announce, words } from "./alert";
import { button, byId, el } from "./dom";
import { adapter, base, checkpoint, phase, result, trainer } from "./state";

/** Adds the group once the program is known. `files` gives the PEFT files of an adapter. */
export function nativeKeep(files: (files: FileEntry[]) => FileEntry[]): void {
  let there = false;
  trainer.watch((opened) => {
    if (!opened?.native || there) return;
    there = true;
    byId("downloads").prepend(group(opened.native, files));
  });
}

function group(native: Native, files: (files: FileEntry[]) => FileEntry[]): HTMLElement {
  const name = el("input", { id: "merge-name", type: "text", value: "mine", spellcheck: "false", autocomplete: "off" });
  const done = el("p", { class: "note", id: "merge-done" });
  const merge = async (ollama: boolean, started: HTMLButtonElement) => {
    const [saved, model] = [adapter(), base.get()];
    if (!saved || !model) return;
    const label = started.textContent;
    started.textContent = "Merging …";
    for (const one of buttons) one.disabled = true;
    try {
      const { path } = await native.merge({ base: model, adapter: files(saved.files), name: name.value.trim(), ollama });
      const [mine, folder] = [name.value.trim(), path.replace(/[^\\/]*$/, "")];
      const next = ollama ? `Talk to it with: ollama run ${mine}` : `For Ollama: ollama create ${mine} -f "${folder}Modelfile"`;
      done.textContent = `Written: ${path}, and its Modelfile. ${next}`;
      announce(done.textContent);
    } catch (error) {
      alertUser(words(error));
    } finally {
      started.textContent = label;
      show();
    }
  };
  const file: HTMLButtonElement = button("Merge into a file", () => void merge(false, file));
  const model: HTMLButtonElement = button("Create in Ollama", () => void merge(true, model));
  const buttons = native.ollama ? [model, file] : [file];
  const show = () => {
    for (const one of buttons) one.disabled = adapter() === null || phase.get() !== "idle" || base.get() === null;
  };
  for (const cell of [phase, base, checkpoint, result]) cell.watch(show);
  const note = `The base with the adapter in it, as a GGUF file in ${native.folder}${native.ollama ? ", and as a model of Ollama" : ""}. Runs, with their reports and checkpoints, are in ${native.folder} too.`;
  const box = el("div", { class: "fields" }, el("div", {}, el("label", { for: "merge-name" }, "Name of the model"), name));
  return el("div", { class: "keep" }, el("div", {}, el("h3", {}, "On this machine"), el("p", { class: "note" }, note), box, done), el("div", { class: "controls" }, ...buttons));
}
