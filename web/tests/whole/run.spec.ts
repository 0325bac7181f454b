/** Complete runs on the page, on the tiny base, with a software renderer. */

import { cpSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test, type Page } from "@playwright/test";
import { unzipSync } from "fflate";
import { native, read, root } from "../api/native";

const saved = (page: Page) => page.locator("#saved");
const alert = (page: Page) => page.locator("#alert");
const STEPS = 6;

const SETTINGS = ["data.max_seq_len=96", "data.val_size=2", "output.save_steps=2", "train.warmup_ratio=0.0"];

/** The chat recipe, shortened: a software renderer is slow. */
const RECIPE = `
model.base = "tiny"
data.train = "datasets/pirate.jsonl"
train.learning_rate = 4e-3
train.max_steps = ${STEPS}
eval.samples = ["What is the capital of Peru?"]
eval.max_new_tokens = 8
output.dir = "runs/chat"
${SETTINGS.join("\n")}
`;

/** Opens the page; with `shortened`, on the chat recipe in a few small steps. */
async function open(page: Page, shortened = false): Promise<void> {
  page.on("pageerror", (error) => console.log(`  page: ${error.message}`));
  await page.goto("/");
  await expect(page.locator("#data-list li")).toBeVisible();
  if (shortened) {
    await page.locator("#recipe-details > summary").click();
    await page.getByLabel("Recipe as TOML").fill(RECIPE);
  }
}

/** Waits until so many steps are taken; while the model is read, the bar counts layers. */
const reached = (page: Page, step: number) =>
  expect
    .poll(async () => Number(/^Step (\d+)/.exec((await page.locator("#progress-text").textContent()) ?? "")?.[1] ?? 0))
    .toBeGreaterThanOrEqual(step);

async function unzipped(page: Page, button: string): Promise<string> {
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: button }).click()]);
  const folder = mkdtempSync(join(tmpdir(), "rullama-train-"));
  if (!file.suggestedFilename().endsWith(".zip")) {
    await file.saveAs(join(folder, file.suggestedFilename()));
    return join(folder, file.suggestedFilename());
  }
  await file.saveAs(join(folder, "all.zip"));
  for (const [path, bytes] of Object.entries(unzipSync(readFileSync(join(folder, "all.zip"))))) {
    mkdirSync(join(folder, path, ".."), { recursive: true });
    writeFileSync(join(folder, path), bytes);
  }
  return folder;
}

test("pause, reload, continue, finish, talk, download; the program reads it", async ({ page }) => {
  await open(page, true);
  const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
  console.log(`  first contentful paint after ${paint?.toFixed(0)} ms`);
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await reached(page, 3);
  await page.getByRole("button", { name: "Pause" }).click();
  await expect(page.getByRole("button", { name: "Resume" })).toBeVisible();
  await expect(saved(page)).toHaveText(/up to step [345] of 6/);
  await open(page);
  await page.getByRole("button", { name: /^Continue at step [345]$/ }).click();
  await expect(saved(page)).toContainText("Finished");
  await page.getByText("Show as a table").click();
  await expect(page.locator(".values tbody tr")).toHaveCount(STEPS);
  await expect(page.locator("#replies .exchanges li")).toHaveCount(1);

  await page.getByLabel("Message").fill("What is the capital of Peru?");
  await page.getByLabel("Message").press("Enter");
  await expect(page.locator("#adapter-log .assistant:not(.waiting)")).toHaveText(/Reply: .+/);
  await expect(page.locator("#base-log .assistant")).toHaveText(/Reply: .+/);

  expect(native("inspect", join(await unzipped(page, "PEFT"), "adapter"), "--base", "tiny")).toContain("rank 16");
  const merged = join(await unzipped(page, "Merged GGUF"), "merged.gguf");
  expect(native("inspect", merged)).toContain("gemma4");
  expect(native("inspect", await unzipped(page, "GGUF LoRA"), "--base", "tiny")).toContain("rank 16");
  const checkpoint = await unzipped(page, "Checkpoint");
  expect(native("inspect", join(checkpoint, `checkpoint-${STEPS}`))).toContain(`step ${STEPS}`);
});

test("a run of the native program is finished in the browser", async ({ page }) => {
  const folder = mkdtempSync(join(tmpdir(), "rullama-train-"));
  const settings = [...SETTINGS, "train.max_steps=4", "eval.samples=[]", `output.dir=${folder}/chat`];
  native("recipes/chat.toml", ...settings.flatMap((one) => ["--set", one]));
  const begun = join(folder, "begun");
  cpSync(join(folder, "chat/checkpoint-2"), join(begun, "checkpoint-2"), { recursive: true });
  cpSync(join(folder, "chat/recipe.resolved.toml"), join(begun, "recipe.resolved.toml"));
  await open(page);
  await page.getByText("Continue from a checkpoint").click();
  await page.getByLabel("Folder").setInputFiles(begun);
  await page.getByRole("button", { name: "Continue at step 2" }).click();
  await expect(saved(page)).toContainText("Finished: the adapter of step");
  await page.getByText("Show as a table").click();
  await expect(page.locator(".values tbody tr")).toHaveCount(4);
});

test("a lost device loses no saved checkpoint", async ({ page }) => {
  await page.addInitScript(() => {
    const Original = Worker;
    globalThis.Worker = class extends Original {
      constructor(...rest: ConstructorParameters<typeof Worker>) {
        super(...rest);
        (globalThis as { device?: Worker }).device = this;
      }
    };
  });
  await open(page, true);
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(saved(page)).toContainText("up to step 2");
  await page.evaluate(() => (globalThis as { device?: Worker }).device!.postMessage({ type: "destroy" })); // device.destroy()
  await expect(alert(page)).toContainText(/saved up to step [2-6]/);
  await expect(alert(page).locator("p")).toHaveCount(1);
  await page.getByRole("button", { name: "Resume from there" }).click();
  await expect(saved(page)).toContainText("Finished");
});

test("invalid models and samples are refused with one message", async ({ page }) => {
  await open(page);
  await page.locator("#settings-details > summary").click();
  await page.getByLabel("A GGUF on this machine").check();
  await page.locator("#base-file").setInputFiles({ name: "photo.gguf", mimeType: "", buffer: Buffer.from("JFIF".repeat(100)) });
  await expect(page.locator("#base-error")).toContainText("photo.gguf");
  await page.locator("#base-file").setInputFiles({ name: "half.gguf", mimeType: "", buffer: read("models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf").subarray(0, 2_000_000) });
  await expect(page.locator("#base-error")).toContainText("half.gguf");
  await page.locator("#base-file").setInputFiles(join(root, "models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf"));
  await expect(page.locator("#plan")).toContainText("GPU memory");
  await page.getByLabel("Pasted text").check();
  await page.getByLabel("JSON Lines, a table").fill('{"prompt": "Hello!"}');
  await expect(page.locator("#samples .error")).toContainText("pasted.jsonl");
  await expect(page.locator("#start")).toBeDisabled();
});
