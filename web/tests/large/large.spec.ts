/** A base of 607 MiB: downloaded once, trained, and asked again with its adapter by another start of the browser. */

import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium, expect, test } from "@playwright/test";
import { launchOptions } from "../browser";
import { serveBase, SIZE } from "./base";
import { clock, recipe, reply, samples, STEPS } from "./share";

const SAMPLES = samples(["Hello", "Where are you?", "What now?", "Who is there?"]);

test("a base of 607 MiB is downloaded once, trained, and asked with its adapter after a new start of the browser", async ({ baseURL }) => {
  const base = await serveBase();
  const profile = mkdtempSync(join(tmpdir(), "rullama-train-"));
  const start = async () => {
    const browser = await chromium.launchPersistentContext(profile, { ...launchOptions, viewport: { width: 1280, height: 900 } });
    const page = browser.pages()[0]!;
    page.on("pageerror", (error) => console.log(`  page: ${error.message}`));
    await page.goto(baseURL!);
    await expect(page.locator("#start, #discard").locator("visible=true").first()).toBeEnabled();
    return { browser, page };
  };
  const done = clock();
  const first = await start();
  done("the page is open");

  await first.page.locator("#settings-details > summary").click();
  await first.page.getByLabel("A GGUF at a URL").check();
  await first.page.getByLabel("URL", { exact: true }).fill(base.url);
  await first.page.getByLabel("URL", { exact: true }).blur();
  await first.page.getByRole("button", { name: "Download it" }).click();
  await expect(first.page.locator("#base-download")).toContainText(`${(SIZE / 2 ** 20).toFixed(1)} MiB, kept in this browser`);
  done("downloaded");
  await first.page.getByLabel("Pasted text").check();
  await first.page.getByLabel("JSON Lines, a table").fill(SAMPLES);
  await expect(first.page.locator("#samples")).toContainText("4 samples");
  await first.page.locator("#recipe-details > summary").click();
  await first.page.getByLabel("Recipe as TOML").fill(recipe(base.url, "large", 1));
  await expect(first.page.locator("#plan")).toContainText(`${STEPS} steps`);
  done(`read samples and plan: ${await first.page.locator("#plan").innerText()}`);

  await first.page.getByRole("button", { name: "Train", exact: true }).click();
  const text = first.page.locator("#progress-text");
  await expect(text).toHaveText("Testing the longest batch …");
  done("the model is on the device");
  for (let step = 1; step <= STEPS; step++) {
    await expect(text).toContainText(`Step ${step} of ${STEPS}`);
    done(await text.innerText());
  }
  await expect(first.page.locator("#saved")).toContainText("Finished");
  done("the adapter is written and compared");
  await first.browser.close();
  base.close(); // from here on, nothing can be downloaded
  expect(base.asked).toEqual(["GET all"]);

  const second = await start();
  await expect(second.page.locator("#base-download")).toContainText("kept in this browser");
  await expect(second.page.locator("#talk-note")).toContainText(`then the adapter of step ${STEPS}`);
  done("the page is open again, with base and adapter");
  await second.page.getByLabel("Message").fill("Who are you?");
  await second.page.getByLabel("Message").press("Enter");
  const words: string[] = [];
  for (const log of ["base-log", "adapter-log"]) {
    await expect(reply(second.page, log)).toContainText(/(\S+\s+){4}/); // a base of random weights never ends
    await second.page.getByRole("button", { name: "Stop the reply" }).click();
    await expect(second.page.locator(`#${log} .assistant.waiting`)).toHaveCount(0);
    words.push(await reply(second.page, log).innerText());
    done(`${log}: ${words.at(-1)}`);
  }
  expect(words[0]).not.toBe(words[1]);
  await expect(second.page.locator("#alert p")).toHaveCount(0);
  expect(base.asked).toHaveLength(1);
  await second.browser.close();
});
