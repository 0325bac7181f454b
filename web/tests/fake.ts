/**
 * A fake trainer for tests of the page. Query parameters: `?hold=11` waits after step 11 until the run is paused or stopped,
 * `?fail=lost` loses the device, `?fail=memory` has too little memory for more than one row, `?bytes=N` sets the size of the
 * checkpoints, `?slow=1` never gets past the start, `?objective=dpo` compares answers,
 * `?same=1` learns nothing.
 */

import { BaseError, DeviceLost, RecipeError, TrainError } from "../src/api/errors";
import type { Base, Check, Completion, Data, Event, FileEntry, Samples } from "../src/api/types";
import { isNative } from "../src/api/engine";
import { getValue, setValue } from "../src/ui/toml";
import type { Native, Reader, Run, Trainer } from "../src/api/index";

export * from "../src/api/errors";

const wish = new URLSearchParams(globalThis.location?.search);
const STEPS = Number(wish.get("steps") ?? 24);
const HOLD = Number(wish.get("hold") ?? 0);
const PAUSE = 20; // ms
/** Passes over the samples of a recipe that does not say it. */
const EPOCHS = 5;
const COMPARES = wish.get("objective") === "dpo";
/** Steps between checkpoints. */
const SAVE = Number(wish.get("save") ?? 8);
/** Largest buffer of the GPU. */
const BUFFER = Number(wish.get("buffer") ?? 2 ** 30);
const sleep = (ms: number) => new Promise((done) => setTimeout(done, ms));
const bytes = (text: string) => new TextEncoder().encode(text);

/** Whether a recipe learns from rewards, and their names. */
const tries = (recipe: string) => getValue(recipe, "train", "objective") === '"grpo"';
const rewardsOf = (recipe: string) => [...recipe.matchAll(/^\[\[rewards\]\]\nname = "(\w+)"/gm)].map(([, name]) => name!);

function check(recipe: string): Check {
  const lines = recipe.split("\n");
  if (/^name = "command"/m.test(recipe)) {
    const message = 'rewards: a browser can neither start a program nor ask a judge, so the reward "command" cannot be had here; remove it, or train with the program: rullama-train RECIPE';
    throw new RecipeError(message, { key: "rewards" });
  }
  const wrong = lines.findIndex((line) => line.startsWith("rnak"));
  if (wrong >= 0) {
    const message = `recipe:${wrong + 1}:1: unknown key \`rnak\` in [lora]; did you mean \`rank\`?`;
    throw new RecipeError(message, { key: "lora.rnak", line: wrong + 1, column: 1 });
  }
  return {
    recipe: /^(train\.)?epochs/m.test(recipe) ? recipe : setValue(recipe, "train", "epochs", String(EPOCHS)),
    base: "tiny: 4 layers, width 256, vocabulary 2 048",
    parameters: 292864,
    template: "built-in Gemma 4 template (small-model variant)",
    steps: STEPS,
    train: { samples: 360, tokens: 13148, loss_tokens: 6442 },
    validation: { samples: 40, tokens: 1486, loss_tokens: 743 },
    work: { tokens: 6000, evaluations: 4, evaluation_tokens: 500 },
    plan: { lines: [{ what: "weights", bytes: 4.1e6 }, { what: "activations", bytes: 21e6 }, { what: "adapter and optimizer", bytes: 3.5e6 }], bytes: 28.6e6 },
    rewards: tries(recipe) ? rewardsOf(recipe).map((name) => `${name}: 1 where it is right`) : [],
    tries: tries(recipe) ? "8 completions for each of 4 prompts a step, up to 16 tokens, at temperature 1.5" : null,
    warnings: ["3 samples are there twice"],
  };
}

/** Lines as samples of two halves, the second of which is trained. Lines with `broken` cannot be read. */
async function samples(base: Base, data: Data, recipe: string): Promise<Samples> {
  const whole = getValue(recipe, "output", "dir") !== null; // the engine reads samples without a recipe that lacks what it must have
  (globalThis as { read?: unknown }).read = { recipe: whole ? recipe : "", name: data[0]!.name, text: await data[0]!.file.text() };
  return read(base, data, recipe);
}

