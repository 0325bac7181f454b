/** The buttons of a run, and the sentence on what is saved. */

import { byId } from "./dom";
import { changed, changes } from "./setup";
import { place } from "./place";
import { base, checked, checkpoint, data, phase, result, stale, trainer } from "./state";

/** Whether the saved checkpoint is that of the last step. */
export function isFinished(): boolean {
  const saved = checkpoint.get();
  return result.get() !== null || (saved !== null && saved.steps !== null && saved.step >= saved.steps);
}

/** Whether the section has the focus because no button could take it. */
let waiting = false;

function update(): void {
  const now = phase.get();
  const saved = checkpoint.get();
  const show = (id: string, visible: boolean, disabled = false) => {
    const one = byId<HTMLButtonElement>(id);
    const hadFocus = document.activeElement === one;
    one.hidden = !visible;
    one.disabled = disabled;
    return hadFocus && (!visible || disabled);
  };
  // No need to wait for a running check: the run checks again.
  const wrong = checked.get() instanceof Error && !stale.get();
  const ready = trainer.get() !== null && base.get() !== null && data.get().length > 0 && !wrong;
  const parts = changes.get();
  const moved = parts.length > 0;
  const done = isFinished() && !moved;
  const lost = [
    show("start", now === "idle" && !done, !ready),
    show("cancel", now === "starting"),
    show("pause", now === "training" || now === "pausing", now === "pausing"),
    show("resume", now === "paused"),
    show("stop", ["training", "pausing", "paused", "stopping"].includes(now), now === "stopping"),
    show("back", now === "idle" && moved && saved !== null && !isFinished()),
    show("discard", now === "idle" && !moved && (saved !== null || done)),
  ];
  byId("start").textContent = !saved || isFinished() ? "Train" : moved ? "Train anew" : `Continue at step ${saved.step}`;
  byId("pause").textContent = now === "pausing" ? "Pausing …" : "Pause";
  byId("stop").textContent = now === "stopping" ? "Stopping …" : "Stop and save";
  byId("discard").textContent = done ? "Train again" : "Start over";
  byId("controls").classList.toggle("done", done && now === "idle");
  // Hiding a focused button loses the focus: move it to the button that appears, or to the section until there is one.
  if (lost.includes(true) || (waiting && document.activeElement === byId("train"))) {
    const buttons = ["pause", "resume", "stop", "start", "back", "discard", "cancel"].map((id) => byId<HTMLButtonElement>(id));
    const next = buttons.find((one) => !one.hidden && !one.disabled);
    waiting = !next;
    (next ?? byId("train")).focus({ preventScroll: true });
  }
  const which = result.get();
  if (now === "idle" && moved && saved && !which) {
    byId("saved").textContent = `${changed(parts)} since the run was stopped at step ${saved.step}.`;
    return;
  }
  byId("saved").textContent = which && now === "idle" && moved
    ? `${changed(parts)} since the last run, which is in Your runs.`
    : which
    ? `Finished: the adapter of step ${which.step} is saved ${place()}.`
    : saved?.unsaved
      ? `Step ${saved.step} is not saved: it is in this tab only. ${saved.unsaved.stored === null ? "" : `Saved up to step ${saved.unsaved.stored}.`}`
    : saved
      ? `Saved ${place()} up to step ${saved.step}${saved.steps ? ` of ${saved.steps}` : ""}.`
      : "";
}

/** Keeps the buttons in step with the state. */
export function runButtons(): void {
  for (const cell of [phase, checked, stale, trainer, base, data, checkpoint, result, changes]) cell.watch(update);
}
