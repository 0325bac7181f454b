/** Questions before something is deleted, in the page. */

import { byId, button, el } from "./dom";

/** Asks; true if the user picks the button `yes`. Escape and the other button are a no. */
export function confirmed(question: string, yes: string): Promise<boolean> {
  const dialog = byId<HTMLDialogElement>("question");
  return new Promise((resolve) => {
    let answer = false;
    const end = (agreed: boolean) => {
      answer = agreed;
      dialog.close();
    };
    const keep = button("Keep", () => end(false));
    const buttons = el("div", { class: "controls" }, keep, button(yes, () => end(true), { class: "danger" }));
    dialog.replaceChildren(el("p", { id: "question-text" }, question), buttons);
    dialog.addEventListener("close", () => resolve(answer), { once: true });
    dialog.showModal();
    keep.focus();
  });
}
