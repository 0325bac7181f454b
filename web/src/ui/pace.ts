/** How long a run takes: what it computes, at the speed of earlier runs of the same base on this device. */

import type { Check } from "../api/index";
import { base, trainer } from "./state";

/** Tokens of training per second, and how much longer an evaluation takes than its tokens suggest. */
interface Speed {
  rate: number;
  evaluations: number;
}

const KEY = "rullama-train-speed";
const MOST_SPEEDS = 20;

function place(): string {
  const model = base.get();
  const name = model?.kind === "file" ? `${model.file.name} ${model.file.size}` : model?.kind === "url" ? model.url : model?.kind === "named" ? model.name : "tiny";
  return `${trainer.get()?.gpu.name}: ${name}`;
}

function speeds(): Record<string, Speed> {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "{}") as Record<string, Speed>;
  } catch {
    return {}; // not allowed, or not ours
  }
}

/** Notes the speed of a run: its tokens, the seconds of its steps, and those of its evaluations. */
export function noteSpeed(work: Check["work"] | undefined, tokens: number, seconds: number, evaluations: { seconds: number; count: number }): void {
  if (!work || tokens === 0 || seconds === 0) return;
  const rate = tokens / seconds;
  const expected = (evaluations.count * work.evaluation_tokens) / rate;
  const others = Object.entries(speeds()).filter(([key]) => key !== place());
  const all = Object.fromEntries([...others, [place(), { rate, evaluations: expected > 0 ? evaluations.seconds / expected : 1 }]].slice(-MOST_SPEEDS));
  try {
    localStorage.setItem(KEY, JSON.stringify(all));
  } catch {
    // the next run measures again
  }
}

/** Seconds that the run will take; null before the first run of this base on this device. */
export function seconds({ work }: Check): number | null {
  const speed = speeds()[place()];
  if (!work || !speed) return null;
  return (work.tokens + work.evaluations * work.evaluation_tokens * speed.evaluations) / speed.rate;
}

/** Number of evaluations after the first `done` of `steps` steps, one every `every` steps and one after the last, as in src/run/pace.rs. */
export function evaluationsAfter(done: number, every: number, steps: number): number {
  const until = (step: number) => (every > 0 ? Math.floor(step / every) : 0);
  return done < steps ? 1 + until(steps - 1) - until(done) : 0;
}

/** A rounded duration: `about 45 s`, `about 13 min`, `about 3 h 05 min`. */
export function about(s: number): string {
  if (s < 60) return `about ${Math.max(1, Math.round(s))} s`;
  if (s < 3600) return `about ${Math.ceil(s / 60)} min`;
  return `about ${Math.floor(s / 3600)} h ${String(Math.floor((s / 60) % 60)).padStart(2, "0")} min`;
}
