/** The kept runs: open one again, compare several, delete. */

import { forgetRun, saveResult } from "../storage/checkpoints";
import { filesOfRun, forgetKeptRun, type KeptRun } from "../storage/runs";
import { alertUser, announce, words } from "./alert";
import { MOST, comparison, titleOf } from "./compare";
import { button, byId, el } from "./dom";
import { decimal } from "./format";
import { confirmed } from "./question";
import { checkpoint, phase, recipe, result, runRecipe, runs } from "./state";

/** Starts the section. `changed` is called when a run's recipe replaces the current one. */
export function runsSection(restore: () => void, changed: () => void): void {
  const chosen = new Set<string>();

  const open = async (run: KeptRun) => {
    const saved = checkpoint.get();
    const question = `Open the run of ${titleOf(run)}? This deletes the unfinished run, trained up to step ${saved?.step}.`;
    if (saved && !result.get() && !(await confirmed(question, "Delete the unfinished run"))) return;
    await forgetRun();
    checkpoint.set(null);
    const files = await filesOfRun(run.id);
    await saveResult(run.id);
    result.set({ id: run.id, step: run.step, steps: run.steps, files });
    runRecipe.set(run.recipe);
    restore();
    announce(`Opened the run of ${titleOf(run)}.`);
    byId("train").scrollIntoView({ block: "start" });
    byId("train").focus({ preventScroll: true });
  };
  const reuse = (run: KeptRun) => {
    recipe.set(run.recipe);
    changed();
    announce("The settings of the run are in the recipe.");
  };
  const remove = async (run: KeptRun) => {
    if (!(await confirmed(`Delete the run of ${titleOf(run)}, with its adapter and report?`, "Delete the run"))) return;
    await forgetKeptRun(run.id);
    chosen.delete(run.id);
    if (result.get()?.id === run.id) {
      await forgetRun();
      checkpoint.set(null);
      result.set(null);
      restore();
    }
    runs.set(runs.get().filter(({ id }) => id !== run.id));
    byId("runs-title").focus();
  };
  const attempt = (what: Promise<void>) => void what.catch((error: unknown) => alertUser(words(error)));

  const compare = () => {
    const picked = runs.get().filter(({ id }) => chosen.has(id));
    byId("runs-compared").replaceChildren(...(picked.length > 1 ? [comparison(picked)] : []));
  };

  const line = (run: KeptRun) => {
    const name = titleOf(run);
    const box = el("input", { type: "checkbox", id: `compare-${run.id}`, "aria-label": `Compare ${name}` });
    box.checked = chosen.has(run.id);
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(run.id);
      else chosen.delete(run.id);
      show();
      byId(box.id).focus();
    });
    box.disabled = !box.checked && chosen.size >= MOST;
    const shown = result.get()?.id === run.id;
    const busy = phase.get() !== "idle";
    const act = (text: string, what: () => void, disabled: boolean) => {
      const one = button(text, what, { class: "quiet", "aria-label": `${text}: ${name}` });
      one.disabled = disabled || busy;
      return one;
    };
    const buttons = [
      act(shown ? "Open now" : "Open", () => attempt(open(run)), shown),
      act("Use settings", () => reuse(run), false),
      act("Delete", () => attempt(remove(run)), false),
    ];
    const loss = `${decimal(run.before, 2)} → ${decimal(run.after, 2)}`;
    const about = el("div", {}, el("b", {}, loss), ` ${name}, ${run.steps} steps`);
    return el("li", shown ? { class: "shown" } : {}, box, about, el("div", { class: "acts" }, ...buttons));
  };

  const show = () => {
    byId("runs").hidden = runs.get().length === 0;
    const several = runs.get().length > 1;
    const hint = several ? [el("p", { class: "note" }, "Tick two or more to compare them.")] : [];
    byId("runs-list").replaceChildren(...hint, el("ul", several ? {} : { class: "single" }, ...runs.get().map(line)));
    compare();
  };
  byId("runs-title").tabIndex = -1;
  for (const cell of [runs, result, phase]) cell.watch(show);
}
