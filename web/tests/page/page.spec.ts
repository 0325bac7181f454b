/** The page with a fake trainer: what it shows, saves and downloads, and its error messages. */

import { readFileSync } from "node:fs";
import { expect, test } from "@playwright/test";
import { strToU8, unzipSync, zipSync } from "fflate";
import { alert, open, openRecipe, openSettings, openTalk, reached, saved, stored, trainToTheEnd } from "./page";

test("the form writes the recipe, and the recipe fills the form", async ({ page }) => {
  await open(page);
  await openSettings(page);
  await page.getByLabel("Rank", { exact: true }).fill("8");
  await openRecipe(page);
  const text = page.getByLabel("Recipe as TOML");
  await expect(text).toHaveValue(/\nrank = 8 +# default: 16/);
  await text.fill((await text.inputValue()).replace("learning_rate = 4e-3", "learning_rate = 1e-3"));
  await expect(page.getByLabel("Learning rate", { exact: true })).toHaveValue("1e-3");
  await expect(page.getByLabel("Questions to answer")).toHaveValue(/Peru\?\n.*snow\?\n/);
});

test("an error of the recipe is shown at its line", async ({ page }) => {
  await open(page);
  await openRecipe(page);
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
  await page.getByLabel("JSON Lines, a table").fill('{"prompt": "Hello!", "completion": "Ahoy!"}');
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/train = "pasted.jsonl"/);
  await openSettings(page);
  await page.getByLabel("Rank", { exact: true }).fill("7");
  await page.getByLabel("A GGUF at a URL").check();
  await page.getByLabel("URL", { exact: true }).fill("https://example.org/a.gguf");
  await page.getByLabel("URL", { exact: true }).blur();
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/base = "https:\/\/example.org\/a.gguf"/);
  await stored(page, "example.org");
  await page.goto("/");
  await expect(page.getByLabel("JSON Lines, a table")).toHaveValue(/Ahoy!/);
  await expect(page.getByLabel("Rank", { exact: true })).toHaveValue("7");
  await expect(page.getByLabel("URL", { exact: true })).toHaveValue("https://example.org/a.gguf");
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/train = "pasted.jsonl"/);
  await expect(page.getByRole("button", { name: "Download it" })).toBeVisible(); // nothing is fetched from elsewhere unasked
});

test("picked files of samples survive a reload", async ({ page }) => {
  await open(page);
  await page.getByLabel("Your files").check();
  await page.locator("#data-files").setInputFiles([
    { name: "a b.jsonl", mimeType: "text/plain", buffer: Buffer.from("{}\n") },
    { name: "c.jsonl", mimeType: "text/plain", buffer: Buffer.from("{}\n") },
  ]);
  await stored(page, "c.jsonl");
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
  await expect(page.locator("#replies .words")).toHaveText(["The capital of Peru is Lima.", "The capital of Peru is Lima. Aye, matey!"]);

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
  await openSettings(page);
  await page.getByLabel("Rank", { exact: true }).fill("4");
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
  await expect(other.getByLabel("Rank", { exact: true })).toHaveValue("4"); // its recipe came along
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
  await expect(alert(page)).toContainText("Step 9 could not be saved: the storage of this browser is full. The checkpoint of step 8 is still saved.");
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
  await expect(alert(page)).toContainText("Step 8 could not be saved: the storage of this browser is full");
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
  await expect(alert(page)).toContainText("The GPU was lost: A valid external Instance reference no longer exists. The run is saved up to step 8.");
  await expect(page.getByRole("button", { name: "Continue at step 8" })).toBeEnabled();
});

test("a browser without WebGPU shows one error", async ({ page }) => {
  await page.goto("/?fail=webgpu");
  await expect(alert(page).locator("p")).toHaveText([/^This browser has no WebGPU. Chrome and Edge/]);
  await expect(page.locator("#plan")).toHaveText("Training needs a GPU in this browser.");
  await expect(page.locator("#start")).toBeDisabled();
});

test("a second tab cannot use the saved run", async ({ page, context }) => {
  await open(page);
  const second = await context.newPage();
  await second.goto("/");
  await expect(alert(second)).toContainText("open in another tab");
  await expect(second.locator(".setup")).toHaveAttribute("inert", "");
  await second.evaluate(() => {
    const seed = document.querySelector<HTMLInputElement>("#recipe-form input")!;
    seed.value = "9";
    seed.dispatchEvent(new Event("input", { bubbles: true }));
  });
  await second.waitForTimeout(600); // the session would be written by then
  await second.close(); // else a reload of the first could let the second continue
  const recipe = page.getByLabel("Recipe as TOML");
  await open(page);
  await expect(recipe).toHaveValue(/pirate\.jsonl/);
});

test("a second tab continues when the first one is closed", async ({ page, context }) => {
  await open(page);
  const second = await context.newPage();
  await second.goto("/");
  await expect(alert(second)).toContainText("open in another tab");
  await page.close();
  await expect(second.locator("#start")).toBeEnabled();
});

test("a tab closed during its first write loses nothing", async ({ page }) => {
  await page.route("/empty", (route) => route.fulfill({ contentType: "text/html", body: "" }));
  await page.goto("/empty"); // of the same origin, and writes nothing
  await page.evaluate(async () => {
    const root = await navigator.storage.getDirectory();
    for (const [folder, file] of [["session", "session.json"], ["run", "result.json"]] as const) {
      await (await root.getDirectoryHandle(folder, { create: true })).getFileHandle(file, { create: true });
    }
  });
  await open(page);
  await expect(alert(page).locator("p")).toHaveCount(0);
});

