/** State that the sections of the page share. */

import type { Base, Check, Data, Reader, Samples, Trainer } from "../api/index";
import type { KeptRun } from "../storage/runs";
import type { Saved } from "../storage/checkpoints";
import { Cell } from "./cell";

/** In `starting`, `pausing` and `stopping` the page waits for the worker. */
export type Phase = "idle" | "starting" | "training" | "pausing" | "paused" | "stopping";

/** Null while no GPU is open. */
export const trainer = new Cell<Trainer | null>(null);
/** Reads samples where no GPU can be opened. */
export const reader = new Cell<Reader | null>(null);
/** Null until a file or URL is picked. */
export const base = new Cell<Base | null>({ kind: "tiny" });
export const data = new Cell<Data>([]);
export const recipe = new Cell("");
/** The samples as the engine reads them, or why it cannot. */
export const table = new Cell<Samples | Error | null>(null);
/** Result of checking the recipe with the base and the samples, or the error. */
export const checked = new Cell<Check | Error | null>(null);
/** Whether something changed since that check. */
export const stale = new Cell(true);
export const phase = new Cell<Phase>("idle");
/** The latest checkpoint in storage. */
export const checkpoint = new Cell<Saved | null>(null);
/** The adapter and report of the finished run that is shown. */
export const result = new Cell<(Saved & { id: string }) | null>(null);

/** The kept runs, latest first. */
export const runs = new Cell<KeptRun[]>([]);
/** The recipe of the saved run, with all defaults filled in. */
export const runRecipe = new Cell<string | null>(null);

/** Whether base, samples and recipe may be changed. */
export const isFree = (now: Phase) => now === "idle";

/** The adapter for chat and downloads: that of the finished run, or of the latest checkpoint. */
export const adapter = (): Saved | null => result.get() ?? checkpoint.get();
