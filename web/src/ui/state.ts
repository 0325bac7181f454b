/** What the parts of the page share. */

import type { Base, Check, Data, Trainer } from "../api/index";
import type { Saved } from "../storage/checkpoints";
import { Cell } from "./cell";

/** `starting`, `pausing` and `stopping` wait for the worker. */
export type Phase = "idle" | "starting" | "training" | "pausing" | "paused" | "stopping";

/** Null until the device is open, and after it was lost. */
export const trainer = new Cell<Trainer | null>(null);
/** Null where a file or an address is still to be picked. */
export const base = new Cell<Base | null>({ kind: "tiny" });
export const data = new Cell<Data>([]);
export const recipe = new Cell("");
/** What the recipe comes to with this base and these samples, or why it comes to nothing. */
export const checked = new Cell<Check | Error | null>(null);
/** Whether something changed since. */
export const stale = new Cell(true);
export const phase = new Cell<Phase>("idle");
/** The last checkpoint in storage. */
export const checkpoint = new Cell<Saved | null>(null);
/** The adapter of a finished run. */
export const result = new Cell<Saved | null>(null);

/** The recipe of the run that was saved, with every default in it. */
export const runRecipe = new Cell<string | null>(null);

/** Whether base, samples and recipe may change. */
export const isFree = (now: Phase) => now === "idle";

/** The adapter to talk with and to download: the finished one, else that of the last checkpoint. */
export const adapter = (): Saved | null => result.get() ?? checkpoint.get();
