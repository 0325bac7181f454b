/** What tests of the page share. */

import { expect, type Page } from "@playwright/test";

export const saved = (page: Page) => page.locator("#saved");
export const alert = (page: Page) => page.locator("#alert");

/** Opens the page and waits until it could train. */
export async function open(page: Page, query = ""): Promise<void> {
  await page.goto(`/${query}`);
  await expect(page.locator("#start, #discard").locator("visible=true").first()).toBeEnabled();
}

export const openSettings = (page: Page) => page.locator("#settings-details > summary").click();

export const openRecipe = (page: Page) => page.locator("#recipe-details > summary").click();

/** Opens the conversation with the base, which is folded until there is an adapter. */
export const openTalk = (page: Page) => page.getByRole("button", { name: "Talk to the base now" }).click();

/** Waits until `step` steps are done. */
export const reached = (page: Page, step: number) =>
  expect.poll(() => page.locator("#bar").evaluate((bar) => (bar as HTMLProgressElement).value)).toBeGreaterThanOrEqual(step);

export async function trainToTheEnd(page: Page): Promise<void> {
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(saved(page)).toContainText("Finished");
}

/** Waits until the stored session has `text`. */
export const stored = (page: Page, text: string) =>
  expect
    .poll(() =>
      page.evaluate(async () => {
        try {
          const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("session");
          return await (await (await folder.getFileHandle("session.json")).getFile()).text();
        } catch {
          return ""; // not yet
        }
      }),
    )
    .toContain(text);
