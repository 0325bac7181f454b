/** What went well or is worth knowing: a line near the button that caused it, which goes by itself. */

import { announce } from "./alert";
import { el } from "./dom";

/** Milliseconds that a notice stays. */
const STAYS = 5000;

type Kind = "good" | "plain";

/** Shows `text` below `near`, instead of an earlier one there, and tells screen readers. */
export function notify(text: string, near: HTMLElement, kind: Kind = "good"): void {
  const next = near.nextElementSibling;
  if (next?.classList.contains("notice")) next.remove();
  const notice = el("p", { class: `notice ${kind}` }, text);
  near.after(notice);
  announce(text);
  setTimeout(() => notice.remove(), STAYS);
}

/** Shows a neutral line above everything, which stays. */
export function tellAbove(text: string): void {
  document.querySelector("header")!.append(el("p", { class: "notice plain above", role: "note" }, text));
}
