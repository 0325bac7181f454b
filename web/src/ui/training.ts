/** The training section: start, pause, resume and stop. Checkpoints are saved as they arrive. */

import { DeviceLost, type Check, type Event, type FileEntry, type Run } from "../api/index";
import { REPORT, forgetRun, saveCheckpoint, saveResult, saveRunRecipe, saveRunSetup, stepOf } from "../storage/checkpoints";
import { isNative } from "../api/engine";
import { StorageFull } from "../storage/opfs";
import type { KeptRun } from "../storage/runs";
import { alertUser, announce, clearAlert, sentence, words } from "./alert";
import { isFinished, runButtons } from "./buttons";
import { dataSession, given, useTyped } from "./data";
import { reopenDevice } from "./device";
import { byId } from "./dom";
import { showFinish } from "./finish";
import { exchanges } from "./hero";
import { change, ranking, replay, type History } from "./history";
import { isShortage, lighter } from "./lighter";
import { progress } from "./progress";
import { confirmed } from "./question";
import { readSamplesNow } from "./samples";
import { isAutomatic } from "./automatic";
import { baseSession } from "./base";
import { wrongField } from "./form";
import { keep, newId } from "./kept";
import { noteSpeed } from "./pace";
import { newName } from "./names";
import { rewardChange, rewardsByStep } from "./rewards";
import { changes, runSetup, setupNow } from "./setup";
import { when } from "./cell";
import { base, checked, checkpoint, data, phase, recipe, result, runRecipe, runs, stale, table, trainer } from "./state";

const TITLE = document.title;
/** Milliseconds between checkpoints in a browser. */
const OFTEN = 30_000;
const isReport = (file: FileEntry) => file.path.endsWith(REPORT);

