/** The page with a fake trainer: what it shows, saves and downloads, and its error messages. */

import { readFileSync } from "node:fs";
import { expect, test, type Page } from "@playwright/test";
import { strToU8, unzipSync, zipSync } from "fflate";

const saved = (page: Page) => page.locator("#saved");
const alert = (page: Page) => page.locator("#alert");

/** Opens the page and waits until it could train. */
async function open(page: Page, query = ""): Promise<void> {
  await page.goto(`/${query}`);
  await expect(page.locator("#start, #discard").locator("visible=true").first()).toBeEnabled();
}

/** Waits until `step` steps are done. */
const reached = (page: Page, step: number) =>
  expect.poll(() => page.locator("#bar").evaluate((bar) => (bar as HTMLProgressElement).value)).toBeGreaterThanOrEqual(step);

async function trainToTheEnd(page: Page): Promise<void> {
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(saved(page)).toContainText("Finished");
}

test("the form writes the recipe, and the recipe fills the form", async ({ page }) => {
  await open(page);
  await page.getByLabel("Rank").fill("8");
  await page.getByText("All keys, as TOML").click();
  const text = page.getByLabel("Recipe as TOML");
  await expect(text).toHaveValue(/\nrank = 8 +# default: 16/);
  await text.fill((await text.inputValue()).replace("learning_rate = 4e-3", "learning_rate = 1e-3"));
  await expect(page.getByLabel("Learning rate", { exact: true })).toHaveValue("1e-3");
  await expect(page.getByLabel("Prompts answered")).toHaveValue(/Peru\?\n.*8\?\n/);
});

test("an error of the recipe is shown at its line", async ({ page }) => {
  await open(page);
  await page.getByText("All keys, as TOML").click();
  const text = page.getByLabel("Recipe as TOML");
  await text.fill((await text.inputValue()).replace("\nrank = 16", "\nrnak = 16"));
  await expect(page.locator("#recipe-error")).toContainText("unknown key `rnak`");
  await expect(text).toHaveAttribute("aria-invalid", "true");
  const line = await page.locator(".gutter b").textContent();
  await expect(page.locator("#start")).toBeDisabled();
  await page.getByRole("button", { name: `Go to line ${line}` }).click();
  await expect(text).toBeFocused();
  const caret = await text.evaluate((area: HTMLTextAreaElement) => area.value.slice(area.selectionStart).split(" ")[0]);
  expect(caret).toBe("rnak");
  await text.fill((await text.inputValue()).replace("rnak", "rank"));
  await expect(page.locator("#recipe-error")).toBeEmpty();
  await expect(page.locator("#start")).toBeEnabled();
});

test("pasted samples, recipe and a URL survive a reload", async ({ page }) => {
  await open(page);
  await page.getByLabel("Pasted text").check();
  await page.getByLabel("One sample per line").fill('{"prompt": "Hello!", "completion": "Ahoy!"}');
  await page.getByLabel("Seed").fill("7");
  await page.getByLabel("A GGUF at a URL").check();
  await page.getByLabel("URL", { exact: true }).fill("https://example.org/a.gguf");
  await page.getByLabel("URL", { exact: true }).blur();
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/base = "https:\/\/example.org\/a.gguf"/);
  await page.waitForTimeout(600); // the session is written once it rests
  await page.goto("/");
  await expect(page.getByLabel("One sample per line")).toHaveValue(/Ahoy!/);
  await expect(page.getByLabel("Seed")).toHaveValue("7");
  await expect(page.getByLabel("URL", { exact: true })).toHaveValue("https://example.org/a.gguf");
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/train = "pasted.jsonl"/);
  await expect(page.locator("#plan dl")).toBeHidden(); // nothing is fetched from elsewhere unasked
  await page.getByRole("button", { name: "Download it" }).click();
  await expect(page.locator("#plan dl")).toBeVisible();
});

test("picked files of samples survive a reload", async ({ page }) => {
  await open(page);
  await page.getByLabel("Files JSON").check();
  await page.locator("#data-files").setInputFiles([
    { name: "a b.jsonl", mimeType: "text/plain", buffer: Buffer.from("{}\n") },
    { name: "c.jsonl", mimeType: "text/plain", buffer: Buffer.from("{}\n") },
  ]);
  await page.waitForTimeout(600);
  await open(page);
  await expect(page.locator("#data-list li")).toHaveText(["a b.jsonl, 3 B", "c.jsonl, 3 B"]);
});

