/** Imports checkpoints: a zip that was downloaded here, or a folder of the native program. */

import type { FileEntry } from "../api/index";
import { RECIPE, forgetRun, saveCheckpoint, saveRunRecipe, type Saved } from "../storage/checkpoints";
import { alertUser, announce, words } from "./alert";
import { isFinished } from "./buttons";
import { byId } from "./dom";
import { confirmed } from "./question";
import { runSetup } from "./setup";
import { checkpoint, phase, recipe, result, runRecipe } from "./state";
import { unzip } from "./zip";

const STATE = "trainer_state.json";

/** The latest checkpoint among the files of a checkpoint folder or an output folder. */
function latest(files: FileEntry[], name: string): Saved {
  const states = files.filter((file) => file.path === STATE || file.path.endsWith(`/${STATE}`));
  const found = states.map((file) => {
    const folder = file.path.slice(0, -STATE.length);
    let state: { step?: unknown; steps?: unknown };
    try {
      state = JSON.parse(new TextDecoder().decode(file.bytes)) as typeof state;
    } catch {
      throw new Error(`${name}: ${file.path} is damaged (not valid JSON); pick another checkpoint`);
    }
    if (typeof state.step !== "number") throw new Error(`${name}: ${file.path} has no step number; pick another checkpoint`);
    const own = files.filter((one) => one.path.startsWith(folder) && !one.path.slice(folder.length).includes("/"));
    const path = (one: FileEntry) => `checkpoint-${state.step}/${one.path.slice(folder.length)}`;
    const steps = typeof state.steps === "number" ? state.steps : null;
    return { step: state.step, steps, files: own.map((one) => ({ path: path(one), bytes: one.bytes })) };
  });
  const [last] = found.sort((a, b) => b.step - a.step);
  if (!last) {
    const names = files.slice(0, 5).map((file) => file.path).join(", ");
    throw new Error(`${name} is not a checkpoint: it has no ${STATE}, only ${names || "no files"}; pick a checkpoint-… folder, or a zip of one`);
  }
  return last;
}

/** Starts the two pickers. `imported` is called after a checkpoint was imported, `changed` after its recipe replaced the current one. */
export function importSection(imported: () => void, changed: () => void): void {
  const take = async (name: string, files: FileEntry[]) => {
    const found = latest(files, name);
    const before = checkpoint.get();
    const question = `Continue from ${name}? This deletes the unfinished run, trained up to step ${before?.step}.`;
    if (before && !isFinished() && !(await confirmed(question, "Delete the run"))) return;
    const file = files.find((one) => one.path.endsWith(RECIPE));
    const text = file ? new TextDecoder().decode(file.bytes) : null;
    await forgetRun();
    // Save before showing, so that a reload shows the same.
    await saveCheckpoint(found.step, found.files);
    if (text !== null) await saveRunRecipe(text);
    result.set(null);
    runSetup.set(null); // nobody knows its samples
    checkpoint.set(found);
    imported();
    runRecipe.set(text);
    if (text !== null) {
      recipe.set(text);
      changed();
    }
    announce(`Imported the checkpoint of step ${found.step}${text === null ? "" : " and its recipe"}.`);
  };

  const zipPicker = byId<HTMLInputElement>("import-zip");
  const folderPicker = byId<HTMLInputElement>("import-folder");
  const pick = async (picker: HTMLInputElement, read: (files: File[]) => Promise<FileEntry[]>) => {
    const files = [...(picker.files ?? [])];
    const [first] = files;
    if (!first) return;
    const name = picker === folderPicker ? (first.webkitRelativePath.split("/")[0] ?? first.name) : first.name;
    try {
      await take(name, await read(files));
    } catch (error) {
      alertUser(words(error));
    }
    picker.value = ""; // allows picking the same file again
  };
  zipPicker.addEventListener("change", () => void pick(zipPicker, ([file]) => unzip(file!)));
  folderPicker.addEventListener("change", () => {
    const read = async (file: File) => ({ path: file.webkitRelativePath, bytes: new Uint8Array(await file.arrayBuffer()) });
    void pick(folderPicker, (files) => Promise.all(files.map(read)));
  });
  phase.watch((now) => {
    for (const picker of [zipPicker, folderPicker]) picker.disabled = now !== "idle";
  });
}
