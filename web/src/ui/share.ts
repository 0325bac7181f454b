/** Copies a link, and says what a link brings. */

import { announce } from "./alert";
import { isAutomatic } from "./automatic";
import { baseSession } from "./base";
import { dataSession, ownRecipe, pending } from "./data";
import { byId, el } from "./dom";
import { count } from "./format";
import { toHash, type Shared } from "./link";
import { data, recipe } from "./state";
import { TASKS } from "./tasks";
import { allValues, setValue, unsetValue } from "./toml";

/** Longest link, in characters: programs that pass links on cut longer ones. */
const LONGEST = 30_000;

/** Keys that the page sets by itself, from base and samples. */
const OWN = ["model.base", "data.train", "data.fields"];

/** Applies settings of a link to a recipe. */
export function applied(text: string, changes: [string, string][]): string {
  return changes.reduce((before, [name, value]) => {
    const [section, key] = [name.slice(0, name.indexOf(".")), name.slice(name.indexOf(".") + 1)];
    return value === "" ? unsetValue(before, section, key) : setValue(before, section, key, value);
  }, text);
}

/** The settings of the recipe that differ from the page's own; null if single settings do not say it. */
function changes(): [string, string][] | null {
  if (isAutomatic()) return pending(); // whatever the base is, and before it is there
  const own = ownRecipe();
  if (own === null) return null;
  const [before, after] = [allValues(own), allValues(recipe.get())];
  const names = [...new Set([...before.keys(), ...after.keys()])].filter((name) => name.includes(".") && !OWN.includes(name));
  const found = names.filter((name) => before.get(name) !== after.get(name)).map((name): [string, string] => [name, after.get(name) ?? ""]);
  const again = allValues(applied(own, found));
  const same = [...after].every(([name, value]) => OWN.includes(name) || again.get(name) === value) && [...again.keys()].every((name) => OWN.includes(name) || after.has(name));
  return same ? found : null;
}

/** What the link would carry; a message if it cannot. */
async function contents(): Promise<Shared | string> {
  const picked = data.get();
  const found = changes();
  const shared: Shared = found === null ? { recipe: recipe.get() } : { changes: found };
  if (baseSession.kind === "url") shared.base = { url: baseSession.url };
  if (baseSession.kind === "file") shared.base = { file: baseSession.name };
  if (dataSession.kind === "task") return { ...shared, task: dataSession.task };
  if (dataSession.learn) shared.learn = dataSession.learn;
  if (picked.length !== 1) return picked.length === 0 ? "There are no samples yet." : `A link carries one file of samples, and there are ${picked.length}; send the files beside the recipe.`;
  if (dataSession.kind === "sheet") return { ...shared, text: await picked[0]!.file.text() };
  if (dataSession.kind === "pasted") return { ...shared, text: dataSession.text, ...(dataSession.picked && { picked: dataSession.picked }) };
  const { name, file } = picked[0]!;
  const text = await file.text();
  if (text.includes("\ufffd")) return `${name} is not text, and a link carries text; send the file beside the recipe.`;
  const reading = name.endsWith(".txt") ? "text" : /\.(csv|tsv|tab)$/.test(name) ? "table" : "json";
  return { ...shared, text, picked: { reading, ...(reading === "table" && { heading: true }), ...dataSession.picked } };
}

/** Copies a link with base, samples and settings, and says so beside the button. */
export async function copyLink(): Promise<void> {
  const shared = await contents();
  if (typeof shared === "string") return say(shared);
  const link = new URL(toHash(shared), location.href).href;
  if (link.length > LONGEST) {
    return say(`A link with these samples would have ${count(link.length)} characters, and up to ${count(LONGEST)} arrive unharmed; send the files beside the recipe.`);
  }
  const file = shared.base && "file" in shared.base ? ` It names ${shared.base.file}, which its reader has to pick: files on this machine do not travel.` : "";
  try {
    await navigator.clipboard.writeText(link);
    say(`Copied a link of ${count(link.length)} characters.${file}`, "good");
  } catch {
    say(`The browser does not let the page copy. The link: ${link}`);
  }
}

function say(text: string, kind: "good" | "plain" = "plain"): void {
  const place = byId("share-said") ?? el("p", { id: "share-said" });
  place.className = `notice ${kind}`;
  if (!place.isConnected) byId("downloads").append(place);
  place.textContent = text;
  announce(text);
}

const MOST_SAID = 3; // settings

/** What a link brings, in words. */
export function brings({ task, text, learn, base, changes: settings = [], recipe: whole }: Shared): string {
  const parts: string[] = [];
  if (base) parts.push("url" in base ? `the model ${base.url.split("/").at(-1)}` : `the model ${base.file}`);
  if (task !== undefined) parts.push(`the example “${TASKS[task]?.title ?? task}”`);
  if (text !== undefined) parts.push(`samples of ${count(text.length)} characters`);
  if (learn) parts.push(`the reward “${learn.reward}”`);
  const said = settings.slice(0, MOST_SAID).map(([name, value]) => `${name.replace(/^.*\./, "").replaceAll("_", " ")} ${value === "" ? "as usual" : value}`);
  if (settings.length > MOST_SAID) said.push(`${settings.length - MOST_SAID} more settings`);
  parts.push(...(whole === undefined ? said : ["a recipe"]));
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
}

/** The next step that a link asks for, if its model is not here. */
export function needed(base: Shared["base"]): string {
  if (!base) return "";
  return "url" in base ? ` This link uses ${base.url.split("/").at(-1)}: download it in the settings, then train.` : ` Pick ${base.file} in the settings, then train.`;
}
