/** axe-core finds no accessibility problems in light and dark mode, at desktop and phone width; nothing scrolls sideways. */

import { createRequire } from "node:module";
import { expect, test, type Page } from "@playwright/test";

const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");

async function complaints(page: Page): Promise<string[]> {
  await page.addScriptTag({ path: axe });
  return page.evaluate(async () => {
    const { axe } = window as unknown as { axe: { run(): Promise<{ violations: { id: string; nodes: { html: string }[] }[] }> } };
    const { violations } = await axe.run();
    return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html}`));
  });
}

for (const width of [1280, 390]) {
  for (const colorScheme of ["light", "dark"] as const) {
    test(`${colorScheme}, ${width} wide`, async ({ page }) => {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 844 });
      await page.goto("/");
      await expect(page.locator("#start")).toBeEnabled();
      await page.getByText("All keys, as TOML").click();
      await page.getByText("Memory plan").click();
      await page.getByText("Continue from a checkpoint").click();
      expect(await complaints(page)).toEqual([]);
      const text = page.getByLabel("Recipe as TOML");
      await text.fill((await text.inputValue()).replace("\nrank = 16", "\nrnak = 16"));
      await expect(page.locator(".gutter b")).toBeVisible();
      expect(await complaints(page)).toEqual([]);
      await text.fill((await text.inputValue()).replace("rnak", "rank"));
      await page.getByRole("button", { name: "Train", exact: true }).click();
      await expect(page.locator("#saved")).toContainText("Finished");
      await page.getByText("Show as a table").click();
      await page.getByLabel("Message").fill("Hello!");
      await page.getByLabel("Message").press("Enter");
      await expect(page.locator("#adapter-log .assistant")).toContainText("matey!");
      await page.getByLabel("Zip file").setInputFiles({ name: "a.zip", mimeType: "", buffer: Buffer.from("") });
      await expect(page.locator("#alert p")).toBeVisible();
      expect(await complaints(page)).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(width);
    });
  }
}
