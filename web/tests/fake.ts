/**
 * A fake trainer for tests of the page. Query parameters: `?hold=11` waits after step 11 until the run is paused or stopped,
 * `?fail=lost` loses the device, `?bytes=N` sets the size of the checkpoints.
 */

import { DeviceLost, RecipeError } from "../src/api/errors";
import type { Check, Event, FileEntry } from "../src/api/types";
import type { Run, Trainer } from "../src/api/index";

export * from "../src/api/errors";

const wish = new URLSearchParams(globalThis.location?.search);
const STEPS = Number(wish.get("steps") ?? 24);
const HOLD = Number(wish.get("hold") ?? 0);
const PAUSE = 20; // ms
const sleep = (ms: number) => new Promise((done) => setTimeout(done, ms));
const bytes = (text: string) => new TextEncoder().encode(text);

function check(recipe: string): Check {
  const lines = recipe.split("\n");
  const wrong = lines.findIndex((line) => line.startsWith("rnak"));
  if (wrong >= 0) {
    const message = `recipe:${wrong + 1}:1: unknown key \`rnak\` in [lora]; did you mean \`rank\`?`;
    throw new RecipeError(message, { key: "lora.rnak", line: wrong + 1, column: 1 });
  }
  return {
    recipe,
    base: "tiny: 4 layers, width 256, vocabulary 2 048",
    parameters: 292864,
    template: "built-in Gemma 4 template (small-model variant)",
    steps: STEPS,
    train: { samples: 360, tokens: 13148, loss_tokens: 6442 },
    validation: { samples: 40, tokens: 1486, loss_tokens: 743 },
    plan: { lines: [{ what: "weights", bytes: 4.1e6 }, { what: "activations", bytes: 21e6 }, { what: "adapter and optimizer", bytes: 3.5e6 }], bytes: 28.6e6 },
    warnings: ["3 samples are there twice"],
  };
}

class FakeRun implements Run {
  #state: "running" | "paused" | "stopped" = "running";
  #step: number;
  #held = false;
  #lines: string[] = [];
  #timing: string[] = [];

  readonly recipe: string;

  constructor(recipe: string, checkpoint?: FileEntry[]) {
    this.recipe = recipe;
    const text = (name: string) => new TextDecoder().decode(checkpoint?.find((file) => file.path.endsWith(name))?.bytes);
    this.#lines = text("metrics.jsonl").split("\n").filter(Boolean);
    this.#timing = text("timing.jsonl").split("\n").filter(Boolean);
    this.#step = checkpoint ? (JSON.parse(text("trainer_state.json")) as { step: number }).step : 0;
  }

  pause = () => void (this.#state = "paused");
  resume = () => void (this.#state = "running");
  stop = () => void (this.#state = "stopped");

  async checkpoint(): Promise<FileEntry[]> {
    const file = (name: string, text: string) => ({ path: `checkpoint-${this.#step}/${name}`, bytes: bytes(text) });
    return [
      file("trainer_state.json", JSON.stringify({ step: this.#step, steps: STEPS })),
      file("metrics.jsonl", this.#lines.join("\n") + "\n"),
      file("timing.jsonl", this.#timing.join("\n") + "\n"),
      file("adapter_model.safetensors", "x".repeat(Number(wish.get("bytes") ?? 4000))),
      file("adapter_config.json", "{}"),
      file("optimizer.safetensors", "y"),
    ];
  }

  async *[Symbol.asyncIterator](): AsyncIterator<Event> {
    const plan = check(this.recipe);
    yield { event: "plan", resumed_at: this.#step, ...plan };
    if (this.#step === 0) yield* this.#evaluate(6.59);
    while (this.#step < STEPS && this.#state !== "stopped") {
      if (this.#state === "paused") {
        yield { event: "paused", step: this.#step };
        while (this.#state === "paused") await sleep(10);
        if (this.#state === "running") yield { event: "resumed", step: this.#step };
        continue;
      }
      await sleep(PAUSE);
      while (this.#step === HOLD && HOLD > 0 && this.#state === "running" && !this.#held) await sleep(10);
      if (this.#step === HOLD) this.#held = true;
      if (this.#state !== "running") continue;
      const step = ++this.#step;
      if (wish.get("fail") === "lost" && step === 9) throw new DeviceLost("The GPU was lost: device.destroy() was called.");
      const loss = 0.45 + 7 * Math.exp(-step / 6) * (1 + 0.2 * Math.sin(step * 7));
      const smoothed = 0.5 + 7.4 * Math.exp(-step / 8);
      const learning_rate = 4e-3 * Math.cos((Math.PI / 2) * (step / STEPS)) ** 2;
      const common = { step, loss, accuracy: 0.9, grad_norm: 0.4, update_ratio: 0.01, learning_rate, tokens: 250, skipped: false };
      this.#lines.push(JSON.stringify({ event: "step", ...common }));
      const speed = 330 + 20 * Math.sin(step);
      this.#timing.push(JSON.stringify({ step, time: 0, seconds: 0.7, tokens_per_second: speed }));
      yield { event: "step", ...common, smoothed, seconds: PAUSE / 1000, tokens_per_second: speed };
      if (step % 8 === 0) yield* this.#evaluate(0.4 + 6 * Math.exp(-step / 6));
      if (step % 8 === 0) yield { event: "checkpoint", step, files: await this.checkpoint() };
    }
    const stopped = this.#state === "stopped";
    const files = await this.checkpoint();
    const adapter = files.filter((file) => /adapter_/.test(file.path)).map((file) => ({ ...file, path: file.path.replace(/^.*\//, "") }));
    yield { event: "done", step: this.#step, adapter_of_step: this.#step, stopped, refused: null, adapter, files: stopped ? files : [], seconds: 1 };
  }

  async *#evaluate(loss: number): AsyncGenerator<Event> {
    const [step, prompt] = [this.#step, "What is the capital of Peru?"];
    const reply = `The capital of Peru is Lima.${step > 0 ? " Aye, matey!" : ""}`;
    this.#lines.push(JSON.stringify({ event: "evaluation", step, eval_loss: loss, replies: [{ prompt, reply }] }));
    yield { event: "eval", step, best: true, scores: { eval_loss: loss, eval_perplexity: Math.exp(loss), eval_accuracy: 0.9, eval_tokens: 743 } };
    yield { event: "sample", step, prompt, reply };
  }
}

export async function init(): Promise<Trainer> {
  if (wish.get("fail") === "webgpu") throw new Error("This browser has no WebGPU.");
  return {
    gpu: {
      name: "a GPU that computes nothing",
      software: true,
      limits: { maxBufferSize: 0, maxStorageBufferBindingSize: 0, maxStorageBuffersPerShaderStage: 8, maxComputeWorkgroupStorageSize: 16384 },
    },
    check: async ({ recipe }) => check(recipe),
    train: ({ recipe, checkpoint }) => new FakeRun(recipe, checkpoint),
    chat: async function* ({ adapter }) {
      for (const word of `The capital of Peru is Lima.${adapter ? " Aye, matey!" : ""}`.split(/(?= )/)) {
        await sleep(20);
        yield word;
      }
    },
    export: async ({ adapter, to }) => adapter.map((file) => ({ ...file, path: `${to}/${file.path}` })),
    measure: () => Promise.reject(new Error("a GPU that computes nothing has nothing to measure")),
    close: () => {},
  };
}