async function read(base: Base, data: Data, asked: string): Promise<Samples> {
  const text = (await Promise.all(data.map(({ file }) => file.text()))).join("\n");
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  if (base.kind === "file" && base.file.name.includes("wrong")) throw new BaseError(`${base.file.name}: the architecture "mine" is not known; choose another base`);
  if (text.startsWith("GGUF")) throw new TrainError(`${data[0]!.name}: the file is a GGUF file, which is not read; name it in model.base if it is the model`);
  const broken = lines.findIndex((line) => line.includes("broken"));
  if (broken >= 0) throw new TrainError(`${data[0]!.name} line ${broken + 1}: broken JSON; correct that line`);
  const rows = lines.slice(0, 1000).map((line, i) => {
    const half = Math.ceil(line.length / 2);
    const pieces = tries(asked) ? [{ text: line, loss: false }] : [{ text: line.slice(0, half), loss: false }, { text: line.slice(half), loss: true }];
    return { origin: `line ${i + 1}`, side: null, tokens: line.length, loss_tokens: tries(asked) ? 0 : line.length - half, pieces, expected: tries(asked) ? "29" : null };
  });
  const lengths = lines.map((line) => line.length);
  const tokens = lengths.reduce((sum, length) => sum + length, 0);
  const train = data.map(({ name }) => JSON.stringify(name)).join(", ");
  const recipe = `[model]\nbase = ${JSON.stringify(base.kind === "file" ? base.file.name : "tiny")}\n\n[lora]\nrank = 16\n\n[data]\ntrain = ${data.length === 1 ? train : `[${train}]`}\nval_size = 0\nmax_seq_len = 128\n\n[train]\nepochs = 8\nlearning_rate = 2e-4\n\n${tries(asked) ? 'objective = "grpo"\n\n[grpo]\nnum_generations = 8\n\n' : ""}[eval]\nsamples = ["Hello!"]\n${asked.slice(asked.indexOf("\n[[rewards]]") < 0 ? asked.length : asked.indexOf("\n[[rewards]]"))}`;
  const proposal = `60 steps (8 epochs of ${lines.length} samples) at a learning rate of 2e-4`;
  return { counts: { samples: lines.length, tokens, loss_tokens: tries(asked) ? 0 : Math.floor(tokens / 2) }, rows, lengths, files: [], warnings: [], recipe, proposal };
}

/** Number of trainers that were closed. */
let closed = 0;

/** The messages of each chat, for the tests. */
const asked: string[][] = ((globalThis as { asked?: string[][] }).asked = []);

