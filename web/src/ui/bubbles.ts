/** Questions with their answers before and after, as bubbles. */

import { el } from "./dom";
import type { Exchange } from "./hero";
import { fresh, type } from "./typing";

/** Answers of a model whose tokens spell the letters in bytes, some of which are missing. */
const BROKEN = /\uFFFD/;

interface Bubble {
  box: HTMLElement;
  /** Shows an answer, or why there is none. */
  set(text: string | null, before: string | null, later: string): void;
}

function bubble(name: string, kind: string): Bubble {
  const words = el("span", { class: "words" });
  const box = el("div", { class: `bubble ${kind}` }, el("b", {}, name), words);
  let shown: string | null | undefined;
  return {
    box,
    set(text, before, later) {
      const key = text ?? `later ${later}`;
      if (shown === key) return;
      const first = shown === undefined;
      shown = key;
      box.classList.toggle("later", text === null);
      const parts = text === "" ? [{ text: "(nothing)", fresh: false }] : before === null ? [{ text: text ?? later, fresh: false }] : fresh(before, text ?? later);
      type(words, parts, text !== null && !first);
    },
  };
}

/** Starts a list of exchanges in `place`, which keeps what has not changed. */
export function bubbles(place: HTMLElement): (found: Exchange[], busy: boolean) => void {
  const list = el("ol", { class: "exchanges" });
  const plan = el("p", { class: "note" });
  const broken = el("p", { class: "note" }, "“�” stands for bytes that are no letters: this base spells emoji and rare letters in bytes, and small bases often miss some.");
  place.append(plan, list, broken);
  const known = new Map<string, { row: HTMLElement; before: Bubble; after: Bubble }>();
  return (found, busy) => {
    const asked = busy || found.some(({ before, after }) => before !== null || after !== null);
    plan.textContent = asked || found.length === 0 ? "" : `It answers ${found.map(({ prompt }) => `“${prompt}”`).join(", ")} before and after.`;
    list.hidden = !asked;
    broken.hidden = !found.some(({ before, after }) => BROKEN.test(`${before}${after}`));
    if (!asked) known.clear();
    const rows = (asked ? found : []).map(({ prompt, before, after }) => {
      let one = known.get(prompt);
      if (!one) {
        const [first, last] = [bubble("Before", "before"), bubble("After", "after")];
        one = { before: first, after: last, row: el("li", {}, el("p", { class: "question" }, prompt), el("div", { class: "pair" }, first.box, last.box)) };
        known.set(prompt, one);
      }
      one.before.set(before, null, busy ? "soon …" : "not asked");
      one.after.set(after, before, busy ? "after training …" : "not asked");
      return one.row;
    });
    const same = rows.length === list.children.length && rows.every((row, i) => list.children[i] === row);
    if (!same) list.replaceChildren(...rows);
    for (const prompt of [...known.keys()]) if (!found.some((one) => one.prompt === prompt)) known.delete(prompt);
  };
}