test("pause, reload, continue, finish, talk, download", async ({ page }) => {
  await open(page, "?hold=10");
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(page.getByRole("button", { name: "Pause" })).toBeFocused(); // not lost with the button that went
  await reached(page, 10);
  await page.getByRole("button", { name: "Pause" }).click();
  await expect(saved(page)).toHaveText("Saved in this browser up to step 10 of 24.");
  await open(page);
  await expect(page.getByLabel(/^Loss: training \d/)).toBeVisible(); // the charts are there again
  const go = page.getByRole("button", { name: "Continue at step 10" });
  await expect(go).toBeEnabled();
  await go.click();
  await expect(saved(page)).toHaveText("Finished: the adapter of step 24 is saved in this browser.");
  await page.getByText("Show as a table").click();
  await expect(page.locator(".values tbody tr")).toHaveCount(24); // each step once
  await expect(page.locator("#replies tbody td")).toHaveText(["The capital of Peru is Lima.", "The capital of Peru is Lima. Aye, matey!"]);

  await page.getByLabel("Message").fill("What is the capital of Peru?");
  await page.getByLabel("Message").press("Enter");
  await expect(page.locator("#adapter-log .assistant")).toContainText("Aye, matey!");
  await expect(page.locator("#base-log .assistant")).not.toContainText("Aye");

  const [peft] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "PEFT" }).click()]);
  const files = unzipSync(readFileSync(await peft.path()));
  expect(Object.keys(files).sort()).toEqual(["adapter/adapter_config.json", "adapter/adapter_model.safetensors"]);
});

test("a run in a closed tab can be resumed from the last checkpoint", async ({ page, context }) => {
  await open(page, "?hold=11");
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await reached(page, 11);
  await page.close({ runBeforeUnload: false });
  const again = await context.newPage();
  await open(again);
  await again.getByRole("button", { name: "Continue at step 8" }).click();
  await expect(saved(again)).toContainText("Finished: the adapter of step 24");
});

test("a downloaded checkpoint can be imported in another browser", async ({ page, browser }) => {
  await open(page, "?hold=9");
  await page.getByLabel("Rank").fill("4");
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await reached(page, 9);
  await page.getByRole("button", { name: "Stop and save" }).click();
  await expect(page.getByRole("button", { name: /^Continue/ })).toBeVisible();
  const [zip] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Checkpoint" }).click()]);
  const other = await (await browser.newContext()).newPage();
  await open(other);
  await other.getByText("Continue from a checkpoint").click();
  await other.getByLabel("Zip file").setInputFiles(await zip.path());
  await expect(other.getByRole("button", { name: /^Continue at step/ })).toBeEnabled();
  await expect(other.getByLabel("Rank")).toHaveValue("4"); // its recipe came along
  await open(other);
  await expect(other.getByRole("button", { name: /^Continue at step/ })).toBeVisible();
});

test("the latest checkpoint of an output folder is imported", async ({ page }) => {
  await open(page);
  const state = (step: number) => strToU8(JSON.stringify({ step, steps: 24 }));
  const run = zipSync({
    "chat/checkpoint-6/trainer_state.json": state(6),
    "chat/checkpoint-12/trainer_state.json": state(12),
    "chat/metrics.jsonl": strToU8("{}"),
  });
  await page.getByText("Continue from a checkpoint").click();
  await page.getByLabel("Zip file").setInputFiles({ name: "chat.zip", mimeType: "application/zip", buffer: Buffer.from(run) });
  await expect(page.getByRole("button", { name: "Continue at step 12" })).toBeVisible();
});

