/** Base, samples and settings as one, and whether they are still those of the run that is shown. */

import type { Session } from "../storage/session";
import { baseSession } from "./base";
import { Cell } from "./cell";
import { dataSession } from "./data";
import { base, data, recipe } from "./state";
import { allValues } from "./toml";

/** Digests of the parts. */
export interface Setup {
  base: string;
  samples: string;
  settings: string;
}

/** The setup of the run that is shown; null if none is, or if nobody knows. */
export const runSetup = new Cell<Setup | null>(null);

/** Parts that have changed since that run. */
export const changes = new Cell<(keyof Setup)[]>([]);

/** A digest of a text, 53 bits (cyrb53, public domain). */
function digest(text: string): string {
  let [a, b] = [0xdeadbeef, 0x41c6ce57];
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    a = Math.imul(a ^ code, 2654435761);
    b = Math.imul(b ^ code, 1597334677);
  }
  a = Math.imul(a ^ (a >>> 16), 2246822507) ^ Math.imul(b ^ (b >>> 13), 3266489909);
  b = Math.imul(b ^ (b >>> 16), 2246822507) ^ Math.imul(a ^ (a >>> 13), 3266489909);
  return (4294967296 * (2097151 & b) + (a >>> 0)).toString(36);
}

/** The samples in a few words: files by name and size. */
function samples(session: Session["data"]): string {
  const sizes = data.get().map(({ name, file }) => [name, file.size]);
  return JSON.stringify(session.kind === "files" ? [session, sizes] : session);
}

/** The setup as it is now. */
export function setupNow(): Setup {
  const values = [...allValues(recipe.get())].filter(([key]) => key !== "data.train" && key !== "model.base");
  return { base: digest(JSON.stringify(baseSession)), samples: digest(samples(dataSession)), settings: digest(JSON.stringify(values)) };
}

/** Keeps `changes` true. */
export function watchSetup(): void {
  const update = () => {
    const [before, now] = [runSetup.get(), setupNow()];
    const parts = before ? (["base", "samples", "settings"] as const).filter((part) => before[part] !== now[part]) : [];
    if (parts.join() !== changes.get().join()) changes.set(parts);
  };
  for (const cell of [base, data, recipe, runSetup]) cell.watch(update);
}

const WORDS: Record<keyof Setup, string> = { base: "base model", samples: "samples", settings: "settings" };

/** `The samples and the settings have changed` */
export function changed(parts: (keyof Setup)[]): string {
  const names = parts.map((part) => WORDS[part]);
  const last = names.at(-1)!;
  const all = names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${last}` : last;
  return `The ${all} ${names.length > 1 || last.endsWith("s") ? "have" : "has"} changed`;
}
