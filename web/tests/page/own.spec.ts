/** The road from the example to a person's own data. */

import { expect, test, type Page } from "@playwright/test";
import { alert, open, openSettings, saved, stored, trainToTheEnd } from "./page";

const pasted = (page: Page) => page.getByLabel("JSON Lines, a table");
const train = (page: Page) => page.getByRole("button", { name: "Train", exact: true });

async function paste(page: Page, text: string): Promise<void> {
  await page.getByLabel("Pasted text").check();
  await pasted(page).fill(text);
}

/** The recipe with which the samples were read last. */
const readWith = (page: Page) => page.evaluate(() => (globalThis as { read?: { recipe: string; text: string; name: string } }).read ?? { recipe: "", text: "", name: "" });

test("own samples are read without the recipe of an example, at once and after a reload", async ({ page }) => {
  await open(page);
  await page.getByLabel("Task").selectOption({ label: "Stories: continue plain text" });
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/format = "text"/);
  await paste(page, '{"messages": []}\n{"messages": []}');
  await expect(page.locator("#samples")).toContainText("2 samples");
  expect((await readWith(page)).recipe).not.toContain("format");
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/train = "pasted.jsonl"/);
  await expect(page.getByLabel("Recipe as TOML")).not.toHaveValue(/format = "text"/);
  await stored(page, "pasted.jsonl");
  await page.reload();
  await expect(page.locator("#samples")).toContainText("2 samples");
  expect((await readWith(page)).recipe).not.toContain("format");
});

test("a recipe of the user's that cannot read new samples has a way out", async ({ page }) => {
  await open(page);
  await openSettings(page);
  await page.getByLabel("Rank", { exact: true }).fill("5");
  await paste(page, "fine\nbroken");
  await expect(page.locator("#samples .error")).toContainText("broken JSON");
  await expect(page.locator("#plan")).toContainText("The samples have an error: see Samples.");
  await page.getByRole("button", { name: "Propose a recipe for these samples" }).click();
  await pasted(page).fill("fine\nfine too");
  await expect(page.getByLabel("Rank", { exact: true })).toHaveValue("16");
});

test("another base and back leaves the example as it was", async ({ page }) => {
  await open(page);
  await openSettings(page);
  const before = await page.getByLabel("Recipe as TOML").inputValue();
  await page.evaluate(() => (globalThis as { showOpenFilePicker?: unknown }).showOpenFilePicker);
  await page.getByLabel("A GGUF on this machine").check();
  await page.getByLabel("Tiny Gemma 4").check();
  await expect(page.getByLabel("Learning rate", { exact: true })).toHaveValue("4e-3");
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(before);
});

test("what was pasted is said, and can be read otherwise", async ({ page }) => {
  await open(page);
  await paste(page, "Hi\tAhoy\nBye\tSo long");
  const reading = page.locator("#reading");
  await expect(reading).toContainText("Read as a table of 2 rows, without a heading.");
  await expect(page.locator("#samples")).toContainText("3 samples"); // of the fake: a line each
  expect(await readWith(page)).toMatchObject({ name: "pasted.csv", text: "prompt,completion\nHi,Ahoy\nBye,So long" });
  await page.getByLabel("The first row names the columns").check();
  await expect(reading).toContainText("Read as a table of 1 row below a heading.");
  await page.getByLabel("Read as").selectOption("plain text");
  await expect(reading).toContainText("Read as plain text: all of it is trained");
  await expect.poll(async () => (await readWith(page)).name).toBe("pasted.txt");
  await page.getByLabel("Read as").selectOption("a conversation");
  await expect.poll(async () => (await readWith(page)).name).toBe("pasted.jsonl");
  await stored(page, '"reading":"conversation"');
  await page.reload();
  await expect(page.getByLabel("Read as")).toHaveValue("conversation");
});

test("columns of other names are mapped by two selects", async ({ page }) => {
  await open(page);
  await page.getByLabel("Your files").check();
  const faq = "id;Kundenfrage;Unsere Antwort\n1;Wann?;Morgen.\n2;Wo?;Hier.\n";
  await page.getByLabel("JSON Lines, JSON, CSV").setInputFiles({ name: "faq.csv", mimeType: "text/csv", buffer: Buffer.from(faq) });
  await expect(page.getByLabel("Question", { exact: true })).toHaveValue("Kundenfrage");
  await expect(page.getByLabel("Answer", { exact: true })).toHaveValue("Unsere Antwort");
  await expect(page.getByRole("table", { name: "First rows" }).locator("tbody td").first()).toHaveText("Wann?");
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/fields = \{ prompt = "Kundenfrage", completion = "Unsere Antwort" \}/);
  await page.getByLabel("Question", { exact: true }).selectOption("id");
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/fields = \{ prompt = "id", completion = "Unsere Antwort" \}/);
  await expect(page.getByRole("table", { name: "First rows" }).locator("tbody td").first()).toHaveText("1");
  await stored(page, '"columns":["id","Unsere Antwort"]');
  await page.reload();
  await expect(page.getByLabel("Question", { exact: true })).toHaveValue("id");
});

