/** What to keep of a run: the model for other programs, the report, the checkpoint, the recipe, and a link. */

import { DeviceLost, type FileEntry, type Format } from "../api/index";
import { isNative } from "../api/engine";
import { RECIPE, REPORT } from "../storage/checkpoints";
import { alertUser, announce, words } from "./alert";
import { reopenDevice } from "./device";
import { button, byId, el } from "./dom";
import { nativeKeep } from "./native-keep";
import { otherBase } from "./place";
import { copyLink } from "./share";
import { adapter, base, checkpoint, phase, recipe, result, runRecipe, trainer } from "./state";
import { download, zip } from "./zip";

const PEFT = ["adapter_model.safetensors", "adapter_config.json"];

const baseName = (path: string) => path.slice(path.lastIndexOf("/") + 1);

const isReport = (file: FileEntry) => baseName(file.path) === REPORT;

/** The PEFT files of a checkpoint. */
export const peftFiles = (files: FileEntry[]): FileEntry[] =>
  files.filter((file) => PEFT.includes(baseName(file.path))).map((file) => ({ path: `adapter/${baseName(file.path)}`, bytes: file.bytes }));

/** Downloads one file as it is, several files as a zip. */
function offer(name: string, files: FileEntry[]): void {
  const [only] = files;
  if (files.length === 1 && only) download(baseName(only.path), only.bytes as Uint8Array<ArrayBuffer>);
  else download(`${name}.zip`, zip(files));
}

/** Starts the section. */
export function keepSection(): void {
  let converting = false;
  const convert = async (to: Format, name: string, started: HTMLButtonElement) => {
    const [saved, device, model] = [adapter(), trainer.get(), base.get()];
    if (!saved || !device || !model) return;
    const label = started.textContent;
    started.textContent = "Preparing …";
    converting = true;
    show();
    announce(`Converting to ${to} …`);
    try {
      offer(name, await device.export({ base: model, adapter: peftFiles(saved.files), to }));
      announce(`Downloaded ${to}.`);
    } catch (error) {
      if (error instanceof DeviceLost) await reopenDevice();
      alertUser(words(error));
    } finally {
      started.textContent = label;
      converting = false;
      show();
    }
  };
  const converted = (text: string, to: Format, name: string) => {
    const one: HTMLButtonElement = button(text, () => void convert(to, name, one));
    return one;
  };
  const merged = converted("Merged GGUF", "gguf-merged", "merged");
  const formats = [merged, converted("GGUF LoRA", "gguf-lora", "adapter"), converted("MLX", "mlx", "adapter-mlx")];
  const peft = button("PEFT", () => offer(`adapter-${adapter()!.step}`, peftFiles(adapter()!.files)));
  const report = button("Report", () => {
    const file = result.get()!.files.find(isReport)!;
    download(REPORT, file.bytes as Uint8Array<ArrayBuffer>);
  });
  const state = button("Checkpoint", () => {
    const saved = checkpoint.get()!;
    const text = runRecipe.get();
    const files = [...saved.files, ...(text === null ? [] : [{ path: RECIPE, bytes: new TextEncoder().encode(text) }])];
    offer(`checkpoint-${saved.step}`, files);
  });
  const text = button("Recipe", () => download("recipe.toml", recipe.get()));
  const link = button("Copy link", () => void copyLink());
  const group = (title: string, note: string, ...buttons: HTMLButtonElement[]) =>
    el("div", { class: "keep" }, el("div", {}, el("h3", {}, title), el("p", { class: "note" }, note)), el("div", { class: "controls" }, ...buttons));
  byId("downloads").tabIndex = -1;
  byId("downloads").append(
    // The program writes it to its disk: it may be larger than a page's memory.
    ...(isNative() ? [] : [group("A model of its own", "For Ollama: unpack, then ollama create mine -f Modelfile. LM Studio and llama.cpp open merged.gguf.", merged)]),
    group("The adapter", "PEFT for transformers and vLLM, GGUF for llama.cpp, MLX for mlx-lm.", peft, ...formats.slice(1)),
    group("The run", "The report to read and send on, the checkpoint to train on from, here or on the command line.", report, state, text),
    ...(isNative() ? [] : [group("Share", "A link with this recipe and these samples. They are in the link itself; nothing is uploaded.", link)]),
  );
  // The program has the moments of the optimizer in the run's folder.
  state.hidden = isNative();
  nativeKeep(peftFiles);

  const show = () => {
    const saved = adapter();
    const busy = converting || phase.get() !== "idle"; // the run uses the GPU
    peft.disabled = saved === null;
    for (const one of formats) one.disabled = saved === null || busy || trainer.get() === null || base.get() === null;
    report.disabled = !result.get()?.files.some(isReport);
    state.disabled = checkpoint.get() === null;
    byId("keep-note").textContent = saved ? `The adapter of step ${saved.step}.${otherBase()}` : "After training, everything can be downloaded here.";
  };
  for (const cell of [phase, trainer, base, checkpoint, result, recipe, runRecipe]) cell.watch(show);
}
