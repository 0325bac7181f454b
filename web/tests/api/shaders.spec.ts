// The browser's compiler accepts every shader that browsers get. It is stricter than naga: for example, it requires parentheses
// between shifts and other operators.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "@playwright/test";
import { target } from "./native";

/** Written by `cargo test --release --test shaders`. */
const FILE = join(target, "tmp", "plain_shaders.json");

test("the browser's compiler takes every shader", async ({ page }) => {
  const shaders = Object.entries(JSON.parse(readFileSync(FILE, "utf8")) as Record<string, string>);
  expect(shaders.length).toBeGreaterThan(50);
  await page.goto("/tests/api/page.html");
  const refused = await page.evaluate(async (shaders) => {
    const adapter = await navigator.gpu.requestAdapter();
    const device = await adapter!.requestDevice();
    const refused: string[] = [];
    for (const [name, code] of shaders) {
      device.pushErrorScope("validation");
      const info = await device.createShaderModule({ code }).getCompilationInfo();
      await device.popErrorScope();
      const errors = info.messages.filter((message) => message.type === "error");
      refused.push(...errors.map((error) => `${name}: line ${error.lineNum}: ${error.message}`));
    }
    return refused;
  }, shaders);
  expect(refused).toEqual([]);
});
