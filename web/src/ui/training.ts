/** The training section: start, pause, resume and stop. Checkpoints are saved as they arrive. */

import { DeviceLost, type Event, type FileEntry, type Run } from "../api/index";
import { forgetRun, saveCheckpoint, saveResult, saveRunRecipe, stepOf } from "../storage/checkpoints";
import { StorageFull } from "../storage/opfs";
import { alertUser, announce, clearAlert, words } from "./alert";
import { reopenDevice } from "./device";
import { byId } from "./dom";
import { replay } from "./history";
import { progress } from "./progress";
import { base, checked, checkpoint, data, phase, recipe, result, runRecipe, stale, trainer } from "./state";

/** Starts the section. */
export function trainingSection() {
  const shown = progress();
  let run: Run | null = null;
  let steps = 0;
  let planned = false;

  const finished = () => {
    const saved = checkpoint.get();
    return saved !== null && saved.steps !== null && saved.step >= saved.steps;
  };

  /** Saves the state after `step`. If the storage is full, the run is paused and the state stays in memory. */
  const save = async (step: number, files: FileEntry[]): Promise<boolean> => {
    const before = checkpoint.get();
    if (before?.step === step) return true;
    try {
      await saveCheckpoint(step, files);
      checkpoint.set({ step, steps, files });
      return true;
    } catch (error) {
      run?.pause();
      const kept = before ? `The checkpoint of step ${before.step} is still saved.` : "No checkpoint was saved before.";
      const why = error instanceof StorageFull ? `the storage is full: ${error.message}` : words(error);
      const next = "The run is paused: free some space and save again, or download the checkpoint below.";
      checkpoint.set({ step, steps, files }); // in memory, for the download
      alertUser(`Step ${step} could not be saved: ${why}. ${kept} ${next}`, {
        text: "Save again",
        act: () => void saveAgain(step, files),
      });
      return false;
    }
  };
  const saveAgain = async (step: number, files: FileEntry[]) => {
    checkpoint.set(null);
    if (await save(step, files)) announce(`Saved step ${step}.`);
  };

  const take = async (event: Event): Promise<void> => {
    shown.take(event);
    switch (event.event) {
      case "plan":
        steps = event.steps;
        shown.begin(event.resumed_at > 0 ? replay(checkpoint.get()?.files ?? []) : replay([]), event.resumed_at, steps);
        planned = true;
        stale.set(false);
        checked.set(event);
        runRecipe.set(event.recipe);
        await saveRunRecipe(event.recipe).catch((error: unknown) => alertUser(`The recipe of the run could not be saved: ${words(error)}.`));
        phase.set("training");
        announce(`Training from step ${event.resumed_at} of ${steps}.`);
        break;
      case "checkpoint":
        await save(event.step, event.files);
        break;
      case "paused": {
        const files = event.step > 0 ? await run!.checkpoint() : [];
        if (files.length > 0) await save(event.step, files);
        phase.set("paused");
        announce(`Paused after step ${event.step}.`);
        break;
      }
      case "resumed":
        phase.set("training");
        break;
      case "done": {
        const last = stepOf(event.files);
        if (last !== null) await save(last, event.files.filter((file) => /(^|\/)checkpoint-\d+\//.test(file.path)));
        if (event.adapter && !event.stopped) await keepResult(event.adapter_of_step, event.adapter);
        if (event.refused) alertUser(`The final check refused the adapter: ${event.refused}. It can still be downloaded.`);
        announce(event.stopped ? `Stopped after step ${event.step}.` : `Trained: ${event.step} steps.`);
        break;
      }
    }
  };
  const keepResult = async (step: number, files: FileEntry[]) => {
    result.set({ step, steps, files });
    try {
      await saveResult(step, files);
    } catch (error) {
      alertUser(`The adapter is finished but could not be saved: ${words(error)}. Download it before you leave the page.`);
    }
  };

  const start = async () => {
    const [device, model] = [trainer.get(), base.get()];
    if (!device || !model) return;
    clearAlert();
    planned = false;
    void navigator.storage.persist(); // asks the browser not to delete saved runs when the disk fills up
    phase.set("starting");
    const from = finished() ? null : checkpoint.get();
    const what = { base: model, data: data.get(), recipe: recipe.get() };
    try {
      run = device.train(from ? { ...what, checkpoint: from.files } : what);
      for await (const event of run) await take(event);
    } catch (error) {
      await failed(error);
    } finally {
      run = null;
      phase.set("idle");
    }
  };

  const failed = async (error: unknown) => {
    const saved = checkpoint.get();
    restore();
    if (error instanceof DeviceLost) {
      const kept = saved ? `The run is saved up to step ${saved.step}.` : "No checkpoint was saved yet.";
      await reopenDevice();
      alertUser(`${words(error)} ${kept}`, { text: saved ? "Resume from there" : "Train again", act: () => void start() });
    } else if (!planned && error instanceof Error) {
      stale.set(false);
      checked.set(error); // shown like an error of a check
      byId("train").scrollIntoView({ block: "nearest" });
    } else {
      alertUser(words(error));
    }
  };

  /** Shows the progress of the saved run. */
  const restore = () => {
    const saved = checkpoint.get();
    shown.begin(saved && replay(saved.files), saved?.step ?? 0, saved?.steps ?? saved?.step ?? 0);
  };

  const startOver = async () => {
    const saved = checkpoint.get() ?? result.get();
    if (saved && !confirm(`Start over? This deletes the run, trained up to step ${saved.step}, from this browser.`)) return;
    await forgetRun();
    checkpoint.set(null);
    result.set(null);
    shown.begin(null, 0, 0);
    byId("start").focus();
  };

  // Leaving the page loses the steps since the last checkpoint.
  addEventListener("beforeunload", (event) => {
    if (["training", "pausing", "stopping"].includes(phase.get())) event.preventDefault();
  });

  byId("start").addEventListener("click", () => void start());
  byId("pause").addEventListener("click", () => {
    phase.set("pausing");
    run?.pause();
  });
  byId("resume").addEventListener("click", () => {
    clearAlert();
    run?.resume();
  });
  byId("stop").addEventListener("click", () => {
    phase.set("stopping");
    run?.stop();
  });
  byId("discard").addEventListener("click", () => void startOver());

  const buttons = () => {
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
    const idle = now === "idle" || now === "starting";
    const done = result.get() !== null || finished();
    const lost = [
      show("start", idle && !done, now === "starting" || !ready),
      show("pause", now === "training" || now === "pausing", now === "pausing"),
      show("resume", now === "paused"),
      show("stop", ["training", "pausing", "paused", "stopping"].includes(now), now === "stopping"),
      show("discard", now === "idle" && (saved !== null || done)),
    ];
    byId("start").textContent = now === "starting" ? "Starting …" : saved ? `Continue at step ${saved.step}` : "Train";
    byId("pause").textContent = now === "pausing" ? "Pausing …" : "Pause";
    // Hiding a focused button loses the focus: move it to the button that appears, or to the section until there is one.
    if (lost.includes(true) || document.activeElement === byId("train")) {
      const next = ["pause", "resume", "stop", "start", "discard"].map((id) => byId<HTMLButtonElement>(id));
      (next.find((one) => !one.hidden && !one.disabled) ?? byId("train")).focus({ preventScroll: true });
    }
    const which = result.get();
    byId("saved").textContent = which
      ? `Finished: the adapter of step ${which.step} is saved in this browser.`
      : saved
        ? `Saved in this browser up to step ${saved.step}${saved.steps ? ` of ${saved.steps}` : ""}.`
        : "";
  };
  for (const cell of [phase, checked, stale, trainer, base, data, checkpoint, result]) cell.watch(buttons);

  return { restore };
}
