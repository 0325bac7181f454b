/** Learning from rewards. */

import { expect, test, type Page } from "@playwright/test";
import { fromHash, toHash } from "../../src/ui/link";
import { namesOf, withReward } from "../../src/ui/learn";
import { linesOf } from "../../src/ui/sheet";
import { allValues } from "../../src/ui/toml";
import { alert, open, reached, saved } from "./page";

const recipe = (page: Page) => page.getByLabel("Recipe as TOML");
const from = (page: Page) => page.getByLabel("It learns from");
const train = (page: Page) => page.getByRole("button", { name: "Train", exact: true });
const readWith = (page: Page) => page.evaluate(() => (globalThis as { read?: { recipe: string; text: string; name: string } }).read ?? { recipe: "", text: "", name: "" });

test("rewards and prompts are written as the program reads them", () => {
  expect(withReward("[train]\nlearning_rate = 1e-4\n", { reward: "number" }, "solution")).toBe(
    '[train]\nobjective = "grpo"\nlearning_rate = 1e-4\n\n[[rewards]]\nname = "number"\ncolumn = "solution"\n',
  );
  expect(withReward("", { reward: "regex", value: "a\\b" }, "answer")).toContain('pattern = "a\\\\b"');
  expect(withReward("", { reward: "length" }, "answer")).toContain("target_len = 100");
  expect(linesOf([["9 and 20?", "29"], ["7 and 8?", ""]], "expected")).toEqual({ text: '{"prompt":"9 and 20?","answer":"29"}', count: 1, half: 1 });
  expect(linesOf([["Write a poem.", ""]], "none").text).toBe('{"prompt":"Write a poem."}');
  expect(namesOf('{"prompt": "a", "solution": 1}\n{"prompt": "b", "solution": 2}')).toEqual(["prompt", "solution"]);
  expect(namesOf('[\n  {"question": "a", "answer": 1}\n]')).toEqual(["question", "answer"]);
  expect(namesOf("a poem\nof two lines")).toEqual([]);
});

test("every reward of a recipe counts as a setting", () => {
  const two = '[train]\nobjective = "grpo"\n\n[[rewards]]\nname = "number"\n\n[[rewards]]\nname = "length"\ntarget_len = 20\n';
  expect([...allValues(two).keys()]).toEqual(["train.objective", "rewards.name", "rewards#2.name", "rewards#2.target_len"]);
});

test("an example learns from rewards: plan, curves, the best and the worst, and the end", async ({ page }) => {
  await open(page, "?hold=9");
  await page.getByLabel("Task").selectOption({ label: "Rewards: find out what a question asks for" });
  await expect(page.locator("#samples")).toContainText("Training tries answers to them");
  await expect(page.locator("#samples .expected").first()).toHaveText("expected: 29");
  await expect(page.locator("#plan")).toContainText("It learns from 1 reward: number: 1 where it is right.");
  await page.locator("#plan-box > summary").click();
  await expect(page.locator("#plan-table")).toContainText("8 completions for each of 4 prompts");
  await train(page).click();
  await reached(page, 9);
  await expect(page.locator("#progress-text")).toContainText("reward 0.850");
  const chart = page.getByRole("img", { name: /^Reward: training 0.850, validation 0.975$/ });
  await expect(chart).toBeVisible();
  await expect(page.getByRole("img", { name: /^Loss/ })).toBeHidden();
  await expect(page.getByRole("list", { name: "Best completions" })).toContainText("9 + 20 = 29");
  await expect(page.getByRole("list", { name: "Worst completions" })).toContainText("reward 0, cut");
  await page.getByText("Show as a table").click();
  await expect(page.locator(".values thead th")).toContainText(["Step", "Reward", "Validation reward", "Loss"]);
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("button", { name: "Resume" }).click();
  await expect(saved(page)).toContainText("Finished");
  await expect(page.locator("#finish")).toContainText("Its answers get more reward now.");
  await expect(page.locator("#finish")).toContainText("Reward 0.47 → 0.97.");
  await expect(page.locator("#runs-list")).toContainText("reward 0.47 → 0.97");
  await expect(page.locator("#talk")).toBeVisible();
  await expect(page.locator("#keep")).toBeVisible();
  await page.reload();
  await expect(saved(page)).toContainText("Finished");
  await expect(alert(page)).toBeEmpty();
});

test("a stopped run shows its rewards again after a reload", async ({ page }) => {
  await open(page, "?hold=9");
  await page.getByLabel("Task").selectOption("sums");
  await expect(page.locator("#plan")).toContainText("It learns from");
  await train(page).click();
  await reached(page, 9);
  await page.getByRole("button", { name: "Stop and save" }).click();
  await expect(page.getByRole("button", { name: "Continue at step 9" })).toBeEnabled();
  await page.reload();
  await expect(page.getByRole("img", { name: /^Reward: training 0.850, validation 0.975$/ })).toBeVisible();
});

test("a run that gains no reward says so", async ({ page }) => {
  await open(page, "?same=1");
  await page.getByLabel("Task").selectOption("sums");
  await expect(page.locator("#plan")).toContainText("It learns from");
  await train(page).click();
  await expect(saved(page)).toContainText("Finished");
  await expect(page.locator("#finish")).toContainText("Its answers get no more reward than before.");
  await expect(page.getByRole("button", { name: "Train longer" })).toBeVisible();
});

