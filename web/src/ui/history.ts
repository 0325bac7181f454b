/** The measurements of a run, from its events or from the `metrics.jsonl` and `timing.jsonl` of a checkpoint. */

import type { Event, FileEntry } from "../api/index";

export interface StepPoint {
  step: number;
  loss: number | null;
  smoothed: number | null;
  learning_rate: number;
  grad_norm: number | null;
  tokens_per_second: number | null;
}

export interface History {
  steps: StepPoint[];
  evals: { step: number; loss: number }[];
  replies: { step: number; prompt: string; reply: string }[];
  notices: { step: number; notice: string }[];
}

export const emptyHistory = (): History => ({ steps: [], evals: [], replies: [], notices: [] });

/** Adds an event to the history. */
export function record(history: History, event: Event): void {
  if (event.event === "step") history.steps.push(event);
  else if (event.event === "sample") history.replies.push(event);
  else if (event.event === "notice") history.notices.push(event);
  else if (event.event === "eval" && event.scores) history.evals.push({ step: event.step, loss: event.scores.eval_loss });
}

/** A line of `metrics.jsonl`. */
type Line =
  | { event: "step"; step: number; loss: number | null; grad_norm: number | null; learning_rate: number }
  | { event: "evaluation"; step: number; eval_loss?: number; replies?: { prompt: string; reply: string }[] }
  | { event: "notice"; step: number; notice: string };

const SMOOTHING = 0.9; // as in src/run/metrics.rs

/** The history in the files of a checkpoint. */
export function replay(files: FileEntry[]): History {
  const lines = <T>(name: string): T[] => {
    const file = files.find((entry) => entry.path.endsWith(name));
    const text = new TextDecoder().decode(file?.bytes);
    return text.split("\n").filter((line) => line !== "").map((line) => JSON.parse(line) as T);
  };
  const timing = lines<{ step: number; tokens_per_second: number }>("timing.jsonl");
  const speeds = new Map(timing.map((line) => [line.step, line.tokens_per_second]));
  const history = emptyHistory();
  let smoothed: number | null = null;
  for (const line of lines<Line>("metrics.jsonl")) {
    if (line.event === "step") {
      if (line.loss !== null) smoothed = smoothed === null ? line.loss : SMOOTHING * smoothed + (1 - SMOOTHING) * line.loss;
      history.steps.push({ ...line, smoothed, tokens_per_second: speeds.get(line.step) ?? null });
    } else if (line.event === "notice") {
      history.notices.push(line);
    } else {
      if (line.eval_loss !== undefined) history.evals.push({ step: line.step, loss: line.eval_loss });
      for (const { prompt, reply } of line.replies ?? []) history.replies.push({ step: line.step, prompt, reply });
    }
  }
  return history;
}
