/** Names of runs. */

import type { KeptRun } from "../storage/runs";
import { getValue } from "./toml";

/** A name that no other run has: `pirate, rank 16 (2)`. */
export function uniqueName(name: string, others: KeptRun[]): string {
  const taken = new Set(others.map((run) => run.name));
  for (let number = 1; ; number++) {
    const one = number === 1 ? name : `${name} (${number})`;
    if (!taken.has(one)) return one;
  }
}

/** The name of a new run: its samples and its rank. */
export function newName(run: KeptRun, others: KeptRun[]): string {
  const samples = run.samples.split(", ").map((name) => name.replace(/\.[^.]*$/, "")).join(", ");
  const rank = getValue(run.recipe, "lora", "rank");
  return uniqueName(`${samples || "run"}${rank === null ? "" : `, rank ${rank}`}`, others);
}
