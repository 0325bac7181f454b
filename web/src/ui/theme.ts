/** Light, dark, or as the system has it. */

import { byId } from "./dom";

const KEY = "theme";
const THEMES = ["system", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];

const kept = (): Theme => {
  try {
    const found = localStorage.getItem(KEY);
    return THEMES.find((theme) => theme === found) ?? "system";
  } catch {
    return "system"; // no storage
  }
};

/** Starts the switch. */
export function themeSwitch(): void {
  const select = byId<HTMLSelectElement>("theme");
  const show = (theme: Theme) => {
    if (theme === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme;
    select.value = theme;
  };
  select.addEventListener("change", () => {
    try {
      localStorage.setItem(KEY, select.value);
    } catch {
      // It lasts until the page is closed.
    }
    show(select.value as Theme);
  });
  show(kept());
}
