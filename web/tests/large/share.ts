/** What the tests with large bases share. */

import type { Page } from "@playwright/test";

/** Prints what was done, with the seconds since the last call. */
export function clock() {
  let last = Date.now();
  return (what: string) => {
    console.log(`  ${((Date.now() - last) / 1000).toFixed(1)} s: ${what}`);
    last = Date.now();
  };
}

/** Steps of a recipe. */
export const STEPS = 3;

/** A recipe for pasted samples, that saves after its last step. `name` is that of its run, `held` the number of samples held out. */
export const recipe = (base: string, name: string, held: number) => `
model.base = "${base}"
data.train = "pasted.jsonl"
data.max_seq_len = 64
data.val_size = ${held}
lora.rank = 8
train.batch_size = 1
train.learning_rate = 2e-3
train.warmup_ratio = 0.0
train.max_steps = ${STEPS}
eval.samples = []
output.dir = "runs/${name}"
output.save_steps = ${STEPS}
`;

/** Samples with one answer to all questions. */
export const samples = (questions: string[]) => questions.map((prompt) => JSON.stringify({ prompt, completion: "Aye, matey!" })).join("\n");

/** A conversation's last reply. */
export const reply = (page: Page, log: string) => page.locator(`#${log} .assistant`).last().locator("span").nth(1);