test("a file of rows without names for its columns loses no row", async ({ page }) => {
  await open(page);
  await page.getByLabel("Your files").check();
  const pick = (text: string) => page.getByLabel("JSON Lines, JSON, CSV").setInputFiles({ name: "faq.csv", mimeType: "text/csv", buffer: Buffer.from(text) });
  await pick("When do you open?,At nine.\nWhere?,Here.\n");
  await expect(page.locator("#reading")).toContainText("Read as a table of 2 rows, without a heading.");
  await expect.poll(async () => (await readWith(page)).text).toBe("prompt,completion\nWhen do you open?,At nine.\nWhere?,Here.");
  await pick("foo,bar\nWhere?,Here.\n");
  await expect(page.locator("#reading")).toContainText("Read as a table of 1 row below a heading.");
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/fields = \{ prompt = "foo", completion = "bar" \}/);
});

test("broken JSON is repaired with a click", async ({ page }) => {
  await open(page);
  await paste(page, "{“prompt”: “a”, “completion”: “b”}");
  await page.getByRole("button", { name: "Repair the text: straight quotes" }).click();
  await expect(pasted(page)).toHaveValue('{"prompt": "a", "completion": "b"}');
});

test("new samples after a finished run show their plan and Train at once", async ({ page }) => {
  await open(page);
  await trainToTheEnd(page);
  await expect(page.getByRole("button", { name: "Train again" })).toBeVisible();
  await paste(page, "one\ntwo\nthree");
  await expect(page.locator("#plan")).toContainText("24 steps");
  await expect(train(page)).toBeEnabled();
  await expect(page.locator("#finish")).toBeHidden();
  await expect(page.locator("#runs-list li")).toHaveCount(1);
  await train(page).click();
  await expect(page.locator("#runs-list li")).toHaveCount(2);
  await expect(saved(page)).toContainText("Finished");
  await openSettings(page);
  await page.getByLabel("Rank", { exact: true }).fill("8");
  await expect(train(page)).toBeEnabled();
  await page.getByLabel("Rank", { exact: true }).fill("16");
  await expect(page.getByRole("button", { name: "Train again" })).toBeVisible(); // as it was
  await expect(alert(page)).toBeEmpty();
});

test("a stopped run whose samples or settings have changed offers both ways on", async ({ page }) => {
  await open(page, "?hold=11");
  await paste(page, "one\ntwo\nthree");
  await expect(train(page)).toBeEnabled();
  await train(page).click();
  await expect(page.locator("#progress-text")).toContainText("Step 11");
  await page.getByRole("button", { name: "Stop and save" }).click();
  await expect(page.getByRole("button", { name: "Continue at step 11" })).toBeEnabled();
  await pasted(page).fill("one\ntwo\nthree\nfour");
  await expect(saved(page)).toContainText("The samples have changed since the run was stopped at step 11.");
  await page.getByRole("button", { name: "Back to those of the run" }).click();
  await expect(pasted(page)).toHaveValue("one\ntwo\nthree");
  await expect(page.getByRole("button", { name: "Continue at step 11" })).toBeEnabled();
  await openSettings(page);
  await page.getByLabel("Rank", { exact: true }).fill("8");
  await expect(saved(page)).toContainText("The settings have changed since");
  await stored(page, "rank = 8");
  await page.reload();
  await expect(saved(page)).toContainText("The settings have changed since");
  await page.getByRole("button", { name: "Train anew" }).click();
  await page.getByRole("button", { name: "Delete the unfinished run" }).click();
  await expect(page.getByRole("button", { name: "Pause" })).toBeVisible();
});

test("a wrong field holds Train, and gets the focus", async ({ page }) => {
  await open(page);
  await openSettings(page);
  const rank = page.getByLabel("Rank", { exact: true });
  await rank.fill("abc");
  await page.locator("#settings-details > summary").click();
  await train(page).click();
  await expect(rank).toBeFocused();
  await expect(rank).toHaveValue("abc");
  await expect(page.locator("#field-rank-lora-error")).toContainText("Write a whole number");
  await expect(page.locator("#bar")).toBeHidden();
  await rank.fill("8");
  await page.getByLabel("Learning rate", { exact: true }).fill("1e5");
  await expect(page.locator("#field-learning_rate-train-error")).toContainText("far above");
});

test("more than a hundred samples can be seen and searched", async ({ page }) => {
  await open(page);
  await paste(page, Array.from({ length: 250 }, (_, i) => `ahoy number ${i}`).join("\n"));
  const table = page.getByRole("region", { name: "Table of samples" });
  await expect(page.locator("#samples")).toContainText("250 samples");
  await page.getByRole("button", { name: "Show 100 more" }).click();
  await expect(table.locator("tbody tr")).toHaveCount(104);
  await page.getByLabel("Find in the samples").fill("number 249");
  await expect(table.locator("tbody tr")).toHaveCount(1);
});
