/** The end of a run: its loss from start to end, and what to do next. */

import { button, byId, el } from "./dom";
import { decimal, duration, loss as lossOf, plural, share } from "./format";
import { changes } from "./setup";
import { phase, result, runs } from "./state";

/** Shows the finished run, if one is shown. */
export function showFinish(): void {
  const id = result.get()?.id;
  const run = runs.get().find((one) => one.id === id);
  const place = byId("finish");
  const moved = changes.get().length > 0;
  place.hidden = run === undefined || moved;
  if (phase.get() === "idle") byId("charts-box").classList.toggle("old", moved);
  byId("progress").hidden ||= run !== undefined;
  if (!run || moved) return place.replaceChildren();
  const loss = el("p", { class: "change" }, el("span", {}, "Loss "), lossOf(run.before), " → ", el("b", {}, lossOf(run.after)));
  const { margin, ranked } = run.ranking ?? {};
  const said = margin ? "The higher the margin, the more it prefers the chosen answers." : "The lower the loss, the better it predicts your samples.";
  const all = run.waited ?? 0;
  const more = all > run.seconds + 2 ? `, ${duration(all)} with loading and replies` : "";
  const time = `${plural(run.steps, "step")} in ${duration(run.seconds)}${more}. ${said}`;
  // Success is what the model says, not its loss.
  const same = run.replies.length > 0 && run.replies.every(({ before, after }) => before === after);
  const unchanged = same && el("p", { class: "change" }, "The replies have not changed: it has not learned your samples yet. Train it longer: raise the epochs in the settings.");
  place.classList.toggle("unchanged", same);
  const preferred = margin && el("p", { class: "change" }, el("span", {}, "Reward margin "), decimal(margin.before, 2), " → ", el("b", {}, decimal(margin.after, 2)));
  const right = ranked && el("p", { class: "note" }, `Pairs ranked right: ${share(ranked.before)} → ${share(ranked.after)}.`);
  const to = (section: string, field: string) => () => {
    byId(section).scrollIntoView({ block: "start" });
    byId(field).focus({ preventScroll: true });
  };
  const next = el("div", { class: "next" }, button("Talk to it", to("talk", "talk-input"), { class: "primary" }), button("Keep it", to("keep", "downloads")));
  place.replaceChildren(...(unchanged ? [unchanged] : []), loss, ...[preferred, right].filter((one) => one !== undefined), el("p", { class: "note" }, time), next);
}
