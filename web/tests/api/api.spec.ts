import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, type Page, test } from "@playwright/test";
import type { Event } from "../../src/api";
import { difference, example, floats, folder, lines, native, read, root, temporary, tensors, write } from "./native";
import type { Story } from "./page";

/** PyTorch itself is within 5e-6 in f32; tests/golden.rs has the same bounds. */
const GRADIENT = 5e-5;
const LOSS = 1e-5;
const LOGITS = 2e-5;
/** Maximum difference of the loss of a step from the native program on another device. */
const STEP = 1e-3;

const PIRATE = "datasets/pirate.jsonl";
/** Steps of the chat recipe; a software renderer is slow. */
const STEPS = 4;
const HALF = 2;
/** Samples split off for validation, of the recipe's 40. */
const VALIDATION = 2;
/** Tokens in a row, of the recipe's 256. */
const LENGTH = 96;

/** The chat recipe, shortened. */
const recipe = (change: (text: string) => string = (text) => text) =>
  change(
    read("recipes/chat.toml")
      .toString()
      .replace(/^# max_steps = 100/m, `max_steps = ${STEPS}`)
      .replace(/^save_steps = \d+/m, `save_steps = ${HALF}`)
      .replace(/^max_seq_len = \d+/m, `max_seq_len = ${LENGTH}`)
      .replace(/^warmup_ratio = [\d.]+/m, "warmup_ratio = 0.0")
      .replace(/^val_size = \d+/m, `val_size = ${VALIDATION}`)
      .replace(/^samples = \[[\s\S]*?^\]/m, 'samples = ["What is 7 plus 8?"]')
      .replace(/^max_new_tokens = \d+/m, "max_new_tokens = 4"),
  );

/** The same recipe by the native program, into the folder `dir`. */
function trainNatively(dir: string): void {
  const file = join(temporary(), "recipe.toml");
  writeFileSync(file, recipe());
  native(file, "--quiet", "--set", `output.dir=${dir}`);
}

const of = <K extends Event["event"]>(story: Story, kind: K) =>
  story.events.filter((event): event is Extract<Event, { event: K }> => event.event === kind);

test.describe.configure({ mode: "serial" });

let page: Page;
test.beforeAll(async ({ browser }) => {
  page = await browser.newPage();
  page.on("console", (message) => console.log(`  browser: ${message.text()}`));
  await page.goto("/tests/api/page.html");
  await page.waitForFunction(() => "api" in window);
});

test("on request the device has what every browser guarantees, and no more", async () => {
  const gpu = await page.evaluate((root) => window.api.open(root, true), root);
  console.log(`  ${gpu.name}`);
  expect(gpu.limits).toEqual({
    maxBufferSize: 256 * 2 ** 20,
    maxStorageBufferBindingSize: 128 * 2 ** 20,
    maxStorageBuffersPerShaderStage: 8,
    maxComputeWorkgroupStorageSize: 16384,
  });
});

/** Every new kernel takes seconds to be compiled here; with RULLAMA_ALL, the other three models of tests/golden too. */
const MODELS = process.env.RULLAMA_ALL ? ["dense", "moe", "big", "ollama", "moe128"] : ["dense", "moe"];

for (const model of MODELS) test(`golden: logits, loss and every gradient of ${model} are PyTorch's`, () => golden(model));

async function golden(model: string): Promise<void> {
  const at = `tests/golden/${model}`;
  const golden = tensors(read(`${at}/golden.safetensors`));
  const ids = [...golden.get("tokens")!];
  const labels = ids.map((id, i) => (golden.get("mask")![i] === 1 ? id : -100));
  const found = await page.evaluate(
    ([url, adapter, ids, labels]) => window.api.measure(url, adapter, ids, labels),
    [`/@fs${root}/${at}/model.gguf`, folder(join(root, at, "adapter")), ids, labels] as const,
  );
  const loss = golden.get("loss.lora")![0]!;
  expect(Math.abs(found.loss - loss) / loss).toBeLessThan(LOSS);
  const logits = difference(floats(found.logits), golden.get("logits.lora")!);
  const gradients = tensors(Buffer.from(found.gradients, "base64"));
  const expected = [...golden.keys()].filter((name) => name.startsWith("grad."));
  expect(gradients.size).toBe(expected.length);
  let worst = 0;
  for (const name of expected) {
    const key = `base_model.model.${name.slice("grad.".length).replace(/^base_model\.model\./, "")}`;
    worst = Math.max(worst, difference(gradients.get(key)!, golden.get(name)!));
  }
  console.log(`  ${model}: logits ${logits.toExponential(1)}, worst gradient ${worst.toExponential(1)}`);
  expect(logits).toBeLessThan(LOGITS);
  expect(worst).toBeLessThan(GRADIENT);
}

/** Everything from here on uses what the device offers. */
test("the device has all that its adapter offers, and runs the kernels for it", async () => {
  const gpu = await page.evaluate((root) => window.api.open(root), root);
  const adapter = await page.evaluate(async () => {
    const { limits, features, info } = (await navigator.gpu.requestAdapter({ powerPreference: "high-performance" }))!;
    const { maxBufferSize, maxStorageBufferBindingSize, maxStorageBuffersPerShaderStage, maxComputeWorkgroupStorageSize } = limits;
    return {
      limits: { maxBufferSize, maxStorageBufferBindingSize, maxStorageBuffersPerShaderStage, maxComputeWorkgroupStorageSize },
      software: info.isFallbackAdapter,
      f16: features.has("shader-f16"),
    };
  });
  console.log(`  kernels: ${gpu.kernels}`);
  expect(gpu.limits).toEqual(adapter.limits);
  expect(gpu.kernels).toBe(adapter.software ? "f32, for software renderers" : adapter.f16 ? "f16 operands" : "f32");
  expect(gpu.failedSelfTest ?? null).toBeNull();
});

test("golden: on the kernels for its device, logits, loss and every gradient of dense are PyTorch's", () => golden("dense"));

/** The recipe on the native program. */
const out = temporary();
let here: Story;

test("the chat recipe trains to the native losses", async () => {
  trainNatively(out);
  const there = lines(join(out, "metrics.jsonl"));
  here = await page.evaluate(([recipe, name]) => window.api.train("tiny", recipe, [name]), [recipe(), PIRATE] as const);
  expect(here.error).toBeUndefined();
  const steps = there.filter((line) => line.event === "step") as unknown as { step: number; loss: number }[];
  const found = of(here, "step");
  expect(found.map(({ step }) => step)).toEqual(steps.map(({ step }) => step));
  const apart = found.map(({ loss }, i) => Math.abs(loss! - steps[i]!.loss));
  console.log(`  ${STEPS} steps: losses differ by at most ${Math.max(...apart).toExponential(1)}; ${found.at(-1)!.seconds.toFixed(1)} s a step`);
  expect(Math.max(...apart)).toBeLessThan(STEP);
  const evaluations = there.filter((line) => line.event === "evaluation") as unknown as { eval_loss: number; replies: { reply: string }[] }[];
  of(here, "eval").forEach(({ scores }, i) => expect(Math.abs(scores!.eval_loss - evaluations[i]!.eval_loss)).toBeLessThan(STEP));
  const replies = evaluations.flatMap(({ replies }) => replies.map(({ reply }) => reply));
  expect(of(here, "sample").map(({ reply }) => reply)).toEqual(replies);
  expect(here.checkpoints.map(({ step }) => step)).toEqual([HALF, STEPS]);
});

/** Folder with the files that the browser exported. */
const exported = temporary();

test("the exported adapter gives the native logits", async () => {
  write(here.files, exported);
  for (const name of ["adapter_model.safetensors", "adapter_config.json", "report.html", "metrics.jsonl", "recipe.resolved.toml"]) {
    expect(existsSync(join(exported, name)), name).toBe(true);
  }
  example("logits", exported, "What is the capital of Peru?", join(exported, "logits.safetensors"));
  const there = tensors(readFileSync(join(exported, "logits.safetensors")));
  const ids = [...there.get("tokens")!];
  const found = await page.evaluate(
    ([adapter, ids]) => window.api.measure("tiny", adapter, ids, ids.map((id) => id)),
    [here.adapter, ids] as const,
  );
  const apart = difference(floats(found.logits), there.get("logits")!);
  console.log(`  logits differ by ${apart.toExponential(1)}`);
  expect(apart).toBeLessThan(LOGITS);
});

test("PEFT loads it", () => {
  const venv = process.env.RULLAMA_CONSUMERS;
  test.skip(!venv, "RULLAMA_CONSUMERS names no virtual environment with PEFT: tests/consumers/run makes one");
  const base = "models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf";
  const python = [join(venv!, "bin/python"), "tests/golden/peft_load.py", base, exported, join(exported, "logits.safetensors")] as const;
  console.log(`  ${execFileSync(python[0], python.slice(1), { cwd: root, encoding: "utf8" }).trim()}`);
});

test("a stopped run resumes from its checkpoint and is bit-identical", async () => {
  const stopped = await page.evaluate(
    ([recipe, name, at]) => window.api.train("tiny", recipe, [name], [], { at, then: "stop" }),
    [recipe(), PIRATE, 1] as const,
  );
  // A step may be running when the command arrives.
  const { step: at, stopped: early } = of(stopped, "done")[0]!;
  expect(early && at < STEPS).toBe(true);
  const on = await page.evaluate(
    ([recipe, name, checkpoint]) => window.api.train("tiny", recipe, [name], checkpoint),
    [recipe(), PIRATE, stopped.checkpoints.at(-1)!.files] as const,
  );
  expect(of(on, "plan")[0]!.resumed_at).toBe(at);
  const last = (story: Story) => of(story, "step").filter(({ step }) => step > at).map(({ loss }) => loss);
  expect(last(on)).toEqual(last(here));
  const weights = (story: Story) => story.adapter.find(({ path }) => path === "adapter_model.safetensors")!.base64;
  expect(weights(on)).toBe(weights(here));
});

test("a native run is resumed in the browser", async () => {
  const checkpoint = folder(out).filter(({ path }) => path.startsWith(`checkpoint-${HALF}/`));
  const on = await page.evaluate(
    ([recipe, name, checkpoint]) => window.api.train("tiny", recipe, [name], checkpoint),
    [recipe(), PIRATE, checkpoint] as const,
  );
  expect(on.error).toBeUndefined();
  const there = lines(join(out, "metrics.jsonl")).filter(({ event, step }) => event === "step" && (step as number) > HALF);
  of(on, "step").forEach(({ step, loss }, i) => {
    expect(step).toBe(there[i]!.step);
    expect(Math.abs(loss! - (there[i]!.loss as number))).toBeLessThan(STEP);
  });
  expect(of(on, "step")).toHaveLength(STEPS - HALF);
});

test("a browser's run is resumed by the native program", async () => {
  const dir = temporary();
  write(here.checkpoints[0]!.files, dir);
  trainNatively(dir);
  const there = lines(join(dir, "metrics.jsonl")).filter(({ event }) => event === "step");
  expect(there.map(({ step }) => step)).toEqual(of(here, "step").map(({ step }) => step));
  there.forEach(({ loss }, i) => expect(Math.abs((loss as number) - of(here, "step")[i]!.loss!)).toBeLessThan(STEP));
});

test("pause, a checkpoint on request, and resume change nothing", async () => {
  const paused = await page.evaluate(
    ([recipe, name]) => window.api.train("tiny", recipe, [name], [], { at: 1, then: "pause" }),
    [recipe(), PIRATE] as const,
  );
  expect(paused.events.map(({ event }) => event).filter((event) => event === "paused" || event === "resumed")).toEqual(["paused", "resumed"]);
  expect(paused.checkpoints[0]!.files.length).toBeGreaterThan(4);
  expect(of(paused, "done")[0]).toMatchObject({ stopped: false, step: STEPS });
});

test("replies are streamed, with and without the adapter, and equal those of the native program", async () => {
  const question = "What is the capital of Peru?";
  const alone = await page.evaluate((text) => window.api.chat("tiny", text), question);
  expect(alone.length).toBeGreaterThan(2);
  const there = (...more: string[]) =>
    (JSON.parse(native("generate", "tiny", "--prompt", question, "--temperature", "0", "--max-tokens", "24", "--json", ...more)) as { text: string }).text;
  expect(alone.join("")).toBe(there());
  const adapted = await page.evaluate(([text, adapter]) => window.api.chat("tiny", text, adapter), [question, here.adapter] as const);
  expect(adapted.join("")).toBe(there("--adapter", exported));
});

test("an adapter is exported to other formats and back to the same tensors", async () => {
  for (const form of ["gguf-lora", "mlx"] as const) {
    const other = await page.evaluate(([adapter, form]) => window.api.export("tiny", adapter, form), [here.adapter, form] as const);
    const back = await page.evaluate((adapter) => window.api.export("tiny", adapter, "peft"), other);
    const weights = (files: { path: string; base64: string }[]) =>
      tensors(Buffer.from(files.find(({ path }) => path === "adapter_model.safetensors")!.base64, "base64"));
    expect(weights(back)).toEqual(weights(here.adapter));
  }
});

test("errors in a recipe, its files or a base are reported once, with their position", async () => {
  const check = (text: string, names = [PIRATE], base = "tiny") =>
    page.evaluate(([base, text, names]) => window.api.check(base, text, names), [base, text, names] as const);
  const sound = await check(recipe());
  expect(sound.check).toMatchObject({ steps: STEPS, train: { samples: 400 - VALIDATION }, validation: { samples: VALIDATION } });
  const wrong = await check("[model]\nbase = 'tiny'\n\n[lora]\nrnak = 3\n");
  expect(wrong.error).toMatchObject({ name: "RecipeError", line: 5, column: 1 });
  expect(wrong.error?.message).toContain("rank");
  const missing = await check(recipe(), []);
  expect(missing.error).toMatchObject({ name: "RecipeError", key: "data.train" });
  const damaged = await check(recipe(), [PIRATE], `/@fs${root}/recipes/chat.toml`);
  expect(damaged.error).toMatchObject({ name: "BaseError" });
  expect(damaged.error?.message).toContain('expected "GGUF"');
  const nowhere = await check(recipe(), [PIRATE], "/nowhere/model.gguf");
  expect(nowhere.error?.message).toMatch(/404|GGUF/);
});

test("a checkpoint of another run, and a damaged one, are refused", async () => {
  const train = (text: string, files: { path: string; base64: string }[]) =>
    page.evaluate(([text, name, files]) => window.api.train("tiny", text, [name], files), [text, PIRATE, files] as const);
  const files = here.checkpoints[0]!.files;
  const other = await train(recipe((text) => text.replace(/^seed = 42/m, "seed = 43")), files);
  expect(other.error?.message).toContain("train.seed was 42 and is 43");
  const cut = files.map((file) => (file.path.endsWith("optimizer.safetensors") ? { ...file, base64: file.base64.slice(0, 400) } : file));
  const damaged = await train(recipe(), cut);
  expect(damaged.error?.message).toMatch(/is damaged: optimizer.safetensors has \d+ bytes/);
});

test("a lost device ends the run with one error", async () => {
  const lost = await page.evaluate(
    ([recipe, name]) => window.api.train("tiny", recipe, [name], [], { at: 1, then: "lose" }),
    [recipe(), PIRATE] as const,
  );
  expect(lost.error).toMatchObject({ name: "DeviceLost" });
  expect(lost.error?.message).toContain("resume from the last checkpoint");
  // A new trainer takes its place.
  await page.evaluate(() => window.api.close());
  await page.evaluate((root) => window.api.open(root), root);
  const again = await page.evaluate((text) => window.api.chat("tiny", text, [], 4), "Hello!");
  expect(again.length).toBeGreaterThan(0);
});
