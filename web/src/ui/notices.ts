/** What is worth knowing about the whole page. */

import { el } from "./dom";

/** Shows a neutral line above everything, which stays. */
export function tellAbove(text: string): void {
  document.querySelector("header")!.append(el("p", { class: "notice plain above", role: "note" }, text));
}
