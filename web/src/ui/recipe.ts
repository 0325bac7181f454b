/** The recipe section: form and text editor show the same recipe, and errors are marked where they are. */

import { RecipeError } from "../api/index";
import { button, byId } from "./dom";
import { editor } from "./editor";
import { form } from "./form";
import { checked, isFree, phase, recipe } from "./state";

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
    fields.markKey(wrong?.key ?? null);
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
    for (const id of ["base-file", "base-url", "data-task", "data-files"]) {
      byId<HTMLInputElement>(id).disabled = !isFree(now);
    }
    byId<HTMLTextAreaElement>("data-pasted").readOnly = !isFree(now);
  });
}
