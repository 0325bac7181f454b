/** The kept runs: open one again, compare several, delete. */

import "./runs.css";
import { isNative } from "../api/engine";
import { forgetRun, saveResult } from "../storage/checkpoints";
import type { KeptRun } from "../storage/runs";
import { alertUser, announce, words } from "./alert";
import { MOST, comparison, differences, titleOf } from "./compare";
import { button, byId, el } from "./dom";
import { decimal, loss, plural } from "./format";
import { confirmed } from "./question";
import { filesOf, forget, update, watchFolder } from "./kept";
import { uniqueName } from "./names";
import { runSetup, setupNow } from "./setup";
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
    const files = await filesOf(run);
    runSetup.set(setupNow()); // changes after this show a new plan
    await saveResult(run.id, runSetup.get());
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
  const rename = (run: KeptRun) => {
    const field = el("input", { "aria-label": `Name of ${titleOf(run)}`, class: "rename" });
    field.value = titleOf(run);
    const end = (name: string) => {
      const renamed = { ...run, name: uniqueName(name.trim() || titleOf(run), runs.get().filter(({ id }) => id !== run.id)) };
      attempt(update(renamed));
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") field.blur();
      if (event.key === "Escape") field.value = titleOf(run);
      if (event.key === "Escape") field.blur();
    });
    field.addEventListener("blur", () => end(field.value), { once: true });
    byId(`run-${run.id}`).querySelector("b")!.replaceWith(field);
    field.focus();
    field.select();
  };
  const remove = async (run: KeptRun) => {
    if (!(await confirmed(isNative() ? `Take the run of ${titleOf(run)} off this list? Its folder stays.` : `Delete the run of ${titleOf(run)}, with its adapter and report?`, "Delete the run"))) return;
    await forget(run);
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
      act("Rename", () => rename(run), false),
      act("Use settings", () => reuse(run), false),
      act("Delete", () => attempt(remove(run)), false),
    ];
    const change = run.reward ? `reward ${decimal(run.reward.before, 2)} → ${decimal(run.reward.after, 2)}` : `loss ${loss(run.before)} → ${loss(run.after)}`;
    const when = new Date(run.ended).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    const about = el("div", {}, el("b", {}, name), el("p", { class: "note" }, [change, plural(run.steps, "step"), ...differences(run, runs.get()), `on ${run.base}`, when].join(" · ")));
    return el("li", { id: `run-${run.id}`, ...(shown && { class: "shown" }) }, box, about, el("div", { class: "acts" }, ...buttons));
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
  watchFolder();
}
