/** The section for picking the samples. */

import type { Data } from "../api/index";
import { loadSamples, saveSamples, type Session } from "../storage/session";
import { alertUser, words } from "./alert";
import { byId, choice, el } from "./dom";
import { bytes } from "./format";
import { data, recipe } from "./state";
import { TASKS, samples } from "./tasks";
import { getValue, quote, quoteList, setValue } from "./toml";

type Kind = Session["data"]["kind"];

/** Name of pasted samples in the recipe. */
const PASTED = "pasted.jsonl";

/** The samples for the session storage. Files are stored separately. */
export let dataSession: Session["data"] = { kind: "task", task: "chat" };

/** Starts the section. `changed` is called when the user picks samples. */
export function dataSection(changed: () => void) {
  const select = byId<HTMLSelectElement>("data-task");
  const files = byId<HTMLInputElement>("data-files");
  const pasted = byId<HTMLTextAreaElement>("data-pasted");
  for (const [name, task] of Object.entries(TASKS)) select.append(el("option", { value: name }, task.title));

  /** Uses these samples and sets their names in the recipe. */
  const use = (picked: Data) => {
    const names = picked.map((file) => file.name);
    const value = names.length === 1 ? quote(names[0]!) : quoteList(names);
    if (names.length > 0 && getValue(recipe.get(), "data", "train") !== value) {
      recipe.set(setValue(recipe.get(), "data", "train", value));
    }
    data.set(picked);
    changed();
  };

  const useTask = async (name: string, withRecipe: boolean) => {
    const task = TASKS[name] ?? TASKS["chat"]!;
    dataSession = { kind: "task", task: name };
    try {
      const file = await samples(task);
      if (withRecipe) recipe.set(task.recipe);
      use([{ name: task.file, file }]);
    } catch (error) {
      alertUser(words(error));
    }
  };

  const useFiles = async () => {
    dataSession = { kind: "files" };
    const picked = [...(files.files ?? [])].map((file) => ({ name: file.name, file }));
    if (picked.length === 0) return use(await loadSamples()); // the files of the last visit
    use(picked);
    try {
      await saveSamples(picked);
    } catch (error) {
      alertUser(`The samples are used, but they could not be saved; pick them again after a reload: ${words(error)}.`);
    }
  };

  const usePasted = () => {
    dataSession = { kind: "pasted", text: pasted.value };
    use(pasted.value.trim() ? [{ name: PASTED, file: new Blob([pasted.value]) }] : []);
  };

  const kinds = choice<Kind>(byId("data"), "data", (kind) => {
    if (kind === "task") void useTask(select.value, true);
    else if (kind === "files") void useFiles();
    else usePasted();
  });
  select.addEventListener("change", () => void useTask(select.value, true));
  files.addEventListener("change", () => void useFiles());
  let typing = 0;
  pasted.addEventListener("input", () => {
    clearTimeout(typing);
    typing = window.setTimeout(usePasted, 400);
  });

  data.watch((picked) => {
    const items = picked.map(({ name, file }) => el("li", {}, `${name}, ${bytes(file.size)}`));
    byId("data-list").replaceChildren(...items);
  });

  return {
    /** Restores the samples of a session. Does not change the recipe. */
    async restore(session: Session["data"]) {
      dataSession = session;
      kinds.pick(session.kind);
      if (session.kind === "task") {
        select.value = session.task;
        await useTask(session.task, false);
      } else if (session.kind === "pasted") {
        pasted.value = session.text;
        usePasted();
      } else {
        await useFiles();
      }
    },
    /** The samples for a first visit. */
    begin: () => useTask("chat", true),
  };
}
