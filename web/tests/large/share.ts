/** What the tests with large bases share. */

import type { Page } from "@playwright/test";

/** Prints what was done, with the seconds since the last call. */
export function clock() {
  let last = Date.now();
  return (what: string) => {
    console.log(`  ${((Date.now() - last) / 1000).toFixed(1)} s: ${what}`);
    last = Date.now();
  };
}

/** A conversation's last reply. */
export const reply = (page: Page, log: string) => page.locator(`#${log} .assistant`).last().locator("span").nth(1);
