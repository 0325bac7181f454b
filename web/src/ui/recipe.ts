/** The settings: form and text editor show the same recipe, and errors are shown where they are. */

import { RecipeError } from "../api/index";
import { button, byId } from "./dom";
import { editor } from "./editor";
import { form } from "./form";
import { base, checked, isFree, phase, recipe } from "./state";
import { getValue } from "./toml";

/** Starts the section. `changed` is called on every edit. */
export function recipeSection(changed: () => void): void {
  const edit = (text: string) => {
    recipe.set(text);
    changed();
  };
  const text = editor(edit);
  const fields = form(edit);
  const error = byId("recipe-error");

  checked.watch((found) => {
    const wrong = found instanceof RecipeError ? found : null;
    text.markLine(wrong?.line ?? null);
    fields.markKey(wrong?.key ?? null, wrong?.message ?? "");
    error.replaceChildren(wrong?.message ?? "");
    const line = wrong?.line;
    if (line !== undefined) {
      error.append(" ", button(`Go to line ${line}`, () => text.goTo(line, wrong?.column ?? 1), { class: "link" }));
    }
  });
  phase.watch((now) => {
    text.disable(!isFree(now));
    fields.disable(!isFree(now));
    for (const set of document.querySelectorAll<HTMLFieldSetElement>("#base-kind, #data-kind")) set.disabled = !isFree(now);
    for (const id of ["base-file", "base-pick", "base-url", "data-task", "data-files"]) {
      byId<HTMLInputElement>(id).disabled = !isFree(now);
    }
    byId<HTMLTextAreaElement>("data-pasted").readOnly = !isFree(now);
  });

  const summary = () => {
    const model = base.get();
    const name = model === null ? "No base model yet" : model.kind === "tiny" ? "Tiny Gemma 4" : model.kind === "file" ? model.file.name : model.kind === "url" ? model.url : model.name.replace(/^.*[\\/]/, "");
    const value = (section: string, key: string, words: string) => {
      const found = getValue(recipe.get(), section, key);
      return found === null ? [] : [`${words} ${found}`];
    };
    const steps = value("train", "max_steps", "steps"); // overrides epochs
    const parts = [name, ...(steps.length > 0 ? steps : value("train", "epochs", "epochs")), ...value("train", "learning_rate", "learning rate"), ...value("lora", "rank", "rank")];
    byId("settings-summary").textContent = parts.join(" · ");
  };
  for (const cell of [base, recipe]) cell.watch(summary);
}
