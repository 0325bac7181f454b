/** axe-core finds no accessibility problems in any state; nothing scrolls sideways at any width; the keyboard alone is enough. */

import { createRequire } from "node:module";
import { expect, test, type Page } from "@playwright/test";
import { alert, open, openRecipe, openSettings, reached, saved, trainToTheEnd } from "./page";

const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const WIDTHS = [320, 390, 800, 1280, 1920];

/** Complaints about what is shown now, in light and in dark mode, and widths at which the page scrolls sideways. */
async function complaints(page: Page): Promise<string[]> {
  if (!(await page.evaluate(() => "axe" in window))) await page.addScriptTag({ path: axe });
  // Samples that are being read again are dim for a moment.
  await expect(page.locator('[aria-busy="true"]:not(.log)')).toHaveCount(0);
  const found: string[] = [];
  for (const [colorScheme, rules] of [["light", null], ["dark", ["color-contrast"]]] as const) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    const here = await page.evaluate(async (rules) => {
      const { axe } = window as unknown as { axe: { run(what: Document, options: object): Promise<{ violations: { id: string; nodes: { html: string }[] }[] }> } };
      const { violations } = await axe.run(document, { resultTypes: ["violations"], ...(rules && { runOnly: rules }) });
      return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html}`));
    }, rules);
    found.push(...here.map((one) => `${colorScheme}: ${one}`));
  }
  const { height } = page.viewportSize()!;
  for (const width of WIDTHS) {
    await page.setViewportSize({ width, height });
    const found_ = await page.evaluate(() => document.documentElement.scrollWidth);
    if (found_ > width) found.push(`${width} wide: scrolls to ${found_}`);
  }
  await page.setViewportSize({ width: 1280, height });
  return found;
}

test("first visit, no samples, wrong settings, wrong recipe", async ({ page }) => {
  await open(page);
  await expect(page.getByRole("region", { name: "Table of samples" })).toBeVisible();
  expect(await complaints(page)).toEqual([]);
  await openSettings(page);
  await page.getByLabel("Rank", { exact: true }).fill("abc");
  await page.getByLabel("A GGUF at a URL").check();
  await page.getByLabel("Pasted text").check();
  await expect(page.locator("#samples")).toContainText("No samples yet");
  expect(await complaints(page)).toEqual([]);
  await page.getByLabel("Tiny Gemma 4").check();
  await page.getByLabel("An example").check();
  await openRecipe(page);
  const text = page.getByLabel("Recipe as TOML");
  await text.fill("[model]\nbase = 1\n[lora]\nrnak = 16\n");
  await expect(page.locator(".gutter b")).toBeVisible();
  expect(await complaints(page)).toEqual([]);
});

test("a pasted table with two selects for its columns, and a sheet", async ({ page }) => {
  await open(page);
  await page.getByLabel("Pasted text").check();
  await page.getByLabel("JSON Lines, a table").fill("id;A question that has a long name;Our answer to it\n1;When?;From 9 to 6.\n2;Where?;Here.");
  const answer = page.locator("#column-answer");
  await expect(answer).toBeVisible();
  expect(await complaints(page)).toEqual([]);
  for (const width of [390, 1280]) {
    await page.setViewportSize({ width, height: 900 });
    const [card, field] = [(await page.locator("#data").boundingBox())!, (await answer.boundingBox())!];
    expect(field.x + field.width).toBeLessThan(card.x + card.width);
  }
  await page.getByRole("button", { name: "Edit in the sheet" }).click();
  await expect(page.getByRole("table", { name: "Sheet of samples" })).toBeVisible();
  expect(await complaints(page)).toEqual([]);
});

test("in a run, at its end, in a conversation, and with runs side by side", async ({ page }) => {
  await open(page, "?hold=9");
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await reached(page, 9);
  await page.getByText("Show as a table").click();
  expect(await complaints(page)).toEqual([]);
  await page.getByRole("button", { name: "Stop and save" }).click();
  await page.getByRole("button", { name: "Start over" }).click();
  await expect(page.getByRole("dialog")).toBeVisible();
  expect(await complaints(page)).toEqual([]);
  await page.getByRole("button", { name: "Delete the run" }).click();
  await open(page);
  await trainToTheEnd(page);
  await page.getByRole("button", { name: "Train again" }).click();
  await trainToTheEnd(page);
  for (const box of await page.locator("#runs-list").getByRole("checkbox").all()) await box.check();
  await page.getByLabel("Message").fill("Hello!");
  await page.getByLabel("Message").press("Enter");
  await expect(page.locator("#adapter-log .assistant")).toContainText("matey!");
  await expect(page.getByRole("button", { name: "Ask" })).toBeEnabled();
  await page.getByLabel("Message").fill("And now? (silent)");
  await page.getByLabel("Message").press("Enter");
  await expect(page.locator("#adapter-log .assistant").last()).toContainText("Loading the model: layer 2 of 4");
  await page.getByText("Plan", { exact: true }).click();
  await page.getByText("Continue from a checkpoint").click();
  await page.getByLabel("Zip file").setInputFiles({ name: "a.zip", mimeType: "", buffer: Buffer.from("") });
  await expect(alert(page).locator("p")).toBeVisible();
  expect(await complaints(page)).toEqual([]);
});

test("bases, stored ones, an error of the base, and unfolded sections", async ({ page }) => {
  await open(page, "?buffer=134217728");
  await openSettings(page);
  await page.getByRole("button", { name: "Talk to the base now" }).click();
  await page.getByRole("button", { name: "Share or download" }).click();
  await page.evaluate(async () => {
    const bases = await (await navigator.storage.getDirectory()).getDirectoryHandle("bases", { create: true });
    const writable = await (await (await bases.getDirectoryHandle("0", { create: true })).getFileHandle("about.json", { create: true })).createWritable();
    await writable.write(JSON.stringify({ url: "https://example.org/half.gguf", size: 5000, tag: "" }));
    await writable.close();
  });
  const dropped = await page.evaluateHandle(() => {
    const transfer = new DataTransfer();
    transfer.items.add(new File(["GGUF"], "wrong.gguf"));
    return transfer;
  });
  await page.dispatchEvent("body", "drop", { dataTransfer: dropped });
  await expect(page.locator("#base-error")).toContainText("is not known");
  expect(await complaints(page)).toEqual([]);
});

test("without a GPU, and in a second tab", async ({ page, context }) => {
  await page.goto("/?fail=webgpu");
  await expect(alert(page).locator("p")).toBeVisible();
  expect(await complaints(page)).toEqual([]);
  const second = await context.newPage();
  await second.goto("/");
  await expect(alert(second)).toContainText("open in another tab");
  expect(await complaints(second)).toEqual([]);
});

test("the keyboard alone trains, asks and keeps", async ({ page }) => {
  await open(page);
  await page.keyboard.press("Tab");
  await expect(page.getByText("Skip to training")).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(page.locator("#train")).toBeFocused();
  // A plan that arrives leaves the focus there.
  const type = (add: string) =>
    page.locator("#recipe-text").evaluate((area: HTMLTextAreaElement, add) => {
      area.value = add + area.value.replace("rnak = 1\n", "");
      area.dispatchEvent(new Event("input", { bubbles: true }));
    }, add);
  await type("rnak = 1\n");
  await expect(page.getByRole("button", { name: "Train", exact: true })).toBeDisabled();
  await type("");
  await expect(page.getByRole("button", { name: "Train", exact: true })).toBeEnabled();
  await expect(page.locator("#train")).toBeFocused();
  await page.keyboard.press("Tab");
  await expect(page.getByRole("button", { name: "Train", exact: true })).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(saved(page)).toContainText("Finished");
  await expect(page.getByRole("button", { name: "Train again" })).toBeFocused(); // not lost with the buttons that went
  await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("Shift+Tab");
  await expect(page.getByRole("button", { name: "Talk to it" })).toBeFocused();
  await page.keyboard.press("Enter");
  await page.keyboard.type("Hello!");
  await page.keyboard.press("Enter");
  await expect(page.locator("#adapter-log .assistant")).toContainText("matey!");
});
