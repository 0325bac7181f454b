/** Finished runs: what the end shows, what is kept, compared and deleted. */

import { expect, test } from "@playwright/test";
import { open, openRecipe, openSettings, trainToTheEnd } from "./page";

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

test("a first visitor can have the time of a run measured, and nothing of that is kept", async ({ page }) => {
  await open(page);
  const plan = page.locator("#plan");
  await expect(plan).toContainText(/24 steps over 360 samples, 35 s to 4 min\. Needs/);
  await plan.getByRole("button", { name: "How long will it take?" }).click();
  await expect(plan).toContainText(/24 steps over 360 samples, about \d+ s\. Needs/);
  await expect(plan.getByRole("button")).toHaveCount(0);
  await expect(page.locator("#progress")).toBeHidden();
  await expect(page.locator("#promise")).toBeVisible(); // still a first visit
  await open(page);
  await expect(plan).toContainText(/about \d+ s\. Needs/);
});

test("a first visitor sees a time without a click: for the included base, that of most devices", async ({ page }) => {
  await open(page);
  const plan = page.locator("#plan");
  await expect(plan).toContainText(/, 35 s to 4 min\. Needs .* The time is that of most devices like this one\. How long/);
  await expect(page.getByRole("button", { name: "Try the pirate" })).toHaveText("Try the pirate 35 s to 4 min");
  await page.getByLabel("Task").selectOption("tools"); // the button still trains the pirate
  await expect(page.getByRole("button", { name: "Try the pirate" })).toHaveText("Try the pirate 35 s to 4 min");
  const dropped = await page.evaluateHandle(() => {
    const transfer = new DataTransfer();
    transfer.items.add(new File(["GGUF"], "mine.gguf"));
    return transfer;
  });
  await page.dispatchEvent("body", "drop", { dataTransfer: dropped });
  await expect(plan).toContainText(/24 steps over \d+ samples\. Needs .* How long/); // nobody knows
});

test("the time on another base is a guess, and says so", async ({ page }) => {
  await page.addInitScript(() => {
    const known = { "a GPU that computes nothing: other": { rate: 100, evaluations: 1, weights: 100 } };
    localStorage.setItem("rullama-train-speed", JSON.stringify(known));
  });
  await open(page);
  await expect(page.locator("#plan")).toContainText(/, about .*The time is a guess from another base on this device\. How long/);
});

test("charts are drawn, show the values at the pointer, and take their colours from the page", async ({ page }) => {
  await open(page);
  await trainToTheEnd(page);
  const loss = page.getByRole("img", { name: /^Loss: training/ });
  await expect(loss.locator("path.line")).toHaveCount(3);
  await expect(loss.locator("circle")).toHaveCount(4); // evaluations
  const box = (await loss.boundingBox())!;
  await page.mouse.move(box.x + box.width - 12, box.y + 40);
  await expect(page.locator("figcaption").first()).toContainText(/at step 24/);
  await page.mouse.move(box.x + box.width - 12, box.y - 60);
  await expect(page.locator("figcaption").first()).not.toContainText("at step");
  const ink = () => loss.locator("path.line").first().evaluate((line) => getComputedStyle(line).stroke);
  const light = await ink();
  await page.getByLabel("Colours").selectOption("dark");
  expect(await ink()).not.toBe(light);
  await page.setViewportSize({ width: 390, height: 800 });
  await expect.poll(async () => (await loss.locator("svg").boundingBox())!.width).toBeLessThan(390);
});

test("a run that changes no reply is no success, and can be made longer", async ({ page }) => {
  await open(page, "?same=1");
  await trainToTheEnd(page);
  const finish = page.locator("#finish");
  await expect(finish).toContainText("The replies have not changed");
  await expect(finish).toHaveClass("unchanged");
  await expect(finish.locator(".change")).not.toContainText("Loss"); // a footnote
  await finish.getByRole("button", { name: "Train longer" }).click();
  await expect(page.getByRole("button", { name: "Train", exact: true })).toBeEnabled();
  await expect(page.locator("#recipe-text")).toHaveValue(/max_steps = 14\b/);
});

test("a run whose recipe does not say its length is made longer from the default", async ({ page }) => {
  await open(page, "?same=1");
  await openRecipe(page);
  const text = page.getByLabel("Recipe as TOML");
  await text.fill('[model]\nbase = "tiny"\n[data]\ntrain = "datasets/pirate.jsonl"\n');
  await trainToTheEnd(page);
  await page.locator("#finish").getByRole("button", { name: "Train longer" }).click();
  await expect(text).toHaveValue(/epochs = 10\b/); // the fake's default is 5
});

test("the time of a run is said before it, once the base has been trained here", async ({ page }) => {
  await open(page);
  await expect(page.locator("#plan")).toContainText(/24 steps over 360 samples, 35 s to 4 min\. Needs/);
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
  await page.getByRole("button", { name: "Train again" }).click(); // while the base still answers
  await expect(page.locator("#base-log .assistant:not(.waiting)")).toContainText("Lima.");
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
