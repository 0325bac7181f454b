/** Charts of runs that learn from rewards: the reward, each reward where there are several, and the length of completions. */

import { chart, type Chart } from "./chart";
import { decimal, percent } from "./format";
import type { History } from "./history";
import { learns, rewardNames } from "./rewards";
import type { Series } from "./plot";

const COLORS = ["--accent", "--second", "--third", "--muted"];

const both = [
  { label: "training", color: "--accent" },
  { label: "validation", color: "--second", dots: true },
];

const short = (value: number) => String(Number(value.toPrecision(3)));

/** Adds the charts to `place`. */
export function rewardCharts(place: HTMLElement) {
  const reward = chart("Reward", both, 220, true, short);
  const length = chart("Tokens of a completion", both, 130, false, short);
  const idle = chart("Completions", [{ label: "cut", color: "--second" }, { label: "equal rewards", color: "--accent" }], 130, false, percent);
  place.append(reward.figure, length.figure, idle.figure);
  let each: Chart | null = null;
  let known = "";
  const everyReward = (names: string[]) => {
    if (names.join() === known) return;
    known = names.join();
    each?.figure.remove();
    each = names.length < 2 ? null : chart("Each reward", names.slice(0, COLORS.length).map((label, i) => ({ label, color: COLORS[i]! })), 130, true, short);
    if (each) reward.figure.after(each.figure);
  };

  return {
    /** Draws the history of a run of `all` steps. Returns whether it learns from rewards. */
    draw(history: History, all: number): boolean {
      const shown = learns(history);
      for (const one of [reward, length, idle]) one.figure.hidden = !shown;
      everyReward(shown ? rewardNames(history) : []);
      if (!shown) return false;
      const evals = new Map(history.evals.map((point) => [point.step, point.rewards]));
      const steps = new Map(history.steps.map((point) => [point.step, point.rewards]));
      const xs = [...new Set([...evals.keys(), ...steps.keys()])].sort((a, b) => a - b);
      const line = (points: typeof steps, name: string): Series => xs.map((x) => points.get(x)?.[name] ?? null);
      const last = (points: typeof steps, name: string) => [...points.values()].at(-1)?.[name] ?? null;
      const pair = (one: Chart, name: string, digits: number) =>
        one.draw(xs, [line(steps, name), line(evals, name)], [last(steps, name), last(evals, name)].map((value) => decimal(value, digits)), all);
      pair(reward, "reward", 3);
      pair(length, "completions/mean_length", 1);
      const parts = ["completions/clipped_ratio", "frac_reward_zero_std"];
      idle.draw(xs, parts.map((name) => line(steps, name)), parts.map((name) => (last(steps, name) === null ? "—" : percent(last(steps, name)!))), all);
      const names = rewardNames(history).slice(0, COLORS.length).map((name) => `rewards/${name}/mean`);
      each?.draw(xs, names.map((name) => line(steps, name)), names.map((name) => decimal(last(steps, name), 3)), all);
      return true;
    },
  };
}
