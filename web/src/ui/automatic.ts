/** The recipe that the page makes: it follows base and samples until the user changes it. */

import { recipe } from "./state";
import { getValue, setValue } from "./toml";

let made = "";

/** Whether the user has not changed the recipe. */
export const isAutomatic = () => recipe.get() === made;

/** Replaces the recipe by one that the page made. */
export function adopt(text: string): void {
  made = text;
  recipe.set(text);
}

/** Takes the current recipe for one that the page made. */
export const takeAsMade = () => (made = recipe.get());

/** Sets the name of the base or of the samples. This is no change by the user. */
export function setName(section: string, key: string, value: string): void {
  const before = recipe.get();
  if (getValue(before, section, key) === value) return;
  const after = setValue(before, section, key, value);
  if (made === before) made = after;
  recipe.set(after);
}