test("own samples learn from a reward, by the column with the expected answer", async ({ page }) => {
  await open(page);
  await page.getByLabel("Your files").check();
  const sums = "Aufgabe;Lösung\n9 und 20?;29\n7 und 8?;15\n";
  await page.getByLabel("JSON Lines, JSON, CSV").setInputFiles({ name: "sums.csv", mimeType: "text/csv", buffer: Buffer.from(sums) });
  await expect(page.locator("#samples")).toContainText("3 samples"); // of the fake: a line each
  await from(page).selectOption({ label: "number: the last number is right" });
  await expect(page.locator("#learn")).toContainText("The column “Lösung” has what is expected.");
  await expect(recipe(page)).toHaveValue(/fields = \{ prompt = "Aufgabe" \}/);
  await expect(recipe(page)).toHaveValue(/objective = "grpo"[\s\S]*\[\[rewards\]\]\nname = "number"\ncolumn = "Lösung"/);
  await expect(page.locator("#samples")).toContainText("3 prompts");
  await page.getByLabel("Answer", { exact: true }).selectOption("Aufgabe");
  await expect(recipe(page)).toHaveValue(/column = "Aufgabe"/);
  await page.getByLabel("Answer", { exact: true }).selectOption("Lösung");
  await expect(recipe(page)).toHaveValue(/column = "Lösung"/);
  await train(page).click();
  await expect(saved(page)).toContainText("Finished");
  await page.reload();
  await expect(from(page)).toHaveValue("number");
  await expect(saved(page)).toContainText("Finished");
  await from(page).selectOption({ label: "the answers: it imitates them" });
  await expect(recipe(page)).not.toHaveValue(/grpo/);
  await expect(recipe(page)).toHaveValue(/fields = \{ prompt = "Aufgabe", completion = "Lösung" \}/);
});

test("records name the column, and a reward has its setting", async ({ page }) => {
  await open(page);
  await page.getByLabel("Pasted text").check();
  await page.getByLabel("JSON Lines, a table").fill('{"prompt": "9 and 20?", "solution": 29, "note": "easy"}');
  await from(page).selectOption("exact_match");
  await expect(page.getByLabel("Expected answer")).toHaveValue("solution");
  await page.getByLabel("Expected answer").selectOption("note");
  await expect(recipe(page)).toHaveValue(/name = "exact_match"\ncolumn = "note"/);
  await from(page).selectOption("regex");
  await expect(page.getByLabel("Expected answer")).toHaveCount(0);
  await page.getByLabel("Pattern").fill("^Yes");
  await expect(recipe(page)).toHaveValue(/pattern = "\^Yes"/);
  await expect(page.getByLabel("Pattern")).toBeFocused();
});

test("a sheet asks for the right answer, or only for prompts", async ({ page }) => {
  await open(page);
  await page.getByLabel("A sheet").check();
  await page.getByLabel("When someone says, row 1", { exact: true }).fill("9 and 20?");
  await from(page).selectOption("number");
  await page.getByLabel("the right answer is, row 1", { exact: true }).fill("29");
  await expect.poll(async () => (await readWith(page)).text).toBe('{"prompt":"9 and 20?","answer":"29"}');
  await page.getByLabel("the right answer is, row 1", { exact: true }).fill("");
  await from(page).selectOption("repetition");
  await expect.poll(async () => (await readWith(page)).text).toBe('{"prompt":"9 and 20?"}');
});

test("a recipe of the user's is replaced by a choice, and comes back", async ({ page }) => {
  await open(page);
  await page.getByLabel("Pasted text").check();
  await page.getByLabel("JSON Lines, a table").fill('{"prompt": "a", "answer": "b"}');
  await expect(page.locator("#samples")).toContainText("1 sample");
  await expect(recipe(page)).toHaveValue(/pasted.jsonl/);
  await page.locator("#recipe-details > summary").click();
  await recipe(page).fill((await recipe(page).inputValue()).replace("rank = 16", "rank = 5"));
  await from(page).selectOption("number");
  await expect(recipe(page)).toHaveValue(/grpo/);
  await alert(page).getByRole("button", { name: "Use mine again" }).click();
  await expect(recipe(page)).toHaveValue(/rank = 5/);
  await expect(from(page)).toHaveValue("");
});

test("a link carries the reward", async ({ page }) => {
  const shared = { text: '{"prompt": "9 and 20?", "answer": 29}', picked: { reading: "json" as const }, learn: { reward: "number" as const }, changes: [] };
  expect(fromHash(toHash(shared))).toEqual(shared);
  await open(page, toHash(shared));
  await expect(page.locator("#link-note")).toContainText("the reward “number”");
  await expect(from(page)).toHaveValue("number");
  await expect(recipe(page)).toHaveValue(/objective = "grpo"/);
  await expect(train(page)).toBeEnabled();
});

test("a reward that needs a program is refused with its name", async ({ page }) => {
  await open(page);
  await page.getByLabel("Task").selectOption("sums");
  await expect(page.locator("#plan")).toContainText("It learns from");
  await page.locator("#recipe-details > summary").click();
  await recipe(page).fill((await recipe(page).inputValue()).replace('name = "number" ', 'name = "command"\ncommand = ["python3", "reward.py"] '));
  await expect(page.locator("#recipe-error")).toContainText('the reward "command" cannot be had here; remove it, or train with the program');
  await expect(train(page)).toBeDisabled();
});
