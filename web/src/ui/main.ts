/** The page: restores the last visit and connects the sections. */

import { forgetRun, loadCheckpoint, loadResult, loadRunRecipe } from "../storage/checkpoints";
import { forgetSession, loadSession, saveSession } from "../storage/session";
import { alertUser, words } from "./alert";
import { baseSection, baseSession } from "./base";
import { dataSection, dataSession } from "./data";
import { openDevice } from "./device";
import { byId } from "./dom";
import { importSection } from "./import";
import { keepSection } from "./keep";
import { checkSoon, planSection } from "./plan";
import { recipeSection } from "./recipe";
import { checkpoint, recipe, result, runRecipe, trainer } from "./state";
import { talkSection } from "./talk";
import { trainingSection } from "./training";

let saving = 0;

/** Saves the setup after a short time without changes. */
function saveSoon(): void {
  clearTimeout(saving);
  saving = window.setTimeout(() => {
    saveSession({ base: baseSession, data: dataSession, recipe: recipe.get() }).catch((error: unknown) =>
      alertUser(`The recipe could not be saved in this browser: ${words(error)}. Download it before you leave the page.`),
    );
  }, 300);
}

function changed(): void {
  saveSoon();
  checkSoon();
}

const bases = baseSection(changed);
const samples = dataSection(changed);
planSection();
recipeSection(changed);
const training = trainingSection();
importSection(training.restore, changed);
talkSection();
keepSection();
trainer.watch((opened) => opened && checkSoon());

/** Restores the last visit. */
async function restore(): Promise<void> {
  const session = await loadSession();
  if (session) {
    recipe.set(session.recipe);
    bases.restore(session.base);
    await samples.restore(session.data);
  } else {
    await samples.begin();
  }
  checkpoint.set(await loadCheckpoint());
  result.set(await loadResult());
  runRecipe.set(await loadRunRecipe());
  training.restore();
}

byId("forget").addEventListener("click", () => {
  if (!confirm("Delete recipe, samples, checkpoints and adapter from this browser?")) return;
  void Promise.all([forgetRun(), forgetSession()]).then(() => location.reload());
});

/** Only one tab may use the storage, like one run per folder. */
void navigator.locks.request("rullama-train", { ifAvailable: true }, async (lock) => {
  if (!lock) {
    alertUser("This page is open in another tab, which uses the saved runs. Close that tab, then reload this one.");
    byId("start").hidden = true;
    return;
  }
  await Promise.all([openDevice(), restore()]).catch((error: unknown) => alertUser(words(error)));
  await new Promise(() => {}); // until the tab is closed
});
