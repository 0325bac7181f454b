/** The best and the worst completions of the last step, with their rewards. */

import "./tried.css";
import type { Completion } from "../api/index";
import { byId, el } from "./dom";

/** Completions of a step, best first. */
export interface Tried {
  step: number;
  best: Completion[];
  worst: Completion[];
}

const short = (value: number) => String(Number(value.toPrecision(3)));

function card({ prompt, completion, finished, reward, rewards }: Completion): HTMLElement {
  const each = Object.entries(rewards).map(([name, value]) => `${name} ${value === null ? "not judged" : short(value)}`);
  const parts = each.length > 1 ? ` (${each.join(", ")})` : "";
  const note = `reward ${reward === null ? "none" : short(reward)}${parts}${finished ? "" : ", cut"}`;
  return el("li", {}, el("p", { class: "question" }, prompt), el("p", { class: "words" }, completion === "" ? "(nothing)" : completion), el("small", {}, note));
}

/** Shows the completions; hides their place without any. */
export function showTried(tried: Tried | null): void {
  byId("tried-box").hidden = tried === null;
  if (tried === null || byId("tried").dataset["step"] === String(tried.step)) return;
  byId("tried").dataset["step"] = String(tried.step);
  byId("tried-step").textContent = `Completions of step ${tried.step}`;
  const list = (title: string, kind: string, all: Completion[]) =>
    el("div", { class: kind }, el("h3", {}, title), el("ol", { "aria-label": `${title} completions` }, ...all.map(card)));
  const none = el("p", { class: "note" }, "All of them were alike, so there is no best and no worst.");
  byId("tried").replaceChildren(...(tried.best.length === 0 ? [none] : [list("Best", "best", tried.best), list("Worst", "worst", tried.worst)]));
}