/** Starts the section. */
export function trainingSection(back: () => Promise<void>) {
  const shown = progress();
  let run: Run | null = null;
  let steps = 0;
  let planned = false;
  let cancelled = false;
  /** When the run was started here; 0 for one that was resumed or found. */
  let began = 0;
  /** When the last checkpoint was saved. */
  let savedAt = 0;

  /** Saves the state after `step`. If the storage is full, the run is paused and the state stays in memory. */
  const save = async (step: number, files: FileEntry[], again = false): Promise<boolean> => {
    const before = checkpoint.get();
    if (before?.step === step && !again) return !before.unsaved;
    const stored = before?.unsaved ? before.unsaved.stored : (before?.step ?? null);
    try {
      await saveCheckpoint(step, files);
      checkpoint.set({ step, steps, files });
      return true;
    } catch (error) {
      run?.pause();
      const kept = stored !== null ? `The checkpoint of step ${stored} is still saved.` : "No checkpoint was saved before.";
      const why = error instanceof StorageFull ? error.message : words(error);
      const next = "The run is paused: free some space and save again, or download the checkpoint below.";
      checkpoint.set({ step, steps, files, unsaved: { stored } }); // in memory, for the download
      alertUser(`Step ${step} could not be saved: ${why}. ${kept} ${next}`, {
        text: "Save again",
        act: () => void saveAgain(step, files),
      });
      return false;
    }
  };
  const saveAgain = async (step: number, files: FileEntry[]) => {
    if (await save(step, files, true)) announce(`Saved step ${step}.`);
  };

  /** Asks for a checkpoint if the last one is old: a tab that crashes then loses half a minute. The program writes its own. */
  const saveNow = () => {
    if (isNative() || performance.now() - savedAt < OFTEN) return;
    savedAt = performance.now();
    run?.checkpoint().catch(() => {}); // arrives as an event
  };

  const take = async (event: Event): Promise<void> => {
    shown.take(event);
    if (event.event === "step") saveNow();
    if (event.event === "step") document.title = `${Math.floor((100 * event.step) / steps)} % – ${TITLE}`;
    switch (event.event) {
      case "plan":
        steps = event.steps;
        shown.begin(event.resumed_at > 0 ? replay(checkpoint.get()?.files ?? [], event.resumed_at) : replay([]), event.resumed_at, steps);
        planned = true;
        savedAt = performance.now();
        stale.set(false);
        checked.set(event);
        runRecipe.set(event.recipe);
        await saveRunRecipe(event.recipe).catch((error: unknown) => alertUser(`The recipe of the run could not be saved: ${words(error)}.`));
        phase.set("training");
        announce(`Training from step ${event.resumed_at} of ${steps}.`);
        break;
      case "checkpoint":
        savedAt = performance.now();
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
        if (event.adapter && !event.stopped) await keepResult(event, [...event.adapter, ...event.files.filter(isReport)]);
        if (event.refused) alertUser(`The final check refused the adapter: ${event.refused}. It can still be downloaded.`);
        announce(event.stopped ? `Stopped after step ${event.step}.` : `Trained: ${event.step} steps.`);
        break;
      }
    }
  };
  const keepResult = async (event: Extract<Event, { event: "done" }>, files: FileEntry[]) => {
    const waited = began === 0 ? undefined : (performance.now() - began) / 1000;
    const described = describe(event, shown.history(), runRecipe.get() ?? recipe.get());
    const kept = { ...described, name: newName(described, runs.get()), ...(waited !== undefined && { waited }) };
    try {
      await keep(kept, files);
      await saveResult(kept.id, runSetup.get());
    } catch (error) {
      alertUser(`The adapter is finished but could not be saved: ${words(error)}. Download it before you leave the page.`);
    }
    noteSpeed(planOf(checked.get()), shown.measured().tokens, event.seconds, shown.measured().evaluations);
    runs.set([kept, ...runs.get().filter(({ id }) => id !== kept.id)]);
    result.set({ id: kept.id, step: event.adapter_of_step, steps, files });
  };

  const start = async () => {
    useTyped();
    const [device, model] = [trainer.get(), base.get()];
    if (!device || !model || data.get().length === 0) return;
    const wrong = wrongField();
    if (wrong) return wrong.focus();
    if (changes.get().length > 0 && !(await leave())) return;
    clearAlert();
    planned = false;
    cancelled = false;
    void navigator.storage?.persist?.().catch(() => false); // asks the browser not to delete saved runs when the disk fills up
    phase.set("starting");
    shown.wait("Reading samples and model …");
    if (matchMedia("(max-width: 800px)").matches) byId("train").scrollIntoView({ block: "start" }); // its button is elsewhere
    void stayAwake();
    const from = isFinished() ? null : checkpoint.get();
    began = from ? 0 : performance.now();
    await follow(async () => {
      // A mistake in the samples shows before the model is loaded; the recipe may follow the samples.
      const found = await readSamplesNow();
      if (found instanceof Error) throw found;
      if (!from) await keepSetup();
      const what = { base: model, data: data.get(), recipe: recipe.get() };
      return device.train(from ? { ...what, checkpoint: from.files } : what);
    });
  };

  /** Leaves the run that is shown, after a question if it is unfinished. */
  const leave = async (): Promise<boolean> => {
    const saved = checkpoint.get();
    const question = `Train anew? This deletes the unfinished run, trained up to step ${saved?.step}.`;
    if (saved && !isFinished() && !(await confirmed(question, "Delete the unfinished run"))) return false;
    await forget();
    return true;
  };
  const forget = async () => {
    await forgetRun();
    checkpoint.set(null);
    result.set(null);
    runRecipe.set(null);
    runSetup.set(null);
    shown.begin(null, 0, 0);
  };

  /** Notes base, samples and settings of the run that begins. */
  const keepSetup = async () => {
    runSetup.set(setupNow());
    const session = { base: baseSession, data: dataSession, recipe: recipe.get(), automatic: isAutomatic() };
    const files = dataSession.kind === "files" ? given() : [];
    await saveRunSetup({ setup: runSetup.get()!, session }, files).catch((error: unknown) => alertUser(`The samples could not be kept with the run: ${words(error)}.`));
  };

  /** Follows the run of the program behind the page, which goes on while the page is closed or reloaded. */
  const attach = async () => {
    const found = await trainer.get()?.native?.attach();
    if (!found || phase.get() !== "idle") return;
    planned = false;
    cancelled = false;
    began = 0;
    result.set(null);
    phase.set("starting");
    shown.wait("Returning to the run …");
    await follow(async () => found);
  };

  const follow = async (begin: () => Promise<Run>) => {
    try {
      run = await begin();
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
    if (cancelled) return;
    const less = isShortage(words(error)) && lighter(recipe.get(), Math.max(0, ...lengths()));
    if (error instanceof DeviceLost) await reopenDevice();
    if (less && !saved) {
      const act = () => {
        recipe.set(less.recipe);
        void start();
      };
      alertUser(`${sentence(words(error))} The run needs less memory with ${less.saving}; the result stays about the same.`, { text: "Train with less memory", act });
    } else if (error instanceof DeviceLost) {
      const kept = saved ? `The run is saved up to step ${saved.step}.` : "Nothing was saved yet, so training begins anew.";
      alertUser(`${whatWasLost(error)} ${kept}`, { text: saved ? "Resume from there" : "Train again", act: () => void start() });
    } else if (!planned && error instanceof Error) {
      stale.set(false);
      checked.set(error); // shown like an error of a check
      byId(table.get() === error ? "samples" : "train").scrollIntoView({ block: "nearest" });
    } else {
      alertUser(words(error));
    }
  };

  /** Ends a start, which takes no commands: the worker is replaced. */
  const cancel = async () => {
    cancelled = true;
    byId<HTMLButtonElement>("cancel").disabled = true;
    await reopenDevice();
    byId<HTMLButtonElement>("cancel").disabled = false;
    announce("Cancelled.");
  };

  /** Shows the progress of the saved run. */
  const restore = () => {
    const saved = checkpoint.get();
    shown.begin(saved && replay(saved.files), saved?.step ?? 0, saved?.steps ?? saved?.step ?? 0);
  };

  const startOver = async () => {
    const saved = checkpoint.get();
    const unfinished = !isFinished() && saved;
    if (unfinished && !(await confirmed(`Start over? This deletes the unfinished run, trained up to step ${saved.step}.`, "Delete the run"))) return;
    await forget();
    byId("start").focus();
  };

  // Leaving the page loses the steps since the last checkpoint.
  addEventListener("beforeunload", (event) => {
    if (!isNative() && ["training", "pausing", "stopping"].includes(phase.get())) event.preventDefault();
  });

  byId("start").addEventListener("click", () => void start());
  byId("pause").addEventListener("click", () => {
    phase.set("pausing");
    run?.pause();
  });
  byId("cancel").addEventListener("click", () => void cancel());
  byId("resume").addEventListener("click", () => {
    clearAlert();
    run?.resume();
  });
  byId("stop").addEventListener("click", () => {
    phase.set("stopping");
    run?.stop();
  });
  byId("back").addEventListener("click", () => void back().catch((error: unknown) => alertUser(words(error))));
  byId("discard").addEventListener("click", () => void startOver());

  runButtons();
  for (const cell of [result, runs, changes]) cell.watch(showFinish);

  // A tab in the background shows how far it is.
  phase.watch((now) => {
    if (now === "idle") document.title = document.hidden && result.get() ? `Finished – ${TITLE}` : TITLE;
  });
  addEventListener("focus", () => phase.get() === "idle" && (document.title = TITLE));

  /** Trains as soon as the plan is there; a mistake is shown instead. Gives up where the plan is no longer `wanted`. */
  const startWhenReady = async (wanted: () => boolean, there: () => boolean) => {
    byId("train").focus({ preventScroll: true });
    const button = byId<HTMLButtonElement>("start");
    const planned = () => there() && !stale.get() && (checked.get() instanceof Error || !button.disabled);
    await when([base, data, trainer, stale, checked, phase], () => !wanted() || planned());
    if (wanted() && !(checked.get() instanceof Error) && !button.hidden && !button.disabled) await start();
  };

  return { restore, attach, startWhenReady };
}

