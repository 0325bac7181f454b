/** Live charts of losses, learning rate and tokens per second, with text for screen readers and a table. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { el } from "./dom";
import { count, decimal, scientific } from "./format";
import type { History } from "./history";

interface Line {
  label: string;
  color: string;
  width?: number;
  dots?: boolean;
  alpha?: number;
}

interface Chart {
  figure: HTMLElement;
  draw(data: uPlot.AlignedData, words: string[]): void;
  restyle(): void;
}

/** Axis increments for steps, which are integers. */
const WHOLE = [0, 1, 2, 3, 4, 5].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));

const color = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A figure with a chart and a caption, which is the legend with the latest values. */
function chart(title: string, lines: Line[], height: number, wide: boolean, tick: (value: number) => string): Chart {
  const values = lines.map(() => el("span"));
  const legend = lines.map((line, i) => {
    const swatch = el("i");
    swatch.style.color = `var(${line.color})`;
    swatch.style.opacity = String(line.alpha ?? 1);
    values[i]!.append(swatch, line.label);
    return values[i]!;
  });
  const picture = el("div", { role: "img" });
  const figure = el("figure", wide ? { class: "wide" } : {}, el("figcaption", {}, el("b", {}, title), ...legend), picture);
  let plot: uPlot | null = null;
  let shown: uPlot.AlignedData = [[], ...lines.map(() => [])];

  const make = () => {
    plot?.destroy();
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const series = lines.map((line) => ({
      stroke: color(line.color),
      width: line.width ?? 2,
      alpha: line.alpha ?? 1,
      spanGaps: true,
      points: { show: line.dots ?? false, size: 7, fill: color(line.color) },
    }));
    const options: uPlot.Options = {
      width: Math.max(picture.clientWidth, 200),
      height,
      scales: { x: { time: false } },
      axes: [
        { ...axis, size: 28, space: 60, incrs: WHOLE },
        { ...axis, size: 52, space: 32, values: (_, ticks) => ticks.map(tick) },
      ],
      series: [{}, ...series],
      legend: { show: false },
      cursor: { show: false },
    };
    plot = new uPlot(options, shown, picture);
  };
  new ResizeObserver(() => {
    if (picture.clientWidth === 0) return;
    if (plot) plot.setSize({ width: picture.clientWidth, height });
    else make();
  }).observe(picture);

  return {
    figure,
    draw(data, words) {
      shown = data;
      plot?.setData(data);
      words.forEach((text, i) => values[i]!.replaceChildren(values[i]!.firstChild!, `${lines[i]!.label} ${text}`));
      const spoken = words.map((text, i) => `${lines[i]!.label} ${text}`.trim());
      picture.setAttribute("aria-label", `${title}: ${spoken.join(", ")}`);
    },
    restyle: make,
  };
}

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
  const rate = chart("Learning rate", [{ label: "", color: "--accent" }], 130, false, (value) => (value === 0 ? "0" : value.toExponential(0)));
  const speed = chart("Tokens/s", [{ label: "", color: "--accent" }], 130, false, (value) => count(value));
  const body = el("div");
  const table = el("details", { class: "values" }, el("summary", {}, "Show as a table"), body);
  place.append(loss.figure, rate.figure, speed.figure, table);
  const all = [loss, rate, speed];
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => all.forEach((one) => one.restyle()));

  let last: History | null = null;
  const fillTable = () => {
    if (table.open && last) body.replaceChildren(values(last));
  };
  table.addEventListener("toggle", fillTable);

  return {
    draw(history: History) {
      last = history;
      const evals = new Map(history.evals.map((point) => [point.step, point.loss]));
      const steps = new Map(history.steps.map((point) => [point.step, point]));
      const xs = [...new Set([...evals.keys(), ...steps.keys()])].sort((a, b) => a - b);
      const line = (value: (x: number) => number | null | undefined) => xs.map((x) => value(x) ?? null);
      const end = history.steps.at(-1);
      loss.draw(
        [xs, line((x) => steps.get(x)?.loss), line((x) => steps.get(x)?.smoothed), line((x) => evals.get(x))],
        [decimal(end?.loss ?? null), decimal(end?.smoothed ?? null), decimal(history.evals.at(-1)?.loss ?? null)],
      );
      rate.draw([xs, line((x) => steps.get(x)?.learning_rate)], [end ? scientific(end.learning_rate) : "—"]);
      const tokens = end?.tokens_per_second ?? null;
      speed.draw([xs, line((x) => steps.get(x)?.tokens_per_second)], [tokens === null ? "—" : count(tokens)]);
      fillTable();
    },
  };
}

/** A table of all steps, latest first. */
function values(history: History): HTMLElement {
  const evals = new Map(history.evals.map((point) => [point.step, point.loss]));
  const head = ["Step", "Loss", "Validation", "Learning rate", "Tokens/s"];
  const rows = history.steps.toReversed().map((point) => {
    const speed = point.tokens_per_second === null ? "—" : count(point.tokens_per_second);
    const cells = [String(point.step), decimal(point.loss), decimal(evals.get(point.step) ?? null), scientific(point.learning_rate), speed];
    return el("tr", {}, ...cells.map((text) => el("td", {}, text)));
  });
  const header = el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)));
  return el("div", { tabindex: "0", role: "region", "aria-label": "Values of every step" }, el("table", {}, el("thead", {}, header), el("tbody", {}, ...rows)));
}
