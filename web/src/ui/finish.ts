/** The end of a run: its loss from start to end, and what to do next. */

import { button, byId, el } from "./dom";
import { decimal, duration, loss as lossOf, plural, share } from "./format";
import { changes } from "./setup";
import { phase, recipe, result, runs } from "./state";
import { getValue, setValue } from "./toml";

/** The key that sets the length of a run, with its value; `whole` is the recipe with every default. Null if neither text has it. */
function lengthOf(text: string, whole: string): { key: string; value: number } | null {
  const most = getValue(text, "train", "max_steps"); // overrides epochs
  const value = most ?? getValue(text, "train", "epochs") ?? getValue(whole, "train", "epochs");
  return value === null ? null : { key: most === null ? "epochs" : "max_steps", value: Number(value) };
}

/** Doubles the length of the run in the settings; the plan and Train follow. */
function longer(whole: string): void {
  const length = lengthOf(recipe.get(), whole);
  if (length) recipe.set(setValue(recipe.get(), "train", length.key, String(2 * length.value)));
  byId("start").focus();
}

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
  const { margin, ranked } = run.ranking ?? {};
  const said = margin ? "The higher the margin, the more it prefers the chosen answers." : "The lower the loss, the better it predicts your samples.";
  const all = run.waited ?? 0;
  const more = all > run.seconds + 2 ? `, ${duration(all)} with loading and replies` : "";
  const time = `${plural(run.steps, "step")} in ${duration(run.seconds)}${more}.`;
  const reward = run.reward;
  const measured = reward ? `Reward ${decimal(reward.before, 2)} → ${decimal(reward.after, 2)}. The higher it is, the better its answers are judged.` : `Loss ${lossOf(run.before)} → ${lossOf(run.after)}. ${said}`;
  const foot = el("p", { class: "note" }, measured);
  // Success is what the model says, not its loss.
  const same = run.replies.length > 0 && run.replies.every(({ before, after }) => before === after);
  const rises = reward && (reward.before === null || reward.after === null || reward.after > reward.before);
  const better = rises ?? (run.before === null || run.after === null || run.after < run.before);
  const good = reward ? better : run.replies.length > 0 ? !same : better;
  const words = reward
    ? better
      ? "Its answers get more reward now."
      : "Its answers get no more reward than before."
    : same
      ? "The replies have not changed: it has not learned your samples yet."
      : run.replies.length > 0
        ? "It answers differently now."
        : better
          ? "It predicts your samples better now."
          : "It does not predict your samples better than before.";
  const head = el("p", { class: "change" }, words);
  place.classList.toggle("unchanged", !good);
  const preferred = margin && el("p", { class: "change" }, el("span", {}, "Reward margin "), decimal(margin.before, 2), " → ", el("b", {}, decimal(margin.after, 2)));
  const right = ranked && el("p", { class: "note" }, `Pairs ranked right: ${share(ranked.before)} → ${share(ranked.after)}.`);
  const to = (section: string, field: string) => () => {
    byId(section).scrollIntoView({ block: "start" });
    byId(field).focus({ preventScroll: true });
  };
  const longerHelps = !good && lengthOf(recipe.get(), run.recipe) !== null;
  const talk = button("Talk to it", to("talk", "talk-input"), longerHelps ? {} : { class: "primary" });
  const next = el("div", { class: "next" }, talk, button("Keep it", to("keep", "downloads")));
  if (longerHelps) next.prepend(button("Train longer", () => longer(run.recipe), { class: "primary" }));
  place.replaceChildren(head, ...[preferred, right].filter((one) => one !== undefined), el("p", { class: "note" }, time), foot, next);
}
