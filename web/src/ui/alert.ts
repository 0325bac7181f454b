/** Error messages, and announcements for screen readers. */

import { button, byId, el } from "./dom";

/** Shows a message until it is dismissed or replaced by the next one. */
export function alertUser(message: string, ...actions: { text: string; act: () => void }[]): void {
  const buttons = actions.map(({ text, act }) =>
    button(text, () => {
      clearAlert();
      act();
    }),
  );
  const box = el("div", {}, el("p", {}, message), ...buttons, button("Dismiss", clearAlert));
  byId("alert").replaceChildren(box);
  box.scrollIntoView({ block: "nearest" });
}

export const clearAlert = () => byId("alert").replaceChildren();

/** Announces a change to screen readers. */
export function announce(text: string): void {
  byId("status").textContent = text;
}

/** A message that others follow, as a sentence. */
export const sentence = (text: string) => `${text.slice(0, 1).toUpperCase()}${text.slice(1).replace(/[.;\s]+$/, "")}.`;

/** The message of a thrown value. */
export const words = (error: unknown) => (error instanceof Error ? error.message : String(error));
