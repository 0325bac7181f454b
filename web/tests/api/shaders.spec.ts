// The browser's compiler accepts every shader that browsers get. It is stricter than naga: for example, it requires parentheses
// between shifts and other operators.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "@playwright/test";
import { target } from "./native";

/** Written by `cargo test --release --test shaders`. */
const FILE = join(target, "tmp", "browser_shaders.json");

test("the browser's compiler takes every shader of features that its device has", async ({ page }) => {
  const shaders = Object.entries(JSON.parse(readFileSync(FILE, "utf8")) as Record<string, string>);
  expect(shaders.length).toBeGreaterThan(50);
  await page.goto("/tests/api/page.html");
  const { refused, left } = await page.evaluate(async (shaders) => {
    const adapter = await navigator.gpu.requestAdapter();
    const extensions = { "shader-f16": "enable f16;", subgroups: "enable subgroups;" };
    const names = Object.keys(extensions) as (keyof typeof extensions)[];
    const missing = names.filter((name) => !adapter!.features.has(name)).map((name) => extensions[name]);
    const device = await adapter!.requestDevice({ requiredFeatures: names.filter((name) => adapter!.features.has(name)) });
    const refused: string[] = [];
    let left = 0;
    for (const [name, code] of shaders) {
      if (missing.some((extension) => code.includes(extension))) {
        left++;
        continue;
      }
      device.pushErrorScope("validation");
      const info = await device.createShaderModule({ code }).getCompilationInfo();
      await device.popErrorScope();
      const errors = info.messages.filter((message) => message.type === "error");
      refused.push(...errors.map((error) => `${name}: line ${error.lineNum}: ${error.message}`));
    }
    return { refused, left };
  }, shaders);
  console.log(`  ${shaders.length - left} shaders; ${left} of features that the device lacks`);
  expect(refused).toEqual([]);
});
