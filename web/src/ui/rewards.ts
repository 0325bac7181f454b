/** Measurements of completions, for runs that learn from rewards. */

import type { Change } from "../storage/runs";
import type { History } from "./history";

/** TRL's names, without `eval_` in front. */
const NAMES = /^(?:reward|reward_std|frac_reward_zero_std|rewards\/.+\/(?:mean|std)|completions\/.+)$/;

export type Measured = Record<string, number>;

/** The measurements of completions among the keys of a step or an evaluation, without `eval_` in front. */
export function measured(line: object): Measured {
  const found: Measured = {};
  for (const [key, value] of Object.entries(line)) {
    const name = key.replace(/^eval_/, "");
    if (typeof value === "number" && NAMES.test(name)) found[name] = value;
  }
  return found;
}

/** Whether the run learns from rewards. */
export const learns = ({ steps, evals }: History) => steps.some(({ rewards }) => rewards?.["reward"] !== undefined) || evals.some(({ rewards }) => rewards?.["reward"] !== undefined);

/** The mean reward of the completions of each step. */
export const rewardsByStep = ({ steps }: History) => steps.flatMap(({ step, rewards }) => (rewards?.["reward"] === undefined ? [] : [[step, rewards["reward"]] as [number, number]]));

/** The names of its rewards, in their order. */
export function rewardNames({ steps }: History): string[] {
  const names = Object.keys(steps.at(-1)?.rewards ?? {});
  return names.flatMap((name) => /^rewards\/(.+)\/mean$/.exec(name)?.[1] ?? []);
}

/** The reward at the start and the best after it: of the validation prompts, or of the completions of the steps without any. */
export function rewardChange(history: History): Change | undefined {
  if (!learns(history)) return undefined;
  const of = (points: { rewards?: Measured }[]) => points.flatMap(({ rewards }) => rewards?.["reward"] ?? []);
  const [tested, drawn] = [of(history.evals), of(history.steps)];
  if (tested.length > 1) return { before: tested[0]!, after: Math.max(...tested.slice(1)) };
  return { before: drawn[0] ?? null, after: drawn.at(-1) ?? null };
}
