/** Where runs and settings are kept, in words. */

import { isNative } from "../api/engine";
import { byId } from "./dom";
import { isInMemory } from "../storage/memory";
import { adapter, recipe, runRecipe, trainer } from "./state";
import { getValue } from "./toml";

/** The place of a run, as the end of a sentence: `saved in this browser`. */
export function place(): string {
  if (isNative()) return `in ${trainer.get()?.native?.folder ?? "the program's folder"}`;
  return isInMemory() ? "in this tab only" : "in this browser";
}

/** The base that a recipe names, without its folders. */
const baseOf = (text: string | null) => (text === null ? "" : (getValue(text, "model", "base") ?? "").replaceAll('"', "").replace(/^.*[\\/]/, ""));

/** A warning that the adapter was trained on another base than the picked one; empty if not. */
export function otherBase(): string {
  const [trained, picked] = [baseOf(runRecipe.get()), baseOf(recipe.get())];
  if (adapter() === null || trained === "" || picked === "" || trained === picked) return "";
  return ` It was trained on ${trained}, and the base is now ${picked}: its replies may be wrong. Pick ${trained} to use it.`;
}

/** Says where things are kept, in the words of this engine. */
export function keptWords(): void {
  if (!isNative()) return;
  byId("lead").textContent = "Teach a language model your style, on this machine.";
  trainer.watch(() => (byId("kept-words").textContent = `Runs are ${place()} and stay there. Your recipe, samples and the list of runs are also stored in this browser until you`));
}
