/** How long a run takes: what it computes, at the speed of earlier runs of the same base on this device. */

import type { Check } from "../api/index";
import { base, trainer } from "./state";

/** Tokens of training per second, how much longer an evaluation takes than its tokens suggest, and the size of the base. */
interface Speed {
  rate: number;
  evaluations: number;
  weights?: number;
}

/** How long a run takes, and what that is taken from: the same base on this device, another one, or the included base on devices of this kind. */
export type Estimate = { seconds: number; from: "base" | "other" } | { seconds: number; most: number; from: "kind" };

/** A device that trains the included base: seconds until its kernels are compiled, and tokens of training per second after that. */
interface Device {
  start: number;
  rate: number;
}

/** A fast and a slow device of each kind. Whole runs of the example on two cores took what 25 tokens per second take under load, and 60 to 110 otherwise; GPUs were not measured in a browser. */
const KINDS: Record<"processor" | "gpu", [Device, Device]> = {
  processor: [{ start: 8, rate: 300 }, { start: 25, rate: 40 }],
  gpu: [{ start: 3, rate: 3000 }, { start: 20, rate: 120 }],
};

const KEY = "rullama-train-speed";
const MOST_SPEEDS = 20;

const device = () => `${trainer.get()?.gpu.name}: `;

function place(): string {
  const model = base.get();
  const name = model?.kind === "file" ? `${model.file.name} ${model.file.size}` : model?.kind === "url" ? model.url : model?.kind === "named" ? model.name : "tiny";
  return `${device()}${name}`;
}

function speeds(): Record<string, Speed> {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "{}") as Record<string, Speed>;
  } catch {
    return {}; // not allowed, or not ours
  }
}

/** Number of weights of a base, by its description; null if that does not say it. */
function weights({ base }: Check): number | null {
  const [layers, width, vocab] = [/(\d[\d\s]*) layers/, /width (\d[\d\s]*)/, /vocabulary (\d[\d\s]*)/].map((pattern) => Number(pattern.exec(base)?.[1]?.replace(/\s/g, "")));
  const found = 12 * layers! * width! ** 2 + vocab! * width!;
  return found > 0 ? found : null;
}

/** Runs that draw completions have speeds of their own: most of their time is not training. */
const DRAWING = ", with completions";
const kindOf = ({ tries }: Check) => (tries === null ? "" : DRAWING);

/** Notes the speed of a run: its tokens, the seconds of its steps, and those of its evaluations. */
export function noteSpeed(check: Check | null, tokens: number, seconds: number, evaluations: { seconds: number; count: number }): void {
  if (!check?.work || tokens === 0 || seconds === 0) return;
  const { work } = check;
  const rate = tokens / seconds;
  const expected = (evaluations.count * work.evaluation_tokens) / rate;
  const own = place() + kindOf(check);
  const others = Object.entries(speeds()).filter(([key]) => key !== own);
  const mine: Speed = { rate, evaluations: expected > 0 ? evaluations.seconds / expected : 1, weights: weights(check) ?? 0 };
  const all = Object.fromEntries([...others, [own, mine]].slice(-MOST_SPEEDS));
  try {
    localStorage.setItem(KEY, JSON.stringify(all));
  } catch {
    // the next run measures again
  }
}

/**
 * How long the run will take, by the speed of this base on this device, or else of the last other one. If neither is known, a range for
 * the included base, and null for others.
 */
export function estimate(check: Check): Estimate | null {
  const [all, size, { work }] = [speeds(), weights(check), check];
  const [kind, draws] = [kindOf(check), (key: string) => key.endsWith(DRAWING)];
  const same = all[place() + kind];
  const other = Object.entries(all).findLast(([key, { weights }]) => key.startsWith(device()) && weights && draws(key) === (kind !== ""))?.[1];
  const speed = same ?? (size === null ? undefined : other);
  if (!work) return null;
  const tokens = (evaluations: number) => work.tokens + work.evaluations * work.evaluation_tokens * evaluations;
  if (speed) {
    const factor = same ? 1 : size! / speed.weights!;
    return { seconds: (factor * tokens(speed.evaluations)) / speed.rate, from: same ? "base" : "other" };
  }
  const gpu = trainer.get()?.gpu;
  if (!gpu || base.get()?.kind !== "tiny" || kind !== "") return null;
  const [seconds, most] = KINDS[gpu.software ? "processor" : "gpu"].map(({ start, rate }) => start + tokens(1) / rate) as [number, number];
  return { seconds, most, from: "kind" };
}

/** The time in words: `about 45 s`, or `25 s to 3 min`. */
export function timeOf(time: Estimate): string {
  return time.from === "kind" ? `${rounded(5 * Math.ceil(time.seconds / 5))} to ${rounded(5 * Math.ceil(time.most / 5))}` : about(time.seconds);
}

/** Number of evaluations after the first `done` of `steps` steps, one every `every` steps and one after the last, as in src/run/pace.rs. */
export function evaluationsAfter(done: number, every: number, steps: number): number {
  const until = (step: number) => (every > 0 ? Math.floor(step / every) : 0);
  return done < steps ? 1 + until(steps - 1) - until(done) : 0;
}

/** A rounded duration: `about 45 s`, `about 13 min`, `about 3 h 05 min`. */
export const about = (s: number) => `about ${rounded(s)}`;

function rounded(s: number): string {
  if (s < 60) return `${Math.max(1, Math.round(s))} s`;
  if (s < 3600) return `${Math.ceil(s / 60)} min`;
  return `${Math.floor(s / 3600)} h ${String(Math.floor((s / 60) % 60)).padStart(2, "0")} min`;
}