const planOf = (found: Check | Error | null): Check | null => (found instanceof Error ? null : found);
/** How the GPU was lost, as one sentence, without the advice of the program. */
const whatWasLost = (error: Error) => sentence(error.message.replace(/[.;\s]*open it again.*$/s, ""));

/** The tokens of every sample, as far as they are known. */
function lengths(): number[] {
  const found = table.get();
  return found && !(found instanceof Error) ? found.lengths : [];
}

/** Keeps the screen on during the run, where the browser can: machines that sleep do not train. */
async function stayAwake(): Promise<void> {
  const lock = await navigator.wakeLock?.request("screen").catch(() => null);
  if (!lock) return;
  await phase.until("idle");
  await lock.release();
}

/** The finished run, to keep. */
function describe(event: Extract<Event, { event: "done" }>, history: History, text: string): KeptRun {
  const [model, compared, reward] = [base.get(), ranking(history), rewardChange(history)];
  return {
    id: newId(),
    ended: new Date().toISOString(),
    samples: data.get().map(({ name }) => name.replace(/^.*\//, "")).join(", "),
    base: model?.kind === "file" ? model.file.name : model?.kind === "url" ? model.url : model?.kind === "named" ? model.name : "tiny",
    step: event.adapter_of_step,
    steps: event.step,
    ...change(history),
    ...(compared ? { ranking: compared } : {}),
    ...(reward && { reward, rewards: rewardsByStep(history) }),
    seconds: event.seconds,
    recipe: text,
    replies: exchanges(history).map(({ prompt, before, after }) => ({ prompt, before: before ?? "", after: after ?? "" })),
    losses: history.steps.flatMap(({ step, smoothed }) => (smoothed === null ? [] : [[step, smoothed] as [number, number]])),
  };
}
