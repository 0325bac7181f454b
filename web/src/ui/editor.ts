/**
 * The recipe editor: a text area with line numbers that marks the line of an error.
 *
 * A plain text area has undo, search, screen reader support and selection on phones, which an editor library would imitate.
 */

import { byId, el } from "./dom";
import { recipe } from "./state";

const LINE = 20; // px, as in setup.css
const PADDING = 8;

/** Starts the editor. `changed` is called with the edited text. */
export function editor(changed: (text: string) => void) {
  const area = byId<HTMLTextAreaElement>("recipe-text");
  const gutter = byId("editor").querySelector<HTMLElement>(".gutter")!;
  let wrong: number | null = null;

  // In the next frame: reading the position computes the layout of the whole page.
  const follow = () => requestAnimationFrame(() => (gutter.scrollTop = area.scrollTop));
  const number = () => {
    const lines = area.value.split("\n").length;
    const numbers = Array.from({ length: lines }, (_, i) => el(i + 1 === wrong ? "b" : "span", {}, String(i + 1)));
    gutter.replaceChildren(...numbers);
    follow();
  };
  const mark = () => {
    const top = PADDING + ((wrong ?? 1) - 1) * LINE;
    const band = `linear-gradient(var(--wrong-ground) 0 0) 0 ${top}px / 100% ${LINE}px no-repeat local`;
    area.style.background = wrong === null ? "" : `${band}, var(--ground)`;
  };
  area.addEventListener("scroll", () => (gutter.scrollTop = area.scrollTop));
  area.addEventListener("input", () => {
    number();
    changed(area.value);
  });
  byId("recipe-details").addEventListener("toggle", () => (gutter.scrollTop = area.scrollTop));
  recipe.watch((text) => {
    if (area.value !== text) area.value = text;
    number();
  });

  return {
    /** Marks a line, counted from 1; null removes the mark. */
    markLine(line: number | null) {
      wrong = line;
      area.setAttribute("aria-invalid", String(line !== null));
      number();
      mark();
    },
    /** Opens the editor and moves the caret to a line and column, counted from 1. */
    goTo(line: number, column: number) {
      byId<HTMLDetailsElement>("recipe-details").open = true;
      const before = area.value.split("\n").slice(0, line - 1);
      const at = before.reduce((sum, text) => sum + text.length + 1, 0) + column - 1;
      area.focus();
      area.setSelectionRange(at, at);
      area.scrollTop = Math.max(0, (line - 4) * LINE);
    },
    disable(disabled: boolean) {
      area.readOnly = disabled;
    },
  };
}
