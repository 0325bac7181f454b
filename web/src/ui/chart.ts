/** A chart with its legend, and with text for screen readers. */

import { el } from "./dom";
import { plot, type Series, type Stroke } from "./plot";

/** A line with its name. */
export interface Line extends Stroke {
  label: string;
}

/** A figure that is drawn anew as the run goes on. */
export interface Chart {
  figure: HTMLElement;
  draw(steps: number[], lines: Series[], words: string[], last: number): void;
}

/** A figure with a chart and a caption, which is the legend with the latest values. */
export function chart(title: string, lines: Line[], height: number, wide: boolean, tick: (value: number) => string): Chart {
  const values = lines.map(() => el("span"));
  const legend = lines.map((line, i) => {
    const swatch = el("i");
    swatch.style.color = `var(${line.color})`;
    swatch.style.opacity = String(line.alpha ?? 1);
    values[i]!.append(swatch, line.label);
    return values[i]!;
  });
  let [steps, drawn, spoken]: [number[], Series[], string[]] = [[], [], []];
  const legends = (texts: string[]) => texts.forEach((text, i) => values[i]!.replaceChildren(values[i]!.firstChild!, `${lines[i]!.label} ${text}`));
  /** Shows the values at the pointer, or the latest ones. */
  const at = (index: number | null) => {
    if (index === null) return legends(spoken);
    const here = drawn.map((line) => line[index]);
    legends(here.map((value, i) => (value == null ? "—" : `${tick(value)}${i === 0 ? ` at step ${steps[index]}` : ""}`)));
  };
  const { picture, draw } = plot(lines, { height, tick, at });
  const figure = el("figure", wide ? { class: "wide" } : {}, el("figcaption", {}, el("b", {}, title), ...legend), picture);
  return {
    figure,
    draw(xs, ys, words, last) {
      [steps, drawn, spoken] = [xs, ys, words];
      draw(xs, ys, last);
      legends(words);
      const described = words.map((text, i) => `${lines[i]!.label} ${text}`.trim());
      picture.setAttribute("aria-label", `${title}: ${described.join(", ")}`);
    },
  };
}
