/** The page over the native engine: `rullama-train ui`. */

import { type ChildProcess, spawn } from "node:child_process";
import { chmodSync, existsSync, mkdtempSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { expect, test, type Page } from "@playwright/test";
import { native, program } from "../api/native";

const STEPS = 12;
const RECIPE = `
model.base = "tiny"
data.train = "datasets/pirate.jsonl"
data.max_seq_len = 96
data.val_size = 2
train.learning_rate = 4e-3
train.max_steps = ${STEPS}
eval.samples = ["What is the capital of Peru?"]
eval.max_new_tokens = 8
output.dir = "runs/chat"
output.save_steps = 4
`;

/** A stand-in for `ollama` that records its calls. */
const ollama = mkdtempSync(join(tmpdir(), "rullama-train-ollama-"));
writeFileSync(join(ollama, "ollama"), `#!/bin/sh\necho "$*" >> "${ollama}/calls"\n[ "$1" != list ] || echo "NAME  ID  SIZE  MODIFIED"\n`);
chmodSync(join(ollama, "ollama"), 0o755);

/** The program, its page's address, and its folder. */
interface Ui {
  url: string;
  folder: string;
  process: ChildProcess;
}

async function start(folder = mkdtempSync(join(tmpdir(), "rullama-train-")), port = 0): Promise<Ui> {
  const child = spawn(program, ["ui", folder, "--no-open", "--port", String(port)], { stdio: ["ignore", "pipe", "inherit"], env: { ...process.env, PATH: `${ollama}:${process.env.PATH}` } });
  for await (const line of createInterface({ input: child.stdout })) {
    const url = /^serving +(\S+)/.exec(line)?.[1];
    if (url) return { url, folder, process: child };
  }
  throw new Error("the program ended");
}

let running: Ui[] = [];
test.afterEach(() => {
  for (const ui of running) ui.process.kill("SIGKILL");
  running = [];
});

const started = async (...args: Parameters<typeof start>): Promise<Ui> => {
  const ui = await start(...args);
  running.push(ui);
  return ui;
};

async function open(page: Page, { url }: Ui): Promise<void> {
  page.on("pageerror", (error) => console.log(`  page: ${error.message}`));
  await page.goto(url);
  await expect(page.locator("#start, #discard").locator("visible=true").first()).toBeEnabled();
}

async function train(page: Page, steps = STEPS): Promise<void> {
  await page.locator("#recipe-details > summary").click();
  await page.getByLabel("Recipe as TOML").fill(RECIPE.replace(`max_steps = ${STEPS}`, `max_steps = ${steps}`));
  await page.getByRole("button", { name: "Train", exact: true }).click();
}

const reached = (page: Page, step: number) =>
  expect.poll(() => page.locator("#bar").evaluate((bar) => (bar as HTMLProgressElement).value)).toBeGreaterThanOrEqual(step);

test("choose a base, train, reload in the run, talk, keep", async ({ page }) => {
  const ui = await started();
  await open(page, ui);
  await page.locator("#settings-details > summary").click();
  await expect(page.getByLabel("Base model").locator("option").first()).toContainText("tiny");
  await train(page);
  await reached(page, 3);
  await page.reload(); // the run goes on
  await expect(page.locator("#saved")).toContainText("Finished");
  const run = join(ui.folder, "runs", "pirate-tiny");
  expect(readdirSync(run)).toEqual(expect.arrayContaining(["adapter_model.safetensors", "report.html", "recipe.toml", `checkpoint-${STEPS}`]));
  expect(readFileSync(join(run, "metrics.jsonl"), "utf8").match(/"event":"step"/g)).toHaveLength(STEPS);
  expect(native("inspect", run)).toContain("finished");

  await page.getByLabel("Message").fill("What is the capital of Peru?");
  await page.getByLabel("Message").press("Enter");
  await expect(page.locator("#adapter-log .assistant:not(.waiting)")).toHaveText(/Reply: .+/);
  await expect(page.locator("#base-log .assistant:not(.waiting)")).toHaveText(/Reply: .+/);

  const [report] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Report" }).click()]);
  expect(readFileSync(await report.path(), "utf8")).toContain("<!doctype html>");
  await page.getByLabel("Name of the model").fill("pirate");
  await page.getByRole("button", { name: "Merge into a file" }).click();
  await expect(page.locator("#merge-done")).toContainText("pirate.gguf");
  expect(existsSync(join(ui.folder, "models", "pirate", "pirate.gguf"))).toBe(true);
  await expect(page.locator("#merge-done")).toContainText("ollama create pirate -f");
  expect(readFileSync(join(ui.folder, "models", "pirate", "Modelfile"), "utf8")).toContain("FROM ./pirate.gguf");
  await expect(page.getByRole("button", { name: "Merged GGUF" })).toHaveCount(0);

  await page.getByLabel("Name of the model").fill("matey");
  await page.getByRole("button", { name: "Create in Ollama" }).click();
  await expect(page.locator("#merge-done")).toContainText("Talk to it with: ollama run matey");
  const calls = readFileSync(join(ollama, "calls"), "utf8");
  expect(calls).toContain(`create matey -f `);
  expect(calls).toContain(join(ui.folder, "models", "matey"));
});

test("a run learns from rewards, and shows the best and the worst completions", async ({ page }) => {
  const ui = await started();
  await open(page, ui);
  await page.getByLabel("Task").selectOption("sums");
  await expect(page.locator("#plan")).toContainText('number: 1 where the last number is that of the column "answer"');
  await page.locator("#recipe-details > summary").click();
  const recipe = page.getByLabel("Recipe as TOML");
  await recipe.fill((await recipe.inputValue()).replace("max_steps = 20", "max_steps = 2").replace("val_size = 40", "val_size = 4"));
  await page.getByRole("button", { name: "Train", exact: true }).click();
  await expect(page.locator("#saved")).toContainText("Finished");
  await expect(page.getByRole("img", { name: /^Reward: training \d\.\d+, validation \d\.\d+$/ })).toBeVisible();
  await expect(page.getByRole("list", { name: "Best completions" }).locator("li").first()).toContainText(/reward [01]/);
  await expect(page.locator("#finish")).toContainText(/Reward \d\.\d\d → \d\.\d\d/);
  await page.reload();
  await expect(page.locator("#runs-list")).toContainText(/reward \d\.\d\d → \d\.\d\d/);
  expect(readFileSync(join(ui.folder, "runs", "sums-tiny", "rollouts.jsonl"), "utf8").trim().split("\n")).toHaveLength(2 * 32);
  await page.locator("#recipe-details > summary").click();
  await recipe.fill((await recipe.inputValue()).replace('name = "number" ', 'name = "command"\ncommand = ["python3", "reward.py"] '));
  await expect(page.locator("#recipe-error")).toContainText('remove the reward "command", or train with the command line');
});

test("stop, continue, and what the page says when the program ends", async ({ page }) => {
  const ui = await started();
  await open(page, ui);
  await train(page, 400);
  await reached(page, 2);
  await page.getByRole("button", { name: "Stop and save" }).click();
  const again = page.getByRole("button", { name: /^Continue at step \d+$/ });
  await expect(again).toBeEnabled();
  const step = Number(/\d+/.exec((await again.textContent()) ?? "")![0]);
  await again.click();
  await reached(page, step + 1);
  expect(readdirSync(join(ui.folder, "runs"))).toEqual(["pirate-tiny"]);
  ui.process.kill("SIGKILL");
  await expect(page.locator("#alert")).toContainText("the program has ended: start `rullama-train ui` again");
});

test("a hostile page on another port reads and changes nothing, even with the key", async ({ page }) => {
  const ui = await started();
  const state = new URL("api/state", ui.url).href;
  const key = new URL(ui.url).pathname.split("/")[1]!;
  const server = createServer((_, answer) => answer.setHeader("Content-Type", "text/html").end("<title>hostile</title>"));
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  await page.goto(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
  const found = await page.evaluate(
    async ({ url, state, key }) => {
      const attempt = async (what: () => Promise<unknown>) => what().then((value) => String(value), () => "refused");
      const headers = { Authorization: `Bearer ${key}` };
      const status = async (answer: Response) => `${answer.status} ${answer.type}`;
      const frame = document.createElement("iframe");
      frame.src = url;
      document.body.append(frame);
      await new Promise((done) => (frame.onload = done));
      const script = document.createElement("script");
      script.src = `${url}icon.svg`;
      return {
        read: await attempt(async () => status(await fetch(state, { headers }))),
        write: await attempt(async () => status(await fetch(state.replace("state", "uploads/00000000000000000000000000000001/0"), { method: "PUT", body: "x", headers }))),
        form: await attempt(async () => status(await fetch(state.replace("state", "train"), { method: "POST", body: "{}", mode: "no-cors" }))),
        opaque: await attempt(async () => (await (await fetch(url, { mode: "no-cors" })).text()).length),
        framed: await attempt(async () => frame.contentDocument?.title ?? "refused"),
        script: await new Promise((done) => {
          script.onload = () => done("loaded");
          script.onerror = () => done("refused");
          document.body.append(script);
        }),
      };
    },
    { url: ui.url, state, key },
  );
  expect(found).toEqual({ read: "refused", write: "refused", form: expect.stringMatching(/^refused$|^0 opaque$/), opaque: expect.stringMatching(/^refused$|^0$/), framed: "refused", script: "refused" });
  expect(readdirSync(ui.folder)).toEqual([]);
  server.close();
});
