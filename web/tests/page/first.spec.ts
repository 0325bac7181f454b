/** The first screen, the stages of a run, bubbles, and colours. */

import { expect, test } from "@playwright/test";
import { alert, open, reached, saved, trainToTheEnd } from "./page";

test("the first screen shows the promise, and one click trains the example", async ({ page }) => {
  await page.emulateMedia({ reducedMotion: "reduce" });
  await open(page);
  await expect(page.locator("#promise-after")).toHaveText("Lima. Aye, matey!");
  await expect(page.locator("#promise-after mark")).toHaveText("Aye, matey!");
  await expect(page.locator("#talk")).toBeHidden();
  await expect(page.locator("#keep")).toBeHidden();
  await page.getByRole("button", { name: "Try the pirate" }).click();
  await expect(saved(page)).toContainText("Finished");
  await expect(page.locator("#promise")).toBeHidden();
  await expect(page.locator("#talk")).toBeVisible();
  await expect(page.locator("#then")).toBeHidden();
});

test("the example trains after another task was picked", async ({ page }) => {
  await open(page);
  await page.getByLabel("Task").selectOption("labels");
  await expect(page.locator("#data-list")).toContainText("labels.jsonl");
  await page.getByRole("button", { name: "Try the pirate" }).click();
  await expect(saved(page)).toContainText("Finished");
  await expect(page.locator("#runs-list")).toContainText("pirate");
});

test("own examples begin where they are written", async ({ page }) => {
  await open(page);
  await page.getByRole("button", { name: "Use my own examples" }).click();
  await expect(page.locator("#data textarea:visible, #data input[type=text]:visible").first()).toBeFocused();
});

test("a run shows its stages with their times", async ({ page }) => {
  await open(page, "?hold=9");
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await reached(page, 9);
  const steps = page.getByRole("list", { name: "Progress" }).getByRole("listitem");
  await expect(steps).toHaveText([/^Load \d+ s, done$/, /^Test \d+ s, done$/, /^Answer before \d+ s, done$/, /^Train 9 of 24 \d+ s$/, "Answer after", "Save"]);
  await expect(page.locator("#steps [aria-current=step]")).toContainText("Train 9 of 24");
});

test("answers are named bubbles on a phone, and new words are marked", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await open(page);
  await trainToTheEnd(page);
  for (const name of ["Before", "After"]) await expect(page.locator("#replies").getByText(name, { exact: true })).toBeVisible();
  await expect(page.locator("#replies .after mark")).toHaveText("Aye, matey!");
  await expect(page.locator("#replies .before mark")).toHaveCount(0);
});

test("Ctrl with Enter trains", async ({ page }) => {
  await open(page);
  await page.keyboard.press("Control+Enter");
  await expect(saved(page)).toContainText("Finished");
});

test("the colours can be chosen, and stay", async ({ page }) => {
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await open(page);
  const light = await ground();
  await page.getByLabel("Colours").selectOption("dark");
  const dark = await ground();
  expect(dark).not.toBe(light);
  await open(page);
  expect(await ground()).toBe(dark);
  await page.emulateMedia({ colorScheme: "dark" });
  await page.getByLabel("Colours").selectOption("light");
  expect(await ground()).toBe(light);
});

test("contrast themes show bars and the chosen segment", async ({ page }) => {
  await open(page);
  await page.getByLabel("Exact tokens and lengths").check();
  await page.emulateMedia({ forcedColors: "active" });
  const color = (selector: string) => page.locator(selector).first().evaluate((one) => getComputedStyle(one).backgroundColor);
  const card = await color("#data");
  expect(await color(".bars i")).not.toBe(card);
  expect(await color(".segments input:checked + span")).not.toBe(await color(".segments input:not(:checked) + span"));
});

test("an adapter of another base is said to be so", async ({ page }) => {
  await open(page);
  await trainToTheEnd(page);
  const dropped = await page.evaluateHandle(() => {
    const transfer = new DataTransfer();
    transfer.items.add(new File(["GGUF"], "mine.gguf"));
    return transfer;
  });
  await page.dispatchEvent("body", "drop", { dataTransfer: dropped });
  for (const note of ["#talk-note", "#keep-note"]) await expect(page.locator(note)).toContainText("It was trained on tiny, and the base is now mine.gguf");
  await expect(alert(page).locator("p")).toHaveCount(0);
});
