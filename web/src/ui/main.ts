/** The page: restores the last visit and connects the sections. */

import { forgetBases } from "../storage/bases";
import { forgetRun, loadCheckpoint, loadResult, loadRunRecipe } from "../storage/checkpoints";
import { forgetHandles } from "../storage/handles";
import { filesOfRun, forgetKeptRuns, keptRuns } from "../storage/runs";
import { forgetSession, loadSession, saveSession } from "../storage/session";
import { alertUser, words } from "./alert";
import { isAutomatic, takeAsMade } from "./automatic";
import { baseSection, baseSession } from "./base";
import { dataSection, dataSession } from "./data";
import { openDevice } from "./device";
import { byId } from "./dom";
import { importSection } from "./import";
import { keepSection } from "./keep";
import { checkSoon, planSection } from "./plan";
import { confirmed } from "./question";
import { recipeSection } from "./recipe";
import { runsSection } from "./runs";
import { readSamplesSoon } from "./samples";
import { fromHash, type Shared } from "./share";
import { checkpoint, recipe, result, runRecipe, runs, table, trainer } from "./state";
import { talkSection } from "./talk";
import { trainingSection } from "./training";

let saving = 0;
/** Whether this tab holds the lock on the storage. */
let owner = false;

/** Saves the setup after a short time without changes. */
function saveSoon(): void {
  if (!owner) return;
  clearTimeout(saving);
  saving = window.setTimeout(() => {
    saveSession({ base: baseSession, data: dataSession, recipe: recipe.get(), automatic: isAutomatic() }).catch((error: unknown) =>
      alertUser(`The recipe could not be saved in this browser: ${words(error)}. Download it before you leave the page.`),
    );
  }, 300);
}

function changed(): void {
  saveSoon();
  checkSoon(); // marks the last check as stale
  readSamplesSoon();
}

const bases = baseSection(changed);
const samples = dataSection(changed);
planSection();
recipeSection(changed);
const training = trainingSection();
importSection(training.restore, changed);
talkSection();
keepSection();
runsSection(training.restore, changed);
trainer.watch(() => readSamplesSoon());
table.watch(() => checkSoon()); // the recipe fits the samples by then

/** Restores the last visit. */
async function restore(): Promise<void> {
  const [session, shared] = [await loadSession(), linked()];
  if (session) {
    recipe.set(session.recipe);
    if (session.automatic) takeAsMade();
    await bases.restore(session.base);
    await samples.restore(session.data);
  } else {
    await samples.begin();
  }
  if (shared) offerLink(shared, session !== null);
  runs.set(await keptRuns());
  checkpoint.set(await loadCheckpoint());
  const shown = await shownRun();
  if (shown) result.set({ id: shown.id, step: shown.step, steps: shown.steps, files: await filesOfRun(shown.id) });
  runRecipe.set((await loadRunRecipe()) ?? shown?.recipe ?? null);
  training.restore();
}

async function shownRun() {
  const id = await loadResult();
  return runs.get().find((run) => run.id === id);
}

/** The contents of the link that opened the page. */
function linked(): Shared | null {
  try {
    return fromHash(location.hash);
  } catch {
    alertUser("This link was cut off or changed on its way, so its recipe cannot be read; ask for it again.");
    return null;
  }
}

/** Uses the recipe and samples of a link, after a question if they would replace others. */
function offerLink(shared: Shared, asks: boolean): void {
  const use = async () => {
    history.replaceState(null, "", location.pathname + location.search);
    if (shared.text !== undefined) samples.usePastedText(shared.text);
    else await samples.restore({ kind: "task", task: shared.task ?? "chat" });
    recipe.set(shared.recipe);
    changed();
  };
  if (!asks) return void use();
  alertUser("This link brings a recipe and samples. Using them replaces those that are shown below; finished runs stay.", { text: "Use those of the link", act: () => void use() });
}

const forgetAll = () => Promise.all([forgetRun(), forgetKeptRuns(), forgetSession(), forgetBases(), forgetHandles()]);

byId("forget").addEventListener("click", () => {
  const kept = runs.get().length;
  const question = `Delete everything that this page has stored in this browser: the recipe, the samples, ${kept === 1 ? "1 run" : `${kept} runs`} with their adapters, and downloaded models?`;
  void confirmed(question, "Delete everything").then((agreed) => agreed && void forgetAll().then(() => location.reload()));
});

const LOCK = "rullama-train";

/** Makes a second tab unusable until the first one is closed: whatever it saved would replace the first tab's work. */
function wait(): void {
  alertUser("This page is open in another tab, which uses the saved runs. This tab continues when that one is closed.");
  document.documentElement.classList.add("waiting");
  for (const part of document.querySelectorAll<HTMLElement>("main > div, footer")) part.inert = true;
  byId("device").textContent = "";
  void navigator.locks.request(LOCK, () => location.reload());
}

/** Only one tab may use the storage, like one run per folder. */
void navigator.locks.request(LOCK, { ifAvailable: true }, async (lock) => {
  if (!lock) return wait();
  owner = true;
  const opened = Promise.all([openDevice(), restore()]).then(() => training.attach());
  await opened.catch((error: unknown) => alertUser(words(error)));
  await new Promise(() => {}); // until the tab is closed
});

if (import.meta.env.VITE_OFFLINE) void navigator.serviceWorker?.register("./sw.js");
