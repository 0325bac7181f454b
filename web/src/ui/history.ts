/** The measurements of a run, from its events or from the `metrics.jsonl` and `timing.jsonl` of a checkpoint. */

import type { Event, FileEntry } from "../api/index";
import type { Change } from "../storage/runs";
import { measured, type Measured } from "./rewards";
import type { Tried } from "./tried";

export interface StepPoint {
  step: number;
  loss: number | null;
  smoothed: number | null;
  accuracy?: number | null;
  learning_rate: number;
  grad_norm: number | null;
  tokens_per_second: number | null;
  /** For objectives that compare answers: reward of the chosen less that of the rejected ones, and fraction of pairs ranked right. */
  "rewards/margins"?: number | null;
  "rewards/accuracies"?: number | null;
  /** For objectives that learn from rewards: measurements of completions. */
  rewards?: Measured;
}

export interface EvalPoint {
  step: number;
  /** Null where the samples are prompts, which have no loss. */
  loss: number | null;
  rewards?: Measured;
  margin: number | null;
  ranked: number | null;
}

export interface History {
  steps: StepPoint[];
  evals: EvalPoint[];
  replies: { step: number; prompt: string; reply: string }[];
  notices: { step: number; notice: string }[];
  /** The best and the worst completions of the last step; they are in no file. */
  tried: Tried | null;
}

export const emptyHistory = (): History => ({ steps: [], evals: [], replies: [], notices: [], tried: null });

/** Adds an event to the history. */
export function record(history: History, event: Event): void {
  if (event.event === "step") history.steps.push(event);
  else if (event.event === "sample") history.replies.push(event);
  else if (event.event === "notice") history.notices.push(event);
  else if (event.event === "completions") history.tried = event;
  else if (event.event === "eval") take(history, evaluation(event.step, event.scores?.eval_loss ?? null, event, event.rewards));
}

/** Measurements of an evaluation that compares answers, under TRL's names. */
interface Ranking {
  "eval_rewards/margins"?: number | null;
  "eval_rewards/accuracies"?: number | null;
}

function evaluation(step: number, loss: number | null, ranking: Ranking, rewards: object): EvalPoint {
  return { step, loss, margin: ranking["eval_rewards/margins"] ?? null, ranked: ranking["eval_rewards/accuracies"] ?? null, rewards: measured(rewards) };
}

/** Adds an evaluation that measured something. */
function take(history: History, point: EvalPoint): void {
  if (point.loss !== null || point.rewards?.["reward"] !== undefined) history.evals.push(point);
}

/** Whether the run compares answers. */
export const compares = ({ steps }: History) => steps.some((point) => point["rewards/margins"] != null);

/** The margin of the rewards and the fraction of pairs ranked right, of the validation, or of the training without one. */
export function ranking(history: History): { margin: Change; ranked: Change } | undefined {
  const { evals, steps } = history;
  if (!compares(history)) return undefined;
  const ends = <T>(points: T[], value: (point: T) => number | null | undefined): Change => ({
    before: points[0] === undefined ? null : (value(points[0]) ?? null),
    after: points.length === 0 ? null : (value(points.at(-1)!) ?? null),
  });
  if (evals.length > 1) return { margin: ends(evals, (point) => point.margin), ranked: ends(evals, (point) => point.ranked) };
  return { margin: ends(steps, (point) => point["rewards/margins"]), ranked: ends(steps, (point) => point["rewards/accuracies"]) };
}

/** Loss at the start and at the end: of the validation, or of the training without one. */
export function change({ evals, steps }: History): Change {
  const losses = evals.flatMap(({ loss }) => loss ?? []);
  if (losses.length > 1) return { before: losses[0]!, after: Math.min(...losses) };
  return { before: steps[0]?.loss ?? null, after: steps.at(-1)?.smoothed ?? null };
}

/** A line of `metrics.jsonl`. */
type Line =
  | ({ event: "step" } & Omit<StepPoint, "smoothed" | "tokens_per_second">)
  | ({ event: "evaluation"; step: number; eval_loss?: number; replies?: { prompt: string; reply: string }[] } & Ranking)
  | { event: "notice"; step: number; notice: string };

const SMOOTHING = 0.9; // as in src/run/metrics/history.rs

/** The next smoothed loss after `count` losses: the weight of the past grows with the run, so that a short one ends near its last loss. */
function smooth(before: number | null, count: number, loss: number): number {
  const weight = Math.min(SMOOTHING, (1 + count) / (10 + count));
  return before === null ? loss : weight * before + (1 - weight) * loss;
}

/** The history in the files of a checkpoint, up to step `until`. */
export function replay(files: FileEntry[], until = Infinity): History {
  const lines = <T>(name: string): T[] => {
    const file = files.find((entry) => entry.path.endsWith(name));
    const text = new TextDecoder().decode(file?.bytes);
    return text.split("\n").filter((line) => line !== "").map((line) => JSON.parse(line) as T);
  };
  const timing = lines<{ step: number; tokens_per_second: number }>("timing.jsonl");
  const speeds = new Map(timing.map((line) => [line.step, line.tokens_per_second]));
  const history = emptyHistory();
  let smoothed: number | null = null;
  let losses = 0;
  for (const line of lines<Line>("metrics.jsonl")) {
    if (line.step > until) break;
    if (line.event === "step") {
      if (line.loss !== null) smoothed = smooth(smoothed, losses++, line.loss);
      history.steps.push({ ...line, rewards: measured(line), smoothed, tokens_per_second: speeds.get(line.step) ?? null });
    } else if (line.event === "notice") {
      history.notices.push(line);
    } else {
      take(history, evaluation(line.step, line.eval_loss ?? null, line, line));
      for (const { prompt, reply } of line.replies ?? []) history.replies.push({ step: line.step, prompt, reply });
    }
  }
  return history;
}
