/** The page: restores the last visit and connects the sections. */

import { isNative } from "../api/engine";
import { forgetBases } from "../storage/bases";
import { forgetRun, loadCheckpoint, loadResult, loadRunRecipe, loadRunSamples, loadRunSetup } from "../storage/checkpoints";
import { forgetHandles } from "../storage/handles";
import { askForStorage } from "../storage/memory";
import { filesOfRun, forgetKeptRuns, keptRuns } from "../storage/runs";
import { forgetSession, loadSession, saveSamples, saveSession } from "../storage/session";
import { alertUser, words } from "./alert";
import { isAutomatic, setName, takeAsMade } from "./automatic";
import { baseSection, baseSession } from "./base";
import { dataSection, dataSession, pending } from "./data";
import { openDevice } from "./device";
import { button, byId } from "./dom";
import { foldSections } from "./fold";
import { importSection } from "./import";
import { offline } from "./install";
import { keepSection } from "./keep";
import { tellAbove } from "./notices";
import { keptWords } from "./place";
import { checkSoon, planSection } from "./plan";
import { promise } from "./promise";
import { confirmed } from "./question";
import { recipeSection } from "./recipe";
import { runsSection } from "./runs";
import { readSamplesSoon } from "./samples";
import { runSetup, watchSetup } from "./setup";
import { fromHash, type Shared } from "./link";
import { brings, needed } from "./share";
import { checkpoint, data, reader, recipe, result, runRecipe, runs, table, trainer } from "./state";
import { talkSection } from "./talk";
import { TASKS } from "./tasks";
import { themeSwitch } from "./theme";
import { quote } from "./toml";
import { trainingSection } from "./training";

let saving = 0;
/** Whether this tab holds the lock on the storage. */
let owner = false;

/** Saves the setup after a short time without changes. */
function saveSoon(): void {
  if (!owner) return;
  clearTimeout(saving);
  saving = window.setTimeout(() => {
    saveSession({ base: baseSession, data: dataSession, recipe: recipe.get(), automatic: isAutomatic(), pending: pending() }).catch((error: unknown) =>
      alertUser(`The recipe could not be saved in this browser: ${words(error)}. Download it before you leave the page.`),
    );
  }, 300);
}

/** How own samples come in when the user asks for that. */
const OWN = "sheet";

