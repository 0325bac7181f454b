/** Learning from rewards in the browser, on the tiny base, with a software renderer. */

import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test, type Page } from "@playwright/test";
import { lines, native } from "../api/native";

const STEPS = 3;
const recipe = (page: Page) => page.getByLabel("Recipe as TOML");
const plan = (page: Page) => page.locator("#plan");

/** recipes/grpo.toml, shortened, with a second reward. */
const RECIPE = `model.base = "tiny"
lora.rank = 8
data.train = "datasets/sums.jsonl"
data.val_size = 4
data.max_seq_len = 64
train.objective = "grpo"
train.batch_size = 16
train.max_steps = ${STEPS}
train.learning_rate = 2e-3
grpo.max_completion_length = 12
grpo.temperature = 1.5
eval.steps = 0
eval.samples = ["9 and 20 make how many?"]
eval.max_new_tokens = 8
output.dir = "runs/grpo"

[[rewards]]
name = "number"

[[rewards]]
name = "length"
target_len = 10
weight = 0.1
`;

async function open(page: Page): Promise<void> {
  page.on("pageerror", (error) => console.log(`  page: ${error.message}`));
  await page.goto("/");
  await expect(page.locator("#data-list li")).toBeVisible();
}

/** Chooses the example, and another recipe for it. */
async function sums(page: Page, text: string): Promise<void> {
  await page.getByLabel("An example").check();
  await page.getByLabel("Task").selectOption("sums");
  await expect(page.locator("#data-list")).toContainText("sums.jsonl");
  await page.locator("#recipe-details > summary").click();
  await recipe(page).fill(text);
}

test("the example trains from rewards as the program does; curve, completions, report and adapter", async ({ page }) => {
  await open(page);
  await sums(page, RECIPE);
  await expect(plan(page)).toContainText('number: 1 where the last number is that of the column "answer"; length: 1 at 10 tokens');
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(page.locator("#saved")).toContainText("Finished");
  await expect(page.getByRole("img", { name: /^Reward: training \d\.\d+, validation \d\.\d+$/ })).toBeVisible();
  await expect(page.getByRole("img", { name: /^Each reward: length \d\.\d+, number \d\.\d+$/ })).toBeVisible();
  await expect(page.getByRole("list", { name: "Best completions" }).locator("li").first()).toContainText(/reward .*\(length .*, number/);
  await expect(page.locator("#finish")).toContainText(/Reward -?\d\.\d\d → -?\d\.\d\d/);
  await page.getByText("Show as a table").click();
  await expect(page.locator(".values tbody tr")).toHaveCount(STEPS);

  const folder = mkdtempSync(join(tmpdir(), "rullama-train-"));
  const file = join(folder, "recipe.toml");
  writeFileSync(file, RECIPE);
  native(file, "--quiet", "--set", `output.dir=${folder}/out`);
  const there = lines(join(folder, "out/metrics.jsonl")) as unknown as Record<string, number>[];
  const reward = (name: string) => there.find((line) => line[name] !== undefined)![name]!;
  const cells = await page.locator(".values tbody tr").last().locator("td").allTextContents();
  console.log(`  reward of the first step: ${cells[1]} here, ${reward("reward").toFixed(3)} by the program on another device`);
  expect(Math.abs(Number(cells[1]) - reward("reward"))).toBeLessThan(0.1); // a token may fall to another one
  const [before] = /Reward (-?\d\.\d\d)/.exec((await page.locator("#finish").textContent())!)!.slice(1);
  expect(Math.abs(Number(before) - reward("eval_reward"))).toBeLessThan(0.01);

  await page.getByLabel("Message").fill("9 and 20 make how many?");
  await page.getByLabel("Message").press("Enter");
  await expect(page.locator("#adapter-log .assistant:not(.waiting)")).toHaveText(/Reply: .+/);
  const download = async (button: string) => {
    const [found] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: button, exact: true }).click()]);
    return readFileSync(await found.path(), "utf8");
  };
  expect(await download("Report")).toContain(`Completions of step ${STEPS}`);
  expect((await download("PEFT")).length).toBeGreaterThan(1000);
});

test("own samples get a recipe for the reward that is chosen; a reward that needs a program is refused", async ({ page }) => {
  await open(page);
  await page.getByLabel("Pasted text").check();
  const rows = Array.from({ length: 12 }, (_, i) => `${i} und ${i + 1}?;${2 * i + 1}`);
  await page.getByLabel("JSON Lines, a table").fill(["Aufgabe;Lösung", ...rows].join("\n"));
  await page.getByLabel("It learns from").selectOption("number");
  await expect(page.locator("#samples")).toContainText("12 prompts");
  await expect(page.locator("#samples .expected").first()).toHaveText("expected: 1");
  await expect(recipe(page)).toHaveValue(/objective = "grpo"/);
  await expect(recipe(page)).toHaveValue(/\[\[rewards\]\]\nname = "number"\ncolumn = "Lösung"/);
  await expect(plan(page)).toContainText("60 steps over 11 prompts");
  await expect(plan(page)).toContainText('the column "Lösung"');
  await page.getByLabel("It learns from").selectOption("regex");
  await page.getByLabel("Pattern").fill("(");
  await expect(page.locator("#samples .error")).toContainText("is not a regular expression");
  await page.getByLabel("Pattern").fill("\\d+");
  await expect(plan(page)).toContainText("regex: 1 where \\d+ occurs");

  await sums(page, RECIPE.replace('name = "number"', 'name = "command"\ncommand = ["python3", "reward.py"]'));
  await expect(page.locator("#recipe-error")).toContainText('the reward "command" cannot be had here; remove it, or train with the program');
  await expect(page.locator("#start")).toBeDisabled();
});
