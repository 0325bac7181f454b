/** Links that carry a recipe and its samples behind the `#`, which browsers do not send to servers. */

import { deflateSync, inflateSync, strFromU8, strToU8 } from "fflate";
import { alertUser, announce } from "./alert";
import { dataSession } from "./data";
import { count } from "./format";
import { data, recipe } from "./state";

/** Longest link, in characters: programs that pass links on cut longer ones. */
const LONGEST = 30_000;

/** The contents of a link: an example, or the text of the samples. */
export interface Shared {
  recipe: string;
  task?: string;
  text?: string;
}

const encode = (bytes: Uint8Array) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");

const decode = (text: string) => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));

/** The part of a link behind `#`. */
export const toHash = (shared: Shared) => `#r=${encode(deflateSync(strToU8(JSON.stringify(shared)), { level: 9 }))}`;

/** The contents of a link; null if it has none. Fails if it was cut off. */
export function fromHash(hash: string): Shared | null {
  const packed = /^#r=([\w-]+)$/.exec(hash)?.[1];
  if (!packed) return null;
  const found: unknown = JSON.parse(strFromU8(inflateSync(decode(packed))));
  const { recipe, task, text } = found as Record<string, unknown>;
  if (typeof recipe !== "string") throw new Error("no recipe");
  return { recipe, ...(typeof task === "string" && { task }), ...(typeof text === "string" && { text }) };
}

/** Copies a link with the recipe and the samples. */
export async function copyLink(): Promise<void> {
  const shared: Shared = { recipe: recipe.get() };
  if (dataSession.kind === "task") shared.task = dataSession.task;
  else if (data.get().length === 1) shared.text = await data.get()[0]!.file.text();
  else return alertUser(`A link carries one file of samples, and there are ${data.get().length}; send the files beside the recipe.`);
  const link = new URL(toHash(shared), location.href).href;
  if (link.length > LONGEST) {
    return alertUser(`A link with these samples would have ${count(link.length)} characters, and up to ${count(LONGEST)} arrive unharmed; send the files beside the recipe.`);
  }
  try {
    await navigator.clipboard.writeText(link);
    announce("Copied the link.");
    alertUser(`Copied a link of ${count(link.length)} characters.`);
  } catch {
    alertUser(`The browser does not let the page copy. The link: ${link}`);
  }
}
