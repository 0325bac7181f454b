/** Before and after: each question with its first and its last reply. */

import { bubbles } from "./bubbles";
import { el, byId } from "./dom";
import type { History } from "./history";
import { changes } from "./setup";
import { phase, recipe, result } from "./state";
import { getValue, readList } from "./toml";

/** A question with its replies; null for one that is not there yet. */
export interface Exchange {
  prompt: string;
  before: string | null;
  after: string | null;
}

/** The questions of a run with their first and last replies. */
export function exchanges(history: History): Exchange[] {
  const prompts = [...new Set(history.replies.map((reply) => reply.prompt))];
  return prompts.map((prompt) => {
    const answers = history.replies.filter((reply) => reply.prompt === prompt);
    const [first, last] = [answers[0]!, answers.at(-1)!];
    return { prompt, before: first.step === 0 || last.step > first.step ? first.reply : null, after: last.step > 0 ? last.reply : null };
  });
}

/** The questions of the recipe, before there are replies. */
function planned(): Exchange[] {
  const prompts = readList(getValue(recipe.get(), "eval", "samples") ?? "[]") ?? [];
  return prompts.map((prompt) => ({ prompt, before: null, after: null }));
}

/** Shows the exchanges of a run, or the questions of the recipe without one. */
export function showHero(history: History | null): void {
  const old = phase.get() === "idle" && result.get() !== null && changes.get().length > 0; // of other samples or settings
  const found = history && history.replies.length > 0 && !old ? exchanges(history) : planned();
  const place = byId("replies");
  const busy = phase.get() !== "idle";
  list ??= { show: bubbles(place), notices: place.appendChild(el("div")) };
  list.show(found, busy);
  const notices = (history?.notices ?? []).map(({ step, notice }) => el("p", { class: "note" }, `Step ${step}: ${notice}`));
  list.notices.replaceChildren(...notices);
  place.hidden = found.length === 0 && notices.length === 0;
}

let list: { show: ReturnType<typeof bubbles>; notices: HTMLElement } | undefined;
