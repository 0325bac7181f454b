/** Links that carry base, samples and settings. */

import { expect, test, type Page } from "@playwright/test";
import { fromHash, toHash } from "../../src/ui/link";
import { alert, open, openSettings, stored } from "./page";

const LINES = ["one ahoy", "two ahoys", "three ahoys"].join("\n");
const pasted = (page: Page) => page.getByLabel("JSON Lines, a table");

test.use({ permissions: ["clipboard-read", "clipboard-write"] });

async function copied(page: Page): Promise<string> {
  if (await page.getByRole("button", { name: "Share or download" }).isVisible()) await page.getByRole("button", { name: "Share or download" }).click();
  await page.getByRole("button", { name: "Copy link" }).click();
  await expect(page.locator("#share-said")).toContainText("Copied a link");
  await expect(alert(page)).toBeEmpty();
  return page.evaluate(() => navigator.clipboard.readText());
}

test("links are short, whole or refused, and those of earlier pages are read", () => {
  expect(toHash({ task: "chat" })).toMatch(/^#t=chat&c=\w\w$/);
  const all = { task: "chat", base: { url: "https://example.org/a.gguf?x=1&y=2" }, changes: [["lora.rank", "8"], ["eval.samples", '["a, b", "ü"]']] as [string, string][] };
  expect(fromHash(toHash(all))).toEqual(all);
  const text = { text: "Hi;Ahoy", picked: { reading: "table" as const }, base: { file: "a b.gguf" }, changes: [], recipe: "a = 1" };
  expect(fromHash(toHash(text))).toEqual(text);
  for (let end = 3; end < toHash(all).length; end++) expect(() => fromHash(toHash(all).slice(0, end)), String(end)).toThrow();
  expect(fromHash("#train")).toBeNull();
  const old = "#r=q1YqSk3OLEhVslJQSlSwVTBU0lFQKkkszgYJJGcklijVAgA";
  expect(fromHash(old)).toEqual({ recipe: "a = 1", task: "chat" });
});

test("the link of an example is its name and what was changed, and says so", async ({ page, browser }) => {
  await open(page);
  await expect(page.locator("#samples")).toContainText("400 samples");
  expect(new URL(await copied(page)).hash).toMatch(/^#t=chat&c=\w\w$/);
  await openSettings(page);
  await page.getByLabel("Rank", { exact: true }).fill("8");
  const link = await copied(page);
  expect(new URL(link).hash).toMatch(/^#t=chat&lora\.rank=8&c=\w\w$/);
  const other = await (await browser.newContext()).newPage();
  await other.goto(link);
  await expect(other.locator("#link-note")).toContainText("From a link: the example “A persona: answer as a pirate” and rank 8.");
  await openSettings(other);
  await expect(other.getByLabel("Rank", { exact: true })).toHaveValue("8");
  await expect(other.getByLabel("Recipe as TOML")).toHaveValue(/max_steps = 7/);
});

test("a link carries the base, and waits for its download", async ({ page, browser }) => {
  await open(page);
  await openSettings(page);
  await page.getByLabel("A GGUF at a URL").check();
  await page.getByLabel("URL", { exact: true }).fill("https://example.org/small.gguf");
  await page.getByLabel("URL", { exact: true }).blur();
  const link = await copied(page);
  expect(link).toContain("b=https://example.org/small.gguf");
  expect(link).not.toContain("recipe="); // nothing was changed
  const other = await (await browser.newContext()).newPage();
  await other.goto(link);
  await expect(other.locator("#link-note")).toContainText("This link uses small.gguf: download it in the settings, then train.");
  await expect(other.getByLabel("A GGUF at a URL")).toBeChecked();
  await expect(other.getByRole("button", { name: "Download it" })).toBeVisible();
  await expect(other.getByRole("button", { name: "Train", exact: true })).toBeDisabled();
});

test("a link carries samples, how they are read and the settings; it asks where something would be lost, also in a tab that is open", async ({ page, browser }) => {
  await open(page);
  await page.getByLabel("Pasted text").check();
  await pasted(page).fill(LINES);
  await page.getByLabel("Read as").selectOption("a conversation");
  await openSettings(page);
  await expect(page.getByLabel("Learning rate", { exact: true })).toHaveValue("2e-4");
  await page.getByLabel("Rank", { exact: true }).fill("5");
  const link = await copied(page);
  const other = await (await browser.newContext()).newPage();
  await other.goto(link);
  await expect(pasted(other)).toHaveValue(LINES);
  await expect(other.getByLabel("Read as")).toHaveValue("conversation");
  await openSettings(other);
  await expect(other.getByLabel("Rank", { exact: true })).toHaveValue("5");
  await other.getByLabel("An example").check();
  await stored(other, '"task"');
  await other.evaluate((hash) => (location.hash = hash), new URL(link).hash);
  await expect(alert(other)).toContainText("Using them replaces those that are shown below");
  await other.getByRole("button", { name: "Use those of the link" }).click();
  await expect(pasted(other)).toHaveValue(LINES);
  await expect(other.getByLabel("Rank", { exact: true })).toHaveValue("5");
  await other.goto("about:blank");
  await other.goto(link.slice(0, -20));
  await expect(alert(other)).toContainText("This link was cut off");
});