/** Trains the first example on the included base. */
async function tryPirate(): Promise<void> {
  const [tiny, example, task] = [document.querySelector<HTMLInputElement>("input[name=base][value=tiny]"), document.querySelector<HTMLInputElement>("input[name=data][value=task]"), byId<HTMLSelectElement>("data-task")];
  if (tiny && !tiny.checked) tiny.click();
  if (example && !example.checked) example.click();
  if (task.value !== "chat") {
    task.value = "chat";
    task.dispatchEvent(new Event("change"));
  }
  byId("train").scrollIntoView({ block: "start" });
  const wanted = () => baseSession.kind === "tiny" && dataSession.kind === "task" && dataSession.task === "chat";
  await training.startWhenReady(wanted, () => data.get()[0]?.name === TASKS["chat"]?.file);
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
const training = trainingSection(back);
importSection(training.restore, changed);
talkSection();
keepSection();
runsSection(training.restore, changed);
for (const engine of [trainer, reader]) engine.watch(() => readSamplesSoon());
themeSwitch();
keptWords();
foldSections();
promise({
  pirate: () => void tryPirate(),
  own: () => {
    byId("data").scrollIntoView({ block: "start" });
    document.querySelector<HTMLInputElement>(`input[name=data][value=${OWN}]`)?.click();
    byId("data").querySelector<HTMLElement>("[data-for=sheet] :is(input, textarea)")?.focus({ preventScroll: true });
  },
});
table.watch(() => checkSoon()); // the recipe fits the samples by then

/** Restores samples and settings of the unfinished run. */
async function back(): Promise<void> {
  const kept = await loadRunSetup();
  if (!kept) return;
  const { base, data, recipe: text, automatic } = kept.session;
  if (data.kind === "files") {
    const files = await loadRunSamples();
    if (files.length === 0) return alertUser("The files of the run are too large to be kept with it; pick them again to continue.");
    await saveSamples(files);
  }
  recipe.set(text);
  if (automatic) takeAsMade();
  if (kept.setup.base !== runSetup.get()?.base || JSON.stringify(base) !== JSON.stringify(baseSession)) await bases.restore(base);
  await samples.restore(data);
  recipe.set(text);
  if (automatic) takeAsMade();
  changed();
}

/** Restores the last visit. */
async function restore(): Promise<void> {
  const [session, shared] = [await loadSession(), linked()];
  if (session) {
    recipe.set(session.recipe);
    if (session.automatic) takeAsMade();
    await bases.restore(session.base);
    await samples.restore(session.data, session.pending);
  } else {
    await samples.begin();
  }
  if (shared) offerLink(shared, session !== null);
  runs.set(await keptRuns());
  checkpoint.set(await loadCheckpoint());
  const [shown, setup] = await shownRun();
  runSetup.set(setup);
  watchSetup();
  if (shown) result.set({ id: shown.id, step: shown.step, steps: shown.steps, files: await filesOfRun(shown.id) });
  runRecipe.set((await loadRunRecipe()) ?? shown?.recipe ?? null);
  training.restore();
}

async function shownRun() {
  const found = await loadResult();
  const setup = found ? (found.setup ?? null) : ((await loadRunSetup())?.setup ?? null);
  return [runs.get().find((run) => run.id === found?.id), setup] as const;
}

/** The contents of the link that opened the page. */
function linked(): Shared | null {
  try {
    return fromHash(location.hash);
  } catch {
    alertUser("This link was cut off or changed on its way, so it cannot be read; ask for it again.");
    return null;
  }
}

/** Uses base, samples and settings of a link, after a question if they would replace others. */
function offerLink(shared: Shared, asks: boolean): void {
  const { base, task, text, recipe: whole } = shared;
  const said = brings(shared);
  const use = async () => {
    history.replaceState(null, "", location.pathname + location.search);
    await bases.restore(base ? ("url" in base ? { kind: "url", url: base.url } : { kind: "file", name: base.file }) : { kind: "tiny" });
    takeAsMade();
    setName("model", "base", quote(base ? ("url" in base ? base.url : base.file) : "tiny"));
    if (text === undefined) await samples.example(task ?? "chat", shared.changes ?? []);
    else samples.usePastedText(text, shared.picked, shared.changes, shared.learn);
    if (whole !== undefined) recipe.set(whole);
    changed();
    const note = byId("link-note");
    note.replaceChildren(`From a link: ${said}.${needed(base)} `, button("Dismiss", () => note.replaceChildren(), { class: "link" }));
  };
  if (!asks) return void use().catch((error: unknown) => alertUser(words(error)));
  alertUser(`This link brings ${said}. Using them replaces those that are shown below; finished runs stay.`, { text: "Use those of the link", act: () => void use() });
}

// A link that is opened in the tab that shows the page only changes its end.
addEventListener("hashchange", () => {
  const shared = linked();
  if (shared) offerLink(shared, true);
});

const forgetAll = () => Promise.all([forgetRun(), forgetKeptRuns(), forgetSession(), forgetBases(), forgetHandles().catch(() => {})]);

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

const begin = async () => {
  owner = true;
  if (!isNative() && !(await askForStorage())) tellAbove("Nothing is kept in this window: this browser gives the page no storage here. Download what you want to keep.");
  const opened = Promise.all([openDevice(), restore()]).then(() => training.attach());
  await opened.catch((error: unknown) => alertUser(words(error)));
  await new Promise(() => {}); // until the tab is closed
};

/** Only one tab may use the storage, like one run per folder. */
if (navigator.locks) void navigator.locks.request(LOCK, { ifAvailable: true }, (lock) => (lock ? begin() : wait()));
else void begin();

if (import.meta.env.VITE_OFFLINE) offline();

// Trains from anywhere on the page.
addEventListener("keydown", (event) => {
  const start = byId<HTMLButtonElement>("start");
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !start.hidden && !start.disabled) start.click();
});