test("files that are not checkpoints are refused with one message, and the saved run stays", async ({ page }) => {
  await open(page);
  await trainToTheEnd(page);
  await page.getByText("Continue from a checkpoint").click();
  const pick = (name: string, bytes: Uint8Array) =>
    page.getByLabel("Zip file").setInputFiles({ name, mimeType: "application/zip", buffer: Buffer.from(bytes) });
  await pick("a.zip", strToU8("no zip"));
  await expect(alert(page)).toContainText("a.zip is not a valid zip file");
  await pick("b.zip", zipSync({ "x/readme.txt": strToU8("") }));
  await expect(alert(page)).toContainText("b.zip is not a checkpoint: it has no trainer_state.json, only x/readme.txt");
  await pick("c.zip", zipSync({ "checkpoint-5/trainer_state.json": strToU8("{") }));
  await expect(alert(page)).toContainText("c.zip: checkpoint-5/trainer_state.json is damaged");
  await expect(alert(page).locator("p")).toHaveCount(1);
  await open(page);
  await expect(saved(page)).toContainText("Finished: the adapter of step 24");
});

test("a full storage pauses the run and loses no saved checkpoint", async ({ page, context }) => {
  await open(page, "?bytes=3000000&hold=9"); // a checkpoint's
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(saved(page)).toContainText("up to step 8");
  const cdp = await context.newCDPSession(page);
  const limit = (quotaSize?: number) =>
    cdp.send("Storage.overrideQuotaForOrigin", { origin: new URL(page.url()).origin, ...(quotaSize && { quotaSize }) });
  await limit(4_000_000);
  await page.getByRole("button", { name: "Pause" }).click(); // saves step 9
  await expect(alert(page)).toContainText(/Step 9 could not be saved: the storage is full: .* MB are used\. The checkpoint of step 8 is still saved\./);
  await expect(page.getByRole("button", { name: "Resume" })).toBeVisible();

  await test.step("what was saved before is there after a reload", async () => {
    const other = await context.newPage();
    await page.close();
    await open(other, "?bytes=3000000");
    await expect(other.getByRole("button", { name: "Continue at step 8" })).toBeVisible();
  });
});

test("after freeing space, the checkpoint is saved", async ({ page, context }) => {
  await open(page, "?bytes=3000000");
  const cdp = await context.newCDPSession(page);
  const origin = new URL(page.url()).origin;
  await cdp.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: 1_000_000 });
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(alert(page)).toContainText("Step 8 could not be saved: the storage is full");
  await expect(page.getByRole("button", { name: "Resume" })).toBeVisible();
  await cdp.send("Storage.overrideQuotaForOrigin", { origin });
  await page.getByRole("button", { name: "Save again" }).click();
  await expect(saved(page)).toContainText("up to step 8");
  await page.getByRole("button", { name: "Resume" }).click();
  await expect(saved(page)).toContainText("Finished");
});

test("a lost device is opened again, and the run can be resumed", async ({ page }) => {
  await open(page, "?fail=lost");
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(alert(page)).toContainText("The GPU was lost: device.destroy() was called. The run is saved up to step 8.");
  await expect(page.getByRole("button", { name: "Continue at step 8" })).toBeEnabled();
});

test("a browser without WebGPU shows one error", async ({ page }) => {
  await page.goto("/?fail=webgpu");
  await expect(alert(page).locator("p")).toHaveText(["This browser has no WebGPU."]);
  await expect(page.locator("#start")).toBeDisabled();
});

test("a second tab cannot use the saved run", async ({ page, context }) => {
  await open(page);
  const second = await context.newPage();
  await second.goto("/");
  await expect(alert(second)).toContainText("open in another tab");
  await expect(second.locator("#start")).toBeHidden();
});

test("starting over asks first, and delete removes everything", async ({ page }) => {
  await open(page);
  await trainToTheEnd(page);
  page.once("dialog", (dialog) => void dialog.dismiss());
  await page.getByRole("button", { name: "Start over" }).click();
  await expect(saved(page)).toContainText("Finished");
  page.once("dialog", (dialog) => void dialog.accept());
  await page.getByRole("button", { name: "Start over" }).click();
  await expect(page.getByRole("button", { name: "Train", exact: true })).toBeEnabled();
  await trainToTheEnd(page);
  page.once("dialog", (dialog) => void dialog.accept());
  await page.getByRole("button", { name: "delete them" }).click();
  await expect(page.getByRole("button", { name: "Train", exact: true })).toBeVisible();
});
