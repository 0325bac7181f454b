/** Samples and settings: the table, recipes that fit, errors beside their fields, links. */

import { expect, test } from "@playwright/test";
import { alert, open, openRecipe, openSettings, reached, saved } from "./page";

const LINES = ["one ahoy", "two ahoys", "three ahoys"].join("\n");

test("the samples are a table with their lengths and the trained text marked", async ({ page }) => {
  await open(page);
  const table = page.getByRole("region", { name: "Table of samples" });
  await expect(table.locator("tbody tr")).toHaveCount(4);
  await page.getByRole("button", { name: "Show 100 more" }).click();
  await expect(table.locator("tbody tr")).toHaveCount(104);
  await page.getByLabel("Pasted text").check();
  await expect(page.locator("#samples")).toContainText("No samples yet");
  await page.getByLabel("JSON Lines, a table").fill(LINES);
  await expect(table.locator("mark")).toHaveText(["ahoy", "hoys", "ahoys"]);
  await expect(page.locator("#samples")).toContainText("3 samples, 28 tokens; the longest has 11.");
  await expect(page.getByRole("img", { name: /Lengths/ })).toHaveCount(0);
  await page.getByLabel("Exact tokens and lengths").check();
  await expect(page.getByRole("img", { name: "Lengths: 8 to 11 tokens" })).toBeVisible();
  await expect(page.getByLabel("Exact tokens and lengths")).toBeFocused();
  // Nor does a change of the recipe take the focus away.
  await page.locator("#recipe-text").evaluate((area: HTMLTextAreaElement) => {
    delete (globalThis as { read?: unknown }).read;
    area.value = area.value.replace("rank = 16", "rank = 8");
    area.dispatchEvent(new Event("input", { bubbles: true }));
  });
  await page.waitForFunction(() => "read" in globalThis); // the samples were read anew
  await expect(page.locator("#samples")).toHaveAttribute("aria-busy", "false"); // and were shown
  await expect(page.getByLabel("Exact tokens and lengths")).toBeFocused();
  await page.getByLabel("JSON Lines, a table").fill("fine\nbroken");
  await expect(page.locator("#samples .error")).toHaveText("pasted.txt line 2: broken JSON; correct that line");
});

test("a mistake in the samples shows beside them when Train is pressed at once, and no run starts", async ({ page }) => {
  await open(page);
  const train = page.getByRole("button", { name: "Train", exact: true });
  await page.getByLabel("Pasted text").check();
  await page.getByLabel("JSON Lines, a table").fill(LINES);
  await expect(page.locator("#samples")).toContainText("3 samples");
  await expect(train).toBeEnabled();
  await page.getByLabel("JSON Lines, a table").fill("fine\nbroken");
  await train.click();
  await expect(page.locator("#samples .error")).toHaveText("pasted.txt line 2: broken JSON; correct that line");
  await expect(page.locator("#samples .error")).toBeInViewport();
  await expect(train).toBeDisabled();
  expect(await page.evaluate(() => (globalThis as { started?: { count: number } }).started!.count)).toBe(0);
  await page.getByLabel("JSON Lines, a table").fill(`${LINES}\nfour`);
  await train.click(); // the recipe follows the samples
  await expect(saved(page)).toContainText("Finished");
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/learning_rate = 2e-4/);
});

test("the recipe fits own samples, unless the user has changed it", async ({ page }) => {
  await open(page);
  await openSettings(page);
  const rate = page.getByLabel("Learning rate", { exact: true });
  await expect(rate).toHaveValue("4e-3"); // the example's
  await page.getByLabel("Pasted text").check();
  await page.getByLabel("JSON Lines, a table").fill(LINES);
  await expect(rate).toHaveValue("2e-4");
  await expect(page.getByLabel("Tokens per row")).toHaveValue("128");
  await rate.fill("3e-4");
  await page.getByLabel("JSON Lines, a table").fill(`${LINES}\nfour`);
  await expect(page.locator("#samples")).toContainText("4 samples");
  await expect(rate).toHaveValue("3e-4");
  await page.getByRole("button", { name: "Fit the recipe to these samples" }).click();
  await expect(rate).toHaveValue("2e-4");
});

test("a wrong value is explained beside its field, and does not reach the recipe", async ({ page }) => {
  await open(page);
  await openSettings(page);
  const [rank, rate, epochs] = [page.getByLabel("Rank", { exact: true }), page.getByLabel("Learning rate", { exact: true }), page.getByLabel("Epochs")];
  await expect(page.locator("#settings-summary")).toContainText("steps 7");
  await expect(epochs).toHaveAccessibleDescription("now 7 steps: max_steps in the recipe");
  await epochs.fill("0.5");
  await expect(page.locator("#field-epochs-train-error")).toHaveText("Write a whole number from 1, not “0.5”.");
  await epochs.fill("2");
  await expect(page.locator("#settings-summary")).toContainText("epochs 2");
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/\nepochs = 2 [\s\S]*\n# max_steps = 7/);
  await rank.fill("abc");
  await expect(page.locator("#field-rank-lora-error")).toHaveText("Write a whole number from 1, not “abc”.");
  await expect(rank).toHaveAttribute("aria-invalid", "true");
  await rate.fill("0,001");
  await expect(page.locator("#field-learning_rate-train-error")).toHaveText("Write 0.001, with a point.");
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/\nrank = 16 [\s\S]*learning_rate = 4e-3/);
  await rank.fill("4");
  await expect(rank).toHaveAttribute("aria-invalid", "false");
  await openRecipe(page);
  await page.getByLabel("Recipe as TOML").fill('[model]\nbase = "tiny"\n[data]\ntrain = "a"\n[lora]\nrank = 16\n');
  const inline = 'model.base = "tiny"\ntrain = { epochs = 2 }\n';
  await page.getByLabel("Recipe as TOML").fill(inline);
  await expect(page.getByLabel("Epochs")).toBeDisabled(); // a second [train] would be an error
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(inline);
});

test("a start can be cancelled, and says what it does", async ({ page }) => {
  await open(page, "?slow=1");
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(page.locator("#progress-text")).toContainText("Reading samples and model");
  await page.getByRole("button", { name: "Cancel" }).click();
  await expect(page.getByRole("button", { name: "Train", exact: true })).toBeEnabled();
  await expect(alert(page)).toBeEmpty();
});

test("too little memory is mended by a smaller plan", async ({ page }) => {
  await open(page, "?fail=memory");
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(alert(page)).toContainText("Out of memory. The run needs less memory with activations computed twice");
  await page.getByRole("button", { name: "Train with less memory" }).click();
  await expect(saved(page)).toContainText("Finished");
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/\ngradient_checkpointing = true/);
});

test("the table of steps keeps its place while it grows", async ({ page }) => {
  await open(page, "?hold=20");
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await reached(page, 8);
  await page.getByText("Show as a table").click();
  const first = page.locator(".values tbody tr").last();
  await first.evaluate((row) => row.setAttribute("data-kept", ""));
  await reached(page, 20);
  await expect(page.locator(".values tbody tr")).toHaveCount(20);
  await expect(page.locator(".values tbody tr[data-kept]")).toHaveCount(1); // not built anew
});
