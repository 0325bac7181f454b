/** No dead ends: without storage, with a full one, without a GPU, after a lost one. */

import { expect, test } from "@playwright/test";
import { alert, open, reached, saved, trainToTheEnd } from "./page";

test("without storage everything is in memory, and the page says so", async ({ page }) => {
  await page.addInitScript(() => {
    navigator.storage.getDirectory = () => Promise.reject(new DOMException("Security error when calling GetDirectory", "SecurityError"));
  });
  await open(page);
  await expect(page.locator(".above")).toContainText("Nothing is kept in this window");
  await expect(alert(page).locator("p")).toHaveCount(0);
  await trainToTheEnd(page);
  await expect(saved(page)).toContainText("is saved in this tab only");
  await expect(page.getByRole("button", { name: "PEFT" })).toBeEnabled();
});

test("a checkpoint that could not be saved is not said to be saved", async ({ page, context }) => {
  await open(page, "?bytes=3000000");
  const cdp = await context.newCDPSession(page);
  await cdp.send("Storage.overrideQuotaForOrigin", { origin: new URL(page.url()).origin, quotaSize: 1_000_000 });
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(alert(page)).toContainText("Step 8 could not be saved: the storage of this browser is full. No checkpoint was saved before.");
  await expect(saved(page)).toContainText("Step 8 is not saved: it is in this tab only.");
  await page.getByRole("button", { name: "Resume" }).click();
  await expect(alert(page)).toContainText("Step 16 could not be saved: the storage of this browser is full. No checkpoint was saved before.");
});

test("the samples are shown without a GPU", async ({ page }) => {
  await page.goto("/?fail=webgpu");
  await expect(page.getByRole("region", { name: "Table of samples" })).toBeVisible();
});

test("without a base nothing is said to be read", async ({ page }) => {
  await open(page);
  await page.locator("#settings-details > summary").click();
  await page.getByLabel("A GGUF at a URL").check();
  await expect(page.locator("#samples")).toContainText("once there is a base model");
});

test("a run is saved every half a minute", async ({ page }) => {
  await page.clock.install();
  await open(page, "?steps=600&save=1000");
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await reached(page, 3);
  await page.clock.fastForward(31_000);
  await expect(saved(page)).toContainText(/up to step \d+ of 600/);
});

test("with the program behind the page, its words and its end are right", async ({ page }) => {
  await page.clock.install();
  await page.route("/", async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, body: (await answer.text()).replace("<head>", '<head><meta name="engine" content="native" />') });
  });
  await open(page);
  await expect(page.locator("header .lead")).toContainText("on this machine");
  await expect(page.locator("footer")).toContainText("Runs are in /home/me/train and stay there.");
  await page.locator("#settings-details > summary").click();
  await expect(page.getByRole("list", { name: "Models that cannot be trained" })).toHaveText("mine.gguf: its architecture, mine, is not known");
  await trainToTheEnd(page);
  await expect(saved(page)).toContainText("is saved in /home/me/train");
  await page.evaluate(() => Object.assign(globalThis, { ended: true }));
  await page.clock.fastForward(11_000);
  await expect(page.locator("#device")).toHaveText("The program has ended");
  await expect(alert(page)).toContainText("start it again");
});

test("a question to a paused run stops it where it is saved; training goes on from there", async ({ page }) => {
  await open(page, "?hold=11");
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await reached(page, 11);
  await expect(page.getByRole("button", { name: "Ask" })).toBeDisabled();
  await page.getByRole("button", { name: "Pause" }).click();
  await expect(page.locator("#talk-note")).toContainText("A question stops the run, which is saved at step 11.");
  await page.getByLabel("Message").fill("Who are you?");
  await page.keyboard.press("Enter");
  await expect(page.locator("#adapter-log .assistant")).toContainText("matey!");
  await open(page); // a fake that does not wait
  await page.getByRole("button", { name: "Continue at step 11" }).click();
  await expect(saved(page)).toContainText("Finished");
});
