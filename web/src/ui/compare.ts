/** Runs side by side: the settings in which they differ, their losses and their replies. */

import type { KeptRun } from "../storage/runs";
import { el } from "./dom";
import { decimal, duration, loss, share } from "./format";
import { plot } from "./plot";
import { allValues } from "./toml";

const COLORS = ["--accent", "--second", "--third", "--muted"];

/** At most as many runs as there are colors can be compared. */
export const MOST = COLORS.length;

/** `section.key` and value of every setting in a resolved recipe. */
const settings = allValues;

/** The name of a run in sentences. */
export const titleOf = (run: KeptRun) => run.name ?? `${run.samples} on ${run.base}, ${new Date(run.ended).toLocaleString([], { dateStyle: "medium", timeStyle: "short" })}`;

/** Settings that say little about a run. */
const SILENT = /^(output|device|model\.fingerprint|data\.train$)/;
const MOST_DIFFERENCES = 3;

/** The settings in which a run differs from the one before it, in words. */
export function differences(run: KeptRun, all: KeptRun[]): string[] {
  const older = all[all.findIndex(({ id }) => id === run.id) + 1];
  if (!older) return [];
  const [mine, other] = [settings(run.recipe), settings(older.recipe)];
  const keys = [...mine.keys()].filter((key) => mine.get(key) !== other.get(key) && !SILENT.test(key) && mine.get(key)!.length < 20);
  return keys.slice(0, MOST_DIFFERENCES).map((key) => `${key.replace(/^.*\./, "").replaceAll("_", " ")} ${mine.get(key)}`);
}

/** The comparison of several runs. */
export function comparison(runs: KeptRun[]): HTMLElement {
  const all = runs.map((run) => settings(run.recipe));
  const keys = [...new Set(all.flatMap((one) => [...one.keys()]))];
  const different = keys.filter((key) => new Set(all.map((one) => one.get(key))).size > 1);
  const row = (name: string, cells: string[]) => el("tr", {}, el("th", { scope: "row" }, name), ...cells.map((text) => el("td", {}, text)));
  const heads = runs.map((run, i) => {
    const swatch = el("i", { class: "swatch" });
    swatch.style.background = `var(${COLORS[i]})`;
    return el("th", { scope: "col" }, swatch, titleOf(run));
  });
  const said = (run: KeptRun) => [...run.replies, ...(run.chats ?? [])];
  const prompts = [...new Set(runs.flatMap((run) => said(run).map(({ prompt }) => prompt)))];
  const answer = (run: KeptRun, prompt: string) => said(run).find((one) => one.prompt === prompt)?.after ?? "—";
  const body = el(
    "tbody",
    {},
    ...(runs.every(({ reward }) => reward) ? [] : [row("Loss", runs.map((run) => (run.reward ? "—" : `${loss(run.before)} → ${loss(run.after)}`)))]),
    ...(runs.some((run) => run.ranking)
      ? [
          row("Reward margin", runs.map(({ ranking }) => (ranking ? `${decimal(ranking.margin.before, 2)} → ${decimal(ranking.margin.after, 2)}` : "—"))),
          row("Pairs ranked right", runs.map(({ ranking }) => (ranking ? `${share(ranking.ranked.before)} → ${share(ranking.ranked.after)}` : "—"))),
        ]
      : []),
    ...(runs.some((run) => run.reward) ? [row("Reward", runs.map(({ reward }) => (reward ? `${decimal(reward.before, 2)} → ${decimal(reward.after, 2)}` : "—")))] : []),
    row("Steps", runs.map((run) => String(run.steps))),
    row("Time", runs.map((run) => duration(run.seconds))),
    ...different.map((key) => row(key, all.map((one) => one.get(key) ?? "—"))),
    ...prompts.map((prompt) => row(prompt, runs.map((run) => answer(run, prompt)))),
  );
  const table = el("table", {}, el("thead", {}, el("tr", {}, el("td", {}), ...heads)), body);
  const box = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs side by side" }, table);
  return el("div", {}, el("h3", {}, "Side by side"), picture(runs), box);
}

/** The rewards of all runs in one chart, or their losses where not all have rewards. */
function picture(runs: KeptRun[]): HTMLElement {
  const learn = runs.every(({ rewards }) => rewards);
  const values = (run: KeptRun) => (learn ? run.rewards! : run.rewards ? [] : run.losses);
  const steps = [...new Set(runs.flatMap((run) => values(run).map(([step]) => step)))].sort((a, b) => a - b);
  const lines = runs.map((run) => {
    const known = new Map(values(run));
    return steps.map((step) => known.get(step) ?? null);
  });
  const { picture, draw } = plot(
    runs.map((_, i) => ({ color: COLORS[i]! })),
    { height: 180, tick: (value) => String(Number(value.toPrecision(3))) },
  );
  picture.setAttribute("aria-label", `${learn ? "Rewards" : "Losses"}: ${runs.map((run) => `${titleOf(run)}: ${learn ? decimal(run.reward?.after ?? null, 2) : decimal(run.reward ? null : run.after)}`).join("; ")}`);
  draw(steps, lines);
  return picture;
}