/** Number of runs that were started, for the tests. */
const started = ((globalThis as { started?: { count: number } }).started = { count: 0 });

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

  /** Whether the page has asked for a checkpoint event. */
  #asked = false;

  async checkpoint(): Promise<FileEntry[]> {
    this.#asked = true;
    return this.#files();
  }

  async #files(): Promise<FileEntry[]> {
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
    const before = closed;
    while (wish.get("slow") && closed === before) await sleep(10);
    if (closed > before) throw new TrainError("the trainer was closed");
    for (let layers = 1; layers <= 4; layers++) yield { event: "loading", layers, of: 4 };
    if (wish.get("fail") === "memory" && !this.recipe.includes("gradient_checkpointing = true")) {
      throw new TrainError("the GPU reported an error: Out of memory");
    }
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
      if (this.#asked) yield { event: "checkpoint", step: this.#step, files: await this.#files() };
      this.#asked = false;
      while (this.#step === HOLD && HOLD > 0 && this.#state === "running" && !this.#held) await sleep(10);
      if (this.#step === HOLD) this.#held = true;
      if (this.#state !== "running") continue;
      const step = ++this.#step;
      if (wish.get("fail") === "lost" && step === 9) throw new DeviceLost("the GPU was lost: A valid external Instance reference no longer exists.; open it again and resume from the last checkpoint");
      const loss = 0.45 + 7 * Math.exp(-step / 6) * (1 + 0.2 * Math.sin(step * 7));
      const smoothed = 0.5 + 7.4 * Math.exp(-step / 8);
      const learning_rate = 4e-3 * Math.cos((Math.PI / 2) * (step / STEPS)) ** 2;
      const ranking = COMPARES ? { "rewards/margins": step / 10, "rewards/accuracies": step < 4 ? 0.5 : 1 } : { "rewards/margins": null, "rewards/accuracies": null };
      const common = { ...ranking, step, loss, accuracy: 0.9, grad_norm: 0.4, update_ratio: 0.01, learning_rate, tokens: 250, skipped: false };
      const rewards = this.#rewards(Math.min(1, 0.4 + step / 20));
      this.#lines.push(JSON.stringify({ event: "step", ...common, ...rewards }));
      const speed = 330 + 20 * Math.sin(step);
      this.#timing.push(JSON.stringify({ step, time: 0, seconds: 0.7, tokens_per_second: speed }));
      if (tries(this.recipe)) yield { event: "phase", phase: "completions", done: 3, of: 32 };
      yield { event: "step", ...common, rewards, smoothed, seconds: PAUSE / 1000, tokens_per_second: speed };
      if (tries(this.recipe)) yield { event: "completions", step, ...completions(rewardsOf(this.recipe)) };
      if (step % 8 === 0) yield* this.#evaluate(0.4 + 6 * Math.exp(-step / 6));
      if (step % SAVE === 0) yield { event: "checkpoint", step, files: await this.#files() };
    }
    const stopped = this.#state === "stopped";
    const files = await this.#files();
    const adapter = files.filter((file) => /adapter_/.test(file.path)).map((file) => ({ ...file, path: file.path.replace(/^.*\//, "") }));
    yield { event: "done", step: this.#step, adapter_of_step: this.#step, stopped, refused: null, adapter, files: stopped ? files : [{ path: "report.html", bytes: bytes("<h1>Report</h1>") }], seconds: 1 };
  }

  /** Measurements of completions whose mean reward is `reward`. */
  #rewards(reward: number): Record<string, number> {
    if (!tries(this.recipe)) return {};
    const each = rewardsOf(this.recipe).map((name, i) => [`rewards/${name}/mean`, reward / (i + 1)]);
    return { reward, reward_std: 0.4, frac_reward_zero_std: 1 - reward, ...Object.fromEntries(each), "completions/mean_length": 9, "completions/clipped_ratio": 0.1 };
  }

  async *#evaluate(loss: number): AsyncGenerator<Event> {
    const [step, prompt] = [this.#step, "What is the capital of Peru?"];
    yield { event: "phase", phase: "validation", done: 1, of: 2 };
    const reply = `The capital of Peru is Lima.${step > 0 && !wish.get("same") ? " Aye, matey!" : ""}`;
    const ranking = { "eval_rewards/margins": COMPARES ? step / 8 : null, "eval_rewards/accuracies": COMPARES ? (step === 0 ? 0.25 : 1) : null };
    const scores = tries(this.recipe) ? null : { eval_loss: loss, eval_perplexity: Math.exp(loss), eval_accuracy: 0.9, eval_tokens: 743 };
    const rewards = Object.fromEntries(Object.entries(this.#rewards(wish.get("same") ? 0.5 : step === 0 ? 0.475 : 0.975)).map(([name, value]) => [`eval_${name}`, value]));
    this.#lines.push(JSON.stringify({ event: "evaluation", step, ...(scores && { eval_loss: loss }), ...ranking, ...rewards, replies: [{ prompt, reply }] }));
    yield { event: "eval", step, best: true, ...ranking, rewards, scores };
    yield { event: "sample", step, prompt, reply };
  }
}

/** A right and a wrong completion. */
function completions(names: string[]): { best: Completion[]; worst: Completion[] } {
  const one = (completion: string, reward: number): Completion => {
    return { prompt: "9 and 20 make how many?", completion, tokens: 4, finished: reward > 0, reward, rewards: Object.fromEntries(names.map((name) => [name, reward])), advantage: reward - 0.5 };
  };
  return { best: [one("9 + 20 = 29", 1)], worst: [one("20 - 9 = 11", 0)] };
}

/** The program behind the page, if the page is marked so. */
const native: Native = {
  folder: "/home/me/train",
  ollama: false,
  bases: async () => [
    { model: "tiny", bytes: 4e6, trainable: true, shape: "4 layers", problem: null },
    { model: "/home/me/train/mine.gguf", bytes: 5e6, trainable: false, shape: null, problem: "its architecture, mine, is not known" },
  ],
  ping: async () => {
    if ((globalThis as { ended?: boolean }).ended) throw new TrainError("the program has ended: start it again");
  },
  attach: async () => null,
  runs: async () => [],
  keepRun: async () => {},
  filesOfRun: async () => [],
  lastRun: () => undefined,
  merge: () => Promise.reject(new TrainError("nothing is merged here")),
};

export async function openReader(): Promise<Reader> {
  return { samples: ({ base, data, recipe }) => samples(base, data, recipe), close() {} };
}

export async function init(): Promise<Trainer> {
  if (wish.get("fail") === "webgpu") throw new Error("This browser has no WebGPU.");
  return {
    gpu: {
      name: "a GPU that computes nothing",
      software: true,
      kernels: "f32",
      failedSelfTest: undefined,
      limits: { maxBufferSize: BUFFER, maxStorageBufferBindingSize: BUFFER, maxStorageBuffersPerShaderStage: 8, maxComputeWorkgroupStorageSize: 16384 },
    },
    ...(isNative() && { native }),
    samples: ({ base, data, recipe }) => samples(base, data, recipe),
    check: async ({ recipe }) => check(recipe),
    train: ({ recipe, checkpoint }) => {
      started.count += 1;
      return new FakeRun(recipe, checkpoint);
    },
    chat: async function* ({ adapter, messages, loading }) {
      asked.push(messages.map(({ content }) => content));
      loading?.(2, 4);
      while (messages.at(-1)!.content.includes("silent")) await sleep(20);
      for (const word of `The capital of Peru is Lima.${adapter ? " Aye, matey!" : ""}`.split(/(?= )/)) {
        await sleep(20);
        yield word;
        while (messages.at(-1)!.content.includes("endless")) {
          await sleep(20);
          yield " …";
        }
      }
    },
    export: async ({ adapter, to }) => adapter.map((file) => ({ ...file, path: `${to}/${file.path}` })),
    measure: () => Promise.reject(new Error("a GPU that computes nothing has nothing to measure")),
    close: () => void (closed += 1),
  };
}
