/** What a link carries behind its `#`, which browsers do not send to servers: base, samples, and the settings that differ from the page's own. */

import { deflateSync, inflateSync, strFromU8, strToU8 } from "fflate";
import type { Picked } from "./columns";
import type { Learning } from "./learn";

/** The contents of a link. */
export interface Shared {
  /** An example, or the text of the samples. */
  task?: string;
  text?: string;
  /** How the text is read. */
  picked?: Picked;
  /** The reward that it is learnt from, instead of its answers. */
  learn?: Learning;
  /** A model at a URL, or the name of a file; the included one if neither is there. */
  base?: { url: string } | { file: string };
  /** `section.key` and the value as TOML; an empty value removes the key. */
  changes?: [string, string][];
  /** The whole recipe, where single settings do not say it. */
  recipe?: string;
}

const encode = (bytes: Uint8Array) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");

const decode = (text: string) => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));

const pack = (text: string) => encode(deflateSync(strToU8(text), { level: 9 }));

const unpack = (text: string) => strFromU8(inflateSync(decode(text)));

/** Two characters that tell a link that was cut off. */
function check(text: string): string {
  let sum = 7;
  for (const char of text) sum = (31 * sum + char.codePointAt(0)!) % 1296;
  return sum.toString(36).padStart(2, "0");
}

const CHECK = /&c=(\w\w)$/;

/** The part of a link behind `#`. */
export function toHash({ task, text, picked, learn, base, changes = [], recipe }: Shared): string {
  const parts: [string, string][] = [];
  if (task !== undefined) parts.push(["t", task]);
  if (base) parts.push("url" in base ? ["b", base.url] : ["f", base.file]);
  parts.push(...changes);
  if (picked && Object.keys(picked).length > 0) parts.push(["p", JSON.stringify(picked)]);
  if (learn) parts.push(["l", JSON.stringify(learn)]);
  if (recipe !== undefined) parts.push(["recipe", pack(recipe)]);
  if (text !== undefined) parts.push(["x", pack(text)]);
  // Slashes, colons, commas and quotes may stay as they are.
  const body = parts.map(([key, value]) => `${key}=${encodeURIComponent(value).replace(/%(2F|3A|2C|40)/g, (code) => decodeURIComponent(code))}`).join("&");
  return `#${body}&c=${check(body)}`;
}

/** The contents of a link; null if it has none. Fails if it was cut off. */
export function fromHash(hash: string): Shared | null {
  const whole = hash.replace(/^#/, "");
  if (/^r=/.test(whole)) return old(whole.slice(2));
  if (!/^[tbfplx]=|^recipe=|^[a-z]+\.[a-z_]+=/.test(whole)) return null;
  const body = whole.replace(CHECK, "");
  if (CHECK.exec(whole)?.[1] !== check(body)) throw new Error("the link was cut off");
  const shared: Shared = { changes: [] };
  for (const part of body.split("&")) {
    const at = part.indexOf("=");
    const [key, value] = [part.slice(0, at), decodeURIComponent(part.slice(at + 1))];
    if (key === "t") shared.task = value;
    else if (key === "b") shared.base = { url: value };
    else if (key === "f") shared.base = { file: value };
    else if (key === "p") shared.picked = JSON.parse(value) as Picked;
    else if (key === "l") shared.learn = JSON.parse(value) as Learning;
    else if (key === "recipe") shared.recipe = unpack(value);
    else if (key === "x") shared.text = unpack(value);
    else shared.changes!.push([key, value]);
  }
  return shared;
}

/** A link of earlier pages: recipe, and example or text. */
function old(packed: string): Shared {
  const { recipe, task, text } = JSON.parse(unpack(packed)) as Record<string, unknown>;
  if (typeof recipe !== "string") throw new Error("no recipe");
  return { recipe, ...(typeof task === "string" && { task }), ...(typeof text === "string" && { text }) };
}