test("changes of the recipe stay when samples are picked", async ({ page }) => {
  await open(page);
  await openSettings(page);
  const rank = page.getByLabel("Rank", { exact: true });
  await rank.fill("8");
  await page.getByLabel("Pasted text").check();
  await page.getByLabel("An example").check();
  await expect(rank).toHaveValue("8");
  await page.getByLabel("Task").selectOption("labels");
  await expect(alert(page)).toContainText("has replaced the one that you changed");
  await expect(rank).not.toHaveValue("8");
  await page.getByRole("button", { name: "Use mine again" }).click();
  await expect(rank).toHaveValue("8");
});

test("pasted tables and texts are read as such", async ({ page }) => {
  await open(page);
  await page.getByLabel("Pasted text").check();
  const pasted = page.getByLabel("JSON Lines, a table");
  for (const [text, name] of [["prompt,completion\nHello!,Ahoy!", "csv"], ["prompt\tcompletion\na\tb", "csv"], ["Once upon a time, there was a ship.", "txt"], ['{"text": "a"}', "jsonl"]]) {
    await pasted.fill(text!);
    await expect(page.locator("#data-list li")).toContainText(`pasted.${name}, `);
  }
});

test("dropped files become the samples", async ({ page }) => {
  await open(page);
  const dropped = await page.evaluateHandle(() => {
    const transfer = new DataTransfer();
    transfer.items.add(new File(["a,b\n"], "mine.csv"));
    return transfer;
  });
  await page.dispatchEvent("body", "drop", { dataTransfer: dropped });
  await expect(page.locator("#data-list li")).toHaveText(["mine.csv, 4 B"]);
  await expect(page.getByLabel("Recipe as TOML")).toHaveValue(/train = "mine.csv"/);
});

test("a new conversation ends the reply, and a reply can be stopped", async ({ page }) => {
  await open(page);
  await openTalk(page);
  const [input, log] = [page.getByLabel("Message"), page.locator("#base-log")];
  await input.fill("One? (endless)");
  await input.press("Enter");
  await expect(log.locator(".assistant")).toContainText("The");
  await page.getByRole("button", { name: "New conversation" }).click();
  await expect(page.getByRole("button", { name: "Ask" })).toBeEnabled();
  await expect(log).toBeEmpty();
  await input.fill("Two? (endless)");
  await input.press("Enter");
  await expect(log.locator(".assistant")).toContainText("The");
  await page.getByRole("button", { name: "Stop the reply" }).click();
  await expect(page.getByRole("button", { name: "Ask" })).toBeEnabled();
  await expect(log.locator(".assistant")).not.toContainText("Lima.");
  await input.fill("Three?");
  await input.press("Enter");
  await expect(log.locator(".assistant").last()).toContainText("Lima.");
  const asked = await page.evaluate(() => (globalThis as { asked?: string[][] }).asked);
  expect(asked?.map((messages) => messages.length)).toEqual([1, 1, 3]); // the first reply belongs to no conversation
});

test("stopping the adapter's reply leaves the base's, and both conversations have the same questions", async ({ page }) => {
  await open(page);
  await trainToTheEnd(page);
  const [input, stop] = [page.getByLabel("Message"), page.getByRole("button", { name: "Stop the reply" })];
  await input.fill("One? (endless)");
  await input.press("Enter");
  await expect(page.locator("#adapter-log .assistant")).toContainText("The");
  await stop.click();
  await expect(page.locator("#base-log .assistant")).toContainText("The");
  await stop.click();
  await input.fill("Two?");
  await input.press("Enter");
  await expect(page.locator("#base-log .assistant").last()).toContainText("Lima.");
  const asked = await page.evaluate(() => (globalThis as { asked?: string[][] }).asked);
  expect(asked?.map((messages) => messages.length)).toEqual([1, 1, 3, 3]);
});

test("the report is kept with the adapter", async ({ page }) => {
  await open(page);
  await trainToTheEnd(page);
  await expect(page).toHaveTitle("rullama-train");
  await open(page);
  const [report] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Report" }).click()]);
  expect(report.suggestedFilename()).toBe("report.html");
  expect(readFileSync(await report.path(), "utf8")).toBe("<h1>Report</h1>");
});

test("starting over asks by name, and delete removes everything", async ({ page }) => {
  await open(page, "?hold=9");
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await reached(page, 9);
  await page.getByRole("button", { name: "Stop and save" }).click();
  await page.getByRole("button", { name: "Start over" }).click();
  const question = page.getByRole("dialog");
  await expect(question).toContainText("This deletes the unfinished run, trained up to step 9.");
  await page.keyboard.press("Escape");
  await expect(page.getByRole("button", { name: "Continue at step 9" })).toBeVisible();
  await page.getByRole("button", { name: "Start over" }).click();
  await question.getByRole("button", { name: "Delete the run" }).click();
  await expect(page.getByRole("button", { name: "Train", exact: true })).toBeEnabled();
  await open(page);
  await trainToTheEnd(page);
  await page.getByRole("button", { name: "delete them" }).click();
  await expect(question).toContainText("the recipe, the samples, 1 run with their adapters");
  await question.getByRole("button", { name: "Delete everything" }).click();
  await expect(page.getByRole("button", { name: "Train", exact: true })).toBeVisible();
  await expect(page.locator("#runs")).toBeHidden();
});
