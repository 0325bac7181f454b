/** A run of the program, and its events in the form of the page's API. */

import type { Run } from "../index";
import { TrainError } from "../errors";
import type { Check, Completion, Event, FileEntry, Scores } from "../types";
import { measured } from "../../ui/rewards";
import { bytes, escaped, request, resumed } from "./http";

/** The file in a checkpoint that names the run whose folder holds it. The page keeps no moments of the optimizer. */
export const MARK = "native.json";

/** The run that was followed last. */
export const followed: { name: string | undefined } = { name: undefined };

/** Files of a checkpoint that the page gets. */
const KEPT = ["adapter_model.safetensors", "adapter_config.json", "metrics.jsonl", "timing.jsonl", "trainer_state.json"];

/** The events of `rullama-train --json`, and those of `ui`: `check` before and `exit` after them. */
type Line =
  | ({ event: "check"; run: string } & Check)
  | { event: "start"; resumed_at: number }
  | (Omit<Extract<Event, { event: "step" }>, "smoothed" | "rewards"> & { smoothed_loss: number | null })
  | { event: "completions"; step: number; best: Drawn[]; worst: Drawn[] }
  | ({ event: "evaluation"; step: number; best: boolean; replies?: { prompt: string; reply: string }[] } & Partial<Scores> & Partial<Ranking>)
  | { event: "notice"; step: number; notice: string }
  | Extract<Event, { event: "phase" | "loading" }>
  | { event: "checkpoint"; step: number }
  | { event: "paused" | "resumed" | "stopped"; step: number }
  | { event: "finished"; step: number; adapter_of_step: number; seconds: number }
  | { event: "exit"; problem: string | null; refused: boolean; finished: boolean; adapter: string[]; files: string[] };

/** A completion, whose prompt is as in its record: text or messages. */
type Drawn = Omit<Completion, "prompt"> & { prompt: unknown };

const drawn = ({ prompt, ...rest }: Drawn): Completion => ({ ...rest, prompt: typeof prompt === "string" ? prompt : JSON.stringify(prompt) });

/** The measurements of an evaluation that compares answers. */
type Ranking = Pick<Extract<Event, { event: "eval" }>, "eval_rewards/margins" | "eval_rewards/accuracies">;

/** The run that `start` starts or finds, once it is iterated. */
export function follow(start: () => Promise<unknown>): Run {
  let last: FileEntry[] | undefined;
  let ended = false;
  let waiting: { resolve: (files: FileEntry[]) => void; reject: (error: unknown) => void }[] = [];
  const none = () => new TrainError("the run ended before its first step; there is no checkpoint");
  const command = (word: string) => void request("POST", "run/command", { command: word }).catch(() => {});

  async function* events(): AsyncGenerator<Event> {
    let failure: unknown;
    try {
      await start();
      const state: State = { run: "", plan: null, step: 0, adapterOf: 0, seconds: 0 };
      for await (const line of resumed<Line>((from) => `run/events/${from}`, ({ event }) => event === "exit")) {
        for (const event of await translate(line, state)) {
          if (event.event === "checkpoint") {
            last = event.files;
            waiting.splice(0).forEach(({ resolve }) => resolve(event.files));
          }
          yield event;
        }
      }
    } catch (error) {
      failure = error;
      throw error;
    } finally {
      ended = true;
      const files = last;
      waiting.splice(0).forEach(({ resolve, reject }) => (files ? resolve(files) : reject(failure ?? none())));
    }
  }

  let iterator: AsyncGenerator<Event> | undefined;
  return {
    [Symbol.asyncIterator]: () => (iterator ??= events()),
    pause: () => command("pause"),
    resume: () => command("resume"),
    stop: () => command("stop"),
    checkpoint() {
      if (ended) return last ? Promise.resolve(last) : Promise.reject(none());
      command("checkpoint");
      return new Promise((resolve, reject) => waiting.push({ resolve, reject }));
    },
  };
}

/** What later events need of earlier ones. */
interface State {
  run: string;
  plan: Check | null;
  step: number;
  adapterOf: number;
  seconds: number;
}

/** The events that a line of the program stands for. */
async function translate(line: Line, state: State): Promise<Event[]> {
  switch (line.event) {
    case "check": {
      const { event: _, run, ...plan } = line;
      [state.run, state.plan] = [run, plan];
      followed.name = run;
      return [];
    }
    case "start":
      state.step = line.resumed_at;
      return [{ event: "plan", resumed_at: line.resumed_at, ...state.plan! }];
    case "step": {
      const { smoothed_loss: smoothed, ...step } = line;
      state.step = step.step;
      state.seconds += step.seconds;
      const ranking = { "rewards/margins": step["rewards/margins"] ?? null, "rewards/accuracies": step["rewards/accuracies"] ?? null };
      return [{ ...step, ...ranking, rewards: measured(step), smoothed, skipped: step.skipped ?? false }];
    }
    case "completions": {
      const { step, best, worst } = line;
      return [{ event: "completions", step, best: best.map(drawn), worst: worst.map(drawn) }];
    }
    case "evaluation": {
      const { step, best, replies = [], eval_loss, eval_perplexity, eval_accuracy, eval_tokens } = line;
      const scores = eval_loss === undefined ? null : ({ eval_loss, eval_perplexity, eval_accuracy, eval_tokens } as Scores);
      const ranking = { "eval_rewards/margins": line["eval_rewards/margins"] ?? null, "eval_rewards/accuracies": line["eval_rewards/accuracies"] ?? null };
      return [{ event: "eval", step, scores, best, ...ranking, rewards: measured(line) }, ...replies.map((reply): Event => ({ event: "sample", step, ...reply }))];
    }
    case "phase":
    case "loading":
    case "notice":
    case "paused":
    case "resumed":
      return [line as Event];
    case "checkpoint": {
      const files = await saved(state.run, line.step);
      return files ? [{ event: "checkpoint", step: line.step, files }] : [];
    }
    case "finished":
      [state.step, state.adapterOf] = [line.step, line.adapter_of_step];
      return [];
    case "exit":
      return [await done(line, state)];
    default:
      return [];
  }
}

/** The files of a checkpoint; null if the program has removed it since. */
async function saved(run: string, step: number): Promise<FileEntry[] | null> {
  const folder = `checkpoint-${step}`;
  try {
    const files = KEPT.map(async (name) => ({ path: `${folder}/${name}`, bytes: await bytes(`runs/${escaped(run)}/${folder}/${name}`) }));
    const mark = { path: `${folder}/${MARK}`, bytes: new TextEncoder().encode(JSON.stringify({ run })) };
    return [...(await Promise.all(files)), mark];
  } catch {
    return null;
  }
}

async function done(exit: Extract<Line, { event: "exit" }>, state: State): Promise<Event> {
  if (exit.problem !== null && !exit.refused) throw new TrainError(exit.problem);
  const read = (path: string) => bytes(`runs/${escaped(state.run)}/${escaped(path)}`);
  const name = (path: string) => path.slice(path.lastIndexOf("/") + 1);
  const adapter = await Promise.all(exit.adapter.map(async (path) => ({ path: name(path), bytes: await read(path) })));
  const over = exit.finished || exit.refused;
  const files = over ? await Promise.all(exit.files.map(async (path) => ({ path, bytes: await read(path) }))) : [];
  return {
    event: "done",
    step: state.step,
    adapter_of_step: state.adapterOf || state.step,
    stopped: !over,
    refused: exit.refused ? exit.problem : null,
    adapter: adapter.length > 0 ? adapter : null,
    files,
    seconds: state.seconds,
  };
}
