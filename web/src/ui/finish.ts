/** The end of a run: its loss from start to end, and what to do next. */

import { button, byId, el } from "./dom";
import { decimal, duration, share } from "./format";
import { result, runs } from "./state";

/** Shows the finished run, if one is shown. */
export function showFinish(): void {
  const id = result.get()?.id;
  const run = runs.get().find((one) => one.id === id);
  const place = byId("finish");
  place.hidden = run === undefined;
  byId("progress").hidden ||= run !== undefined;
  if (!run) return place.replaceChildren();
  const loss = el("p", { class: "change" }, el("span", {}, "Loss "), decimal(run.before, 2), " → ", el("b", {}, decimal(run.after, 2)));
  const { margin, ranked } = run.ranking ?? {};
  const said = margin ? "The higher the margin, the more it prefers the chosen answers." : "The lower the loss, the better it predicts your samples.";
  const time = `Trained in ${duration(run.seconds)}, ${run.steps} steps. ${said}`;
  const preferred = margin && el("p", { class: "change" }, el("span", {}, "Reward margin "), decimal(margin.before, 2), " → ", el("b", {}, decimal(margin.after, 2)));
  const right = ranked && el("p", { class: "note" }, `Pairs ranked right: ${share(ranked.before)} → ${share(ranked.after)}.`);
  const to = (section: string, field: string) => () => {
    byId(section).scrollIntoView({ block: "start" });
    byId(field).focus({ preventScroll: true });
  };
  const next = el("div", { class: "next" }, button("Talk to it", to("talk", "talk-input"), { class: "primary" }), button("Keep it", to("keep", "downloads")));
  place.replaceChildren(loss, ...[preferred, right].filter((one) => one !== undefined), el("p", { class: "note" }, time), next);
}
