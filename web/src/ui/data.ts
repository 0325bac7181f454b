/** The section for picking the samples. */

import type { Data, Samples } from "../api/index";
import { loadSamples, saveSamples, type Session } from "../storage/session";
import { alertUser, words } from "./alert";
import { adopt, isAutomatic, setName, takeAsMade } from "./automatic";
import { byId, choice, el } from "./dom";
import { bytes } from "./format";
import { base, data, recipe, table } from "./state";
import { TASKS, samples } from "./tasks";
import { samplesTable } from "./samples";
import { getValue, quote, quoteList, setValue } from "./toml";

type Kind = Session["data"]["kind"];

/** Largest file of samples: they are read as a whole, and the worker holds them more than once. */
const MOST_BYTES = 512 * 2 ** 20;

/** Name of pasted samples in the recipe: its ending says how the program reads them. */
function pastedName(text: string): string {
  const heading = text.trimStart().split("\n", 1)[0]!;
  if (/^[[{]/.test(heading)) return "pasted.jsonl";
  if (heading.includes("\t")) return "pasted.tsv";
  return /^[\w" -]+(,[\w" -]+)+\r?$/.test(heading) ? "pasted.csv" : "pasted.txt";
}

/** The samples for the session storage. Files are stored separately. */
export let dataSession: Session["data"] = { kind: "task", task: "chat" };

/** Uses pasted text that was typed just now. */
export let useTyped = (): void => {};

/** The recipe of the chosen example. It is for the tiny base; other bases and samples get the proposal. */
const exampleRecipe = () => (dataSession.kind === "task" && base.get()?.kind === "tiny" ? TASKS[dataSession.task]?.recipe : undefined);

/** Starts the section. `changed` is called when the user picks samples. */
export function dataSection(changed: () => void) {
  const select = byId<HTMLSelectElement>("data-task");
  const files = byId<HTMLInputElement>("data-files");
  const pasted = byId<HTMLTextAreaElement>("data-pasted");
  for (const [name, task] of Object.entries(TASKS)) select.append(el("option", { value: name }, task.title));

  /** Uses these samples and sets their names in the recipe. */
  const use = (picked: Data) => {
    const large = picked.find(({ file }) => file.size > MOST_BYTES);
    if (large) {
      alertUser(`${large.name} has ${bytes(large.file.size)}, but a browser reads samples of up to ${bytes(MOST_BYTES)}; take a part of it, or train with the program.`);
      return;
    }
    const names = picked.map((file) => file.name);
    if (names.length > 0) setName("data", "train", names.length === 1 ? quote(names[0]!) : quoteList(names));
    data.set(picked);
    changed();
  };

  /** Replaces the recipe by the example's, for the picked base. The user's own changes can be taken back. */
  const useRecipe = (text: string) => {
    const before = recipe.get();
    const edited = before !== "" && !isAutomatic();
    const model = getValue(before, "model", "base");
    adopt(model === null ? text : setValue(text, "model", "base", model));
    if (!edited) return;
    const undo = () => {
      recipe.set(before);
      changed();
    };
    alertUser("The recipe of this task has replaced the one that you changed.", { text: "Use mine again", act: undo });
  };

  const useTask = async (name: string, withRecipe: boolean) => {
    const task = TASKS[name] ?? TASKS["chat"]!;
    dataSession = { kind: "task", task: name };
    try {
      const file = await samples(task);
      if (withRecipe) useRecipe(task.recipe);
      use([{ name: task.file, file }]);
    } catch (error) {
      alertUser(words(error));
    }
  };

  const useFiles = async (given?: File[]) => {
    dataSession = { kind: "files" };
    const picked = (given ?? [...(files.files ?? [])]).map((file) => ({ name: file.name, file }));
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
    use(pasted.value.trim() ? [{ name: pastedName(pasted.value), file: new Blob([pasted.value]) }] : []);
  };

  /** The example whose recipe was used last. */
  let last = "";
  const pickTask = () => {
    const other = select.value !== last || isAutomatic();
    last = select.value;
    void useTask(select.value, other);
  };
  const kinds = choice<Kind>(byId("data"), "data", (kind) => {
    if (kind === "task") pickTask();
    else if (kind === "files") void useFiles();
    else usePasted();
  });
  select.addEventListener("change", pickTask);
  files.addEventListener("change", () => void useFiles());
  let typing = 0;
  const typed = () => {
    typing = 0;
    usePasted();
  };
  pasted.addEventListener("input", () => {
    clearTimeout(typing);
    typing = window.setTimeout(typed, 400);
  });
  useTyped = () => {
    if (typing === 0) return;
    clearTimeout(typing);
    typed();
  };

  // A file that is dropped would otherwise replace the page.
  const section = byId("data");
  addEventListener("dragover", (event) => {
    event.preventDefault();
    section.classList.add("target");
  });
  addEventListener("dragleave", () => section.classList.remove("target"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    section.classList.remove("target");
    const dropped = [...(event.dataTransfer?.files ?? [])];
    if (dropped.length === 0 || files.disabled) return;
    files.value = "";
    kinds.pick("files");
    void useFiles(dropped);
  });

  data.watch((picked) => {
    const items = picked.map(({ name, file }) => el("li", {}, `${name}, ${bytes(file.size)}`));
    byId("data-list").replaceChildren(...items);
  });

  const fit = (found: Samples) => {
    adopt(found.recipe);
    changed();
  };
  samplesTable(fit);
  table.watch((found) => {
    if (!found || found instanceof Error || !isAutomatic() || exampleRecipe()) return;
    if (recipe.get() !== found.recipe) fit(found);
  });

  return {
    /** Restores the samples of a session. Does not change the recipe. */
    async restore(session: Session["data"]) {
      dataSession = session;
      kinds.pick(session.kind);
      if (session.kind === "task") {
        select.value = last = session.task;
        await useTask(session.task, false);
      } else if (session.kind === "pasted") {
        pasted.value = session.text;
        usePasted();
      } else {
        await useFiles();
      }
    },
    /** The samples for a first visit. */
    async begin() {
      takeAsMade();
      last = "chat";
      await useTask("chat", true);
    },
    /** Uses samples of a link. */
    usePastedText(text: string) {
      kinds.pick("pasted");
      pasted.value = text;
      usePasted();
    },
  };
}
