/** Line charts as SVG, which take their colours from the page. */

import { el } from "./dom";

/** One line of a chart. `color`: a custom property of the page. */
export interface Stroke {
  color: string;
  width?: number;
  alpha?: number;
  /** Marks every value, for lines with few of them. */
  dots?: boolean;
}

/** Values of one line; null: none at this step. */
export type Series = (number | null)[];

interface Options {
  height: number;
  tick: (value: number) => string;
  /** Called with the index of the step at the pointer; null after it has left. */
  at?: (index: number | null) => void;
}

const [LEFT, RIGHT, TOP, BOTTOM] = [52, 10, 8, 22]; // pixels around the lines
const [ACROSS, DOWN] = [70, 34]; // least pixels between labels
const NAMES = "http://www.w3.org/2000/svg";

function shape(name: string, attributes: Record<string, string | number>, text = ""): SVGElement {
  const made = document.createElementNS(NAMES, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.textContent = text;
  return made;
}

/** Round numbers from `low` to `high`, at most `most` of them; whole ones on request. */
export function ticks(low: number, high: number, most: number, whole = false): number[] {
  const least = (high - low) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(least));
  const found = [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least * 0.999) ?? 10 * power;
  const step = whole ? Math.max(1, Math.round(found)) : found;
  const from = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(high / step + 1e-9) - from + 1) }, (_, i) => Number(((from + i) * step).toPrecision(12)));
}

/** The range of the values, a little wider. */
function range(lines: Series[]): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const line of lines) {
    for (const value of line) {
      if (value === null || !Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return [0, 1];
  const room = high > low ? 0.06 * (high - low) : 0.1 * Math.abs(high) || 1;
  return [low >= 0 && low < room ? 0 : low - room, high + room];
}

/** A picture of `strokes`; it is drawn anew when its width changes. */
export function plot(strokes: Stroke[], { height, tick, at }: Options) {
  const picture = el("div", { role: "img", class: "plot" });
  let shown: { steps: number[]; lines: Series[]; last: number } = { steps: [], lines: [], last: 1 };
  let pointer: SVGElement | null = null;

  const x = (step: number) => LEFT + (step / shown.last) * (picture.clientWidth - LEFT - RIGHT);
  const draw = () => {
    const width = picture.clientWidth;
    if (width === 0 || shown.steps.length === 0) return picture.replaceChildren();
    const { steps, lines, last } = shown;
    const [low, high] = range(lines);
    const y = (value: number) => TOP + ((high - value) / (high - low)) * (height - TOP - BOTTOM);
    const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const value of ticks(low, high, (height - TOP - BOTTOM) / DOWN)) {
      svg.append(shape("path", { class: "grid", d: `M${LEFT} ${y(value)}H${width - RIGHT}` }));
      svg.append(shape("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, tick(value)));
    }
    for (const step of ticks(0, last, (width - LEFT - RIGHT) / ACROSS, true)) {
      svg.append(shape("path", { class: "grid", d: `M${x(step)} ${TOP}V${height - BOTTOM}` }));
      svg.append(shape("text", { x: x(step), y: height - 5, "text-anchor": "middle" }, String(step)));
    }
    lines.forEach((line, i) => {
      const points = line.flatMap((value, j) => (value !== null && Number.isFinite(value) ? [[x(steps[j]!).toFixed(1), y(value).toFixed(1)]] : []));
      const { color, width = 2, alpha = 1, dots = false } = strokes[i]!;
      const one = shape("g", { opacity: alpha });
      one.style.color = `var(${color})`; // an attribute would be an inline style, which a published page refuses
      // A line of one value has no length, so it is a dot.
      one.append(shape("path", { class: "line", "stroke-width": width, d: points.length > 0 ? `M${points.map((point) => point.join(" ")).join("L")}` : "" }));
      if (dots || points.length === 1) for (const [cx, cy] of points) one.append(shape("circle", { cx: cx!, cy: cy!, r: 3.5 }));
      svg.append(one);
    });
    pointer = shape("path", { class: "pointer" });
    svg.append(pointer);
    picture.replaceChildren(svg);
  };
  new ResizeObserver(draw).observe(picture);

  const leave = () => {
    pointer?.setAttribute("d", "");
    at?.(null);
  };
  if (at) {
    picture.addEventListener("pointermove", (event) => {
      const { steps, last } = shown;
      if (steps.length === 0) return;
      const box = picture.getBoundingClientRect();
      const step = ((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)) * last;
      const near = steps.reduce((best, one, i) => (Math.abs(one - step) < Math.abs(steps[best]! - step) ? i : best), 0);
      pointer?.setAttribute("d", `M${x(steps[near]!)} ${TOP}V${height - BOTTOM}`);
      at(near);
    });
    picture.addEventListener("pointerleave", leave);
  }

  return {
    picture,
    /** Draws values of `steps`, from 0 to step `last` at least. */
    draw(steps: number[], lines: Series[], last = 1) {
      shown = { steps, lines, last: Math.max(last, steps.at(-1) ?? 1, 1) };
      draw();
    },
  };
}
