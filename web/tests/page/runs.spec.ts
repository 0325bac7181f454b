/** Finished runs: what the end shows, what is kept, compared and deleted. */

import { expect, test } from "@playwright/test";
import { open, openSettings, trainToTheEnd } from "./page";

test("the end shows the change of the loss, the answers, and what to do next", async ({ page }) => {
  await open(page);
  await expect(page.locator("#replies")).toContainText("It answers “What is the capital of Peru?”"); // asked before the run
  await trainToTheEnd(page);
  await expect(page.locator("#finish")).toContainText(/Loss 6\.59 → 0\.51/);
  await expect(page.locator("#replies .after .words")).toHaveText("The capital of Peru is Lima. Aye, matey!");
  await page.getByRole("button", { name: "Talk to it" }).click();
  await expect(page.getByLabel("Message")).toBeFocused();
});

test("finished runs are kept, compared, opened again and deleted by name", async ({ page }) => {
  await open(page);
  await trainToTheEnd(page);
  await page.getByRole("button", { name: "Train again" }).click();
  await openSettings(page);
  await page.getByLabel("Rank", { exact: true }).fill("8");
  await trainToTheEnd(page);
  await open(page);
  const runs = page.locator("#runs-list li");
  await expect(runs).toHaveCount(2);
  await expect(runs.first()).toContainText("pirate, rank 8");
  await expect(runs.first()).toContainText("rank 8 · on tiny"); // what differs from the run before
  await runs.first().getByRole("button", { name: "Rename" }).click();
  await page.getByLabel("Name of pirate, rank 8").fill("small");
  await page.keyboard.press("Enter");
  await expect(runs.first()).toContainText("small");
  for (const box of await runs.getByRole("checkbox").all()) await box.check();
  const compared = page.getByRole("region", { name: "Runs side by side" });
  await expect(compared.getByRole("row", { name: /^lora\.rank/ })).toHaveText("lora.rank816");
  await expect(compared.getByRole("row", { name: /^What is the capital/ })).toContainText("matey!");

  await runs.last().getByRole("button", { name: "Open" }).click();
  await expect(runs.last().getByRole("button", { name: "Open now" })).toBeDisabled();
  await runs.last().getByRole("button", { name: "Delete" }).click();
  const question = page.getByRole("dialog");
  await expect(question).toContainText(/Delete the run of pirate, rank 16, with its adapter and report\?/);
  await question.getByRole("button", { name: "Keep" }).click();
  await expect(runs).toHaveCount(2);
  await runs.last().getByRole("button", { name: "Delete" }).click();
  await question.getByRole("button", { name: "Delete the run" }).click();
  await expect(runs).toHaveCount(1);
  await expect(page.getByRole("button", { name: "Train", exact: true })).toBeEnabled(); // the deleted run is no longer shown
  await open(page);
  await expect(runs).toHaveCount(1);
  await expect(runs.first()).toContainText("small");
});

test("the time of a run is said before it, once the base has been trained here", async ({ page }) => {
  await open(page);
  await expect(page.locator("#plan")).toContainText("24 steps over 360 samples. Needs");
  await trainToTheEnd(page);
  await page.getByRole("button", { name: "Train again" }).click();
  await expect(page.locator("#plan")).toContainText(/24 steps over 360 samples, about \d+ s\. Needs/);
});

test("questions of the chat are compared with those of other runs", async ({ page }) => {
  await open(page);
  await trainToTheEnd(page);
  await page.getByLabel("Message").fill("Who are you?");
  await page.keyboard.press("Enter");
  await expect(page.locator("#adapter-log")).toContainText("matey!");
  await page.getByRole("button", { name: "Train again" }).click();
  await trainToTheEnd(page);
  for (const box of await page.locator("#runs-list").getByRole("checkbox").all()) await box.check();
  await expect(page.getByRole("region", { name: "Runs side by side" }).getByRole("row", { name: /^Who are you/ })).toContainText("matey!");
});

test("two runs of the same settings have different names", async ({ page }) => {
  await open(page);
  await trainToTheEnd(page);
  await page.getByRole("button", { name: "Train again" }).click();
  await trainToTheEnd(page);
  await expect(page.locator("#runs-list li b")).toHaveText(["pirate, rank 16 (2)", "pirate, rank 16"]);
});

test("runs that compare answers show the margin of the rewards and the pairs ranked right", async ({ page }) => {
  await open(page, "?objective=dpo");
  await trainToTheEnd(page);
  const finish = page.locator("#finish");
  await expect(finish).toContainText("Reward margin 0.00 → 3.00");
  await expect(finish).toContainText(/Pairs ranked right: 25\.0.% → 100\.0.%\./);
  const charts = page.locator("#charts");
  await expect(charts.getByRole("img", { name: /^Reward margin: training 2\.40, validation 3\.00/ })).toBeVisible();
  await expect(charts.getByRole("img", { name: /^Pairs ranked right: training 100/ })).toBeVisible();
  await charts.getByText("Show as a table").click();
  await expect(charts.locator("tbody tr").first()).toContainText("2.4000100.0");

  await open(page);
  await page.getByRole("button", { name: "Train again" }).click();
  await trainToTheEnd(page);
  await expect(charts.getByRole("img", { name: /^Reward margin/ })).toBeHidden();
  await expect(finish).not.toContainText("margin");
  for (const box of await page.locator("#runs-list").getByRole("checkbox").all()) await box.check();
  const compared = page.getByRole("region", { name: "Runs side by side" });
  await expect(compared.getByRole("row", { name: /^Reward margin/ })).toContainText("0.00 → 3.00");
  await expect(compared.getByRole("row", { name: /^Pairs ranked right/ })).toContainText("—");
});
