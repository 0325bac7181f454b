/** Text that types itself, with its new words marked. */

import { el } from "./dom";

/** Part of a text, and whether it is new. */
interface Part {
  text: string;
  fresh: boolean;
}

/** The words of `after`, those that `before` does not have in this order being new. */
export function fresh(before: string, after: string): Part[] {
  const [old, now] = [before.split(/(\s+)/), after.split(/(\s+)/)];
  const longest = old.map(() => new Array<number>(now.length + 1).fill(0));
  longest.push(new Array<number>(now.length + 1).fill(0));
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      longest[i]![j] = old[i] === now[j] ? longest[i + 1]![j + 1]! + 1 : Math.max(longest[i + 1]![j]!, longest[i]![j + 1]!);
    }
  }
  const parts: Part[] = [];
  for (let i = 0, j = 0; j < now.length; ) {
    const same = i < old.length && old[i] === now[j];
    if (!same && i < old.length && longest[i + 1]![j]! >= longest[i]![j + 1]!) {
      i++;
      continue;
    }
    const last = parts.at(-1);
    const isNew = !same && now[j]!.trim() !== "";
    if (last && (last.fresh === isNew || now[j]!.trim() === "")) last.text += now[j];
    else parts.push({ text: now[j]!, fresh: isNew });
    if (same) i++;
    j++;
  }
  return parts;
}

const PER_SECOND = 45; // characters
const LONGEST = 1500; // ms

const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches || document.hidden;

/** Shows `parts` in `place`, character by character where motion is welcome. */
export function type(place: HTMLElement, parts: Part[], moves = true): void {
  const all = parts.reduce((sum, { text }) => sum + text.length, 0);
  const show = (shown: number) => {
    let left = shown;
    const pieces = parts.map(({ text, fresh }) => {
      const part = text.slice(0, Math.max(left, 0));
      left -= text.length;
      return fresh && part !== "" ? el("mark", {}, part) : part;
    });
    place.replaceChildren(...pieces);
  };
  if (!moves || still()) return show(all);
  const time = Math.min((all / PER_SECOND) * 1000, LONGEST);
  const began = performance.now();
  const next = () => {
    const shown = Math.ceil((all * (performance.now() - began)) / Math.max(time, 1));
    show(shown);
    if (shown < all && place.isConnected) requestAnimationFrame(next);
  };
  show(0);
  requestAnimationFrame(next);
}
