/** Live charts of losses, learning rate and tokens per second, with text for screen readers and a table. */

import { chart } from "./chart";
import { el } from "./dom";
import { count, decimal, percent, scientific, share } from "./format";
import { compares, type History } from "./history";
import { rewardCharts } from "./reward-charts";
import { learns } from "./rewards";

/** Adds the charts to `place`. */
export function charts(place: HTMLElement) {
  const loss = chart(
    "Loss",
    [
      { label: "training", color: "--accent", width: 1, alpha: 0.6 },
      { label: "smoothed", color: "--accent" },
      { label: "validation", color: "--second", dots: true },
    ],
    220,
    true,
    (value) => String(Number(value.toPrecision(3))),
  );
  const rate = chart("Learning rate", [{ label: "", color: "--accent" }], 130, false, (value) => (value === 0 ? "0" : Number(value.toPrecision(2)).toExponential()));
  const speed = chart("Tokens/s", [{ label: "", color: "--accent" }], 130, false, (value) => count(value));
  const both = [
    { label: "training", color: "--accent" },
    { label: "validation", color: "--second", dots: true },
  ];
  const margin = chart("Reward margin", both, 130, false, (value) => String(Number(value.toPrecision(3))));
  const ranked = chart("Pairs ranked right", both, 130, false, percent);
  const body = el("div");
  const table = el("details", { class: "values" }, el("summary", {}, "Show as a table"), body);
  place.append(loss.figure);
  const rewards = rewardCharts(place); // which take its place
  place.append(...[margin, ranked, rate, speed].map((one) => one.figure), table);

  let last: History | null = null;
  const values = valuesTable();
  body.append(values.element);
  const fillTable = () => {
    if (table.open && last) values.fill(last);
  };
  table.addEventListener("toggle", fillTable);

  return {
    /** Draws the history of a run of `all` steps. */
    draw(history: History, all: number) {
      last = history;
      const evals = new Map(history.evals.map((point) => [point.step, point]));
      const steps = new Map(history.steps.map((point) => [point.step, point]));
      const xs = [...new Set([...evals.keys(), ...steps.keys()])].sort((a, b) => a - b);
      const line = (value: (x: number) => number | null | undefined) => xs.map((x) => value(x) ?? null);
      const end = history.steps.at(-1);
      loss.draw(
        xs,
        [line((x) => steps.get(x)?.loss), line((x) => steps.get(x)?.smoothed), line((x) => evals.get(x)?.loss)],
        [decimal(end?.loss ?? null), decimal(end?.smoothed ?? null), decimal(history.evals.at(-1)?.loss ?? null)],
        all,
      );
      loss.figure.hidden = rewards.draw(history, all); // which says nothing about progress then
      for (const one of [margin, ranked]) one.figure.hidden = !compares(history);
      if (compares(history)) {
        const [first, second] = ["rewards/margins", "rewards/accuracies"] as const;
        const tested = history.evals.at(-1);
        margin.draw(
          xs,
          [line((x) => steps.get(x)?.[first]), line((x) => evals.get(x)?.margin)],
          [decimal(end?.[first] ?? null, 2), decimal(tested?.margin ?? null, 2)],
          all,
        );
        ranked.draw(xs, [line((x) => steps.get(x)?.[second]), line((x) => evals.get(x)?.ranked)], [share(end?.[second]), share(tested?.ranked)], all);
      }
      rate.draw(xs, [line((x) => steps.get(x)?.learning_rate)], [end ? scientific(end.learning_rate) : "—"], all);
      const tokens = end?.tokens_per_second ?? null;
      speed.draw(xs, [line((x) => steps.get(x)?.tokens_per_second)], [tokens === null ? "—" : count(tokens)], all);
      fillTable();
    },
  };
}

/** A table of all steps, latest first. New steps are added without a change to the others, so that it can be read during a run. */
function valuesTable() {
  const head = ["Step", "Loss", "Validation", "Accuracy", "Gradient norm", "Learning rate", "Tokens/s"];
  const header = el("tr");
  const rows = el("tbody");
  let known: History | null = null;
  let filled = 0;
  let ranks: boolean | null = null;
  let tries = false;
  const row = (history: History, point: History["steps"][number]) => {
    const validation = history.evals.find((one) => one.step === point.step)?.loss ?? null;
    const speed = point.tokens_per_second === null ? "—" : count(point.tokens_per_second);
    const cells = [String(point.step), decimal(point.loss), decimal(validation), share(point.accuracy), decimal(point.grad_norm), scientific(point.learning_rate), speed];
    if (tries) cells.splice(1, 0, decimal(point.rewards?.["reward"] ?? null, 3), decimal(history.evals.find((one) => one.step === point.step)?.rewards?.["reward"] ?? null, 3));
    if (ranks) cells.push(decimal(point["rewards/margins"] ?? null), share(point["rewards/accuracies"]));
    return el("tr", {}, ...cells.map((text) => el("td", {}, text)));
  };
  return {
    element: el("div", { tabindex: "0", role: "region", "aria-label": "Values of every step" }, el("table", {}, el("thead", {}, header), rows)),
    fill(history: History) {
      if (history !== known || compares(history) !== ranks || learns(history) !== tries) {
        [known, filled, ranks, tries] = [history, 0, compares(history), learns(history)];
        const [step, ...others] = ranks ? [...head, "Reward margin", "Ranked right"] : head;
        const names = [step!, ...(tries ? ["Reward", "Validation reward"] : []), ...others];
        header.replaceChildren(...names.map((text) => el("th", { scope: "col" }, text)));
        rows.replaceChildren();
      }
      for (const point of history.steps.slice(filled)) rows.prepend(row(history, point));
      filled = history.steps.length;
      // The evaluation of a step arrives after the step.
      const last = history.evals.at(-1);
      const at = last && [...rows.rows].find((one) => one.cells[0]!.textContent === String(last.step));
      if (!last || !at) return;
      if (tries) at.cells[2]!.textContent = decimal(last.rewards?.["reward"] ?? null, 3);
      at.cells[tries ? 4 : 2]!.textContent = decimal(last.loss);
    },
  };
}
