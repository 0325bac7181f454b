/** What went wrong, once and in view; and what a screen reader should hear. */

import { button, byId, el } from "./dom";

/** Shows one message until it is dismissed or the next one comes. */
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

/** Says what a sighted user sees happen. */
export function announce(text: string): void {
  byId("status").textContent = text;
}

/** The words of whatever was thrown. */
export const words = (error: unknown) => (error instanceof Error ? error.message : String(error));
