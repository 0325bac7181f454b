/**
 * Trains LoRA adapters on quantized Gemma 4 in this browser. All work is done in a worker that this file hides.
 *
 * ```ts
 * const trainer = await init();
 * const run = trainer.train({ base: { kind: "tiny" }, data: [{ name: "datasets/pirate.jsonl", file }], recipe });
 * for await (const event of run) if (event.event === "step") console.log(event.step, event.loss);
 * ```
 */

import { Channel } from "./channel";
import { DeviceLost, RecipeError, TrainError } from "./errors";
import type { FromWorker, Task, ToWorker, Word } from "./protocol";
import type { Base, Check, Data, Event, FileEntry, Format, GpuInfo, Measured, Message, Sampling } from "./types";
import type { Problem } from "./wasm/rullama_train_web";

export * from "./errors";
export * from "./types";

/** A run. It starts when it is iterated; leaving the loop stops it. One run, chat or export at a time has the device: the others wait. */
export interface Run extends AsyncIterable<Event> {
  /** After the step that is being taken. */
  pause(): void;
  resume(): void;
  /** After the step that is being taken: a checkpoint comes, and then `done` with `stopped`. */
  stop(): void;
  /** The state after the step that is being taken, as files: what `train` takes as `checkpoint`. After the end, the last one. */
  checkpoint(): Promise<FileEntry[]>;
}

export interface Trainer {
  readonly gpu: GpuInfo;
  /** Everything up to the first step. Rejects with a `RecipeError` where the recipe is wrong. */
  check(what: { base: Base; data: Data; recipe: string }): Promise<Check>;
  /** Trains as `recipe` (TOML) says; goes on from `checkpoint`, also one that the native program wrote. */
  train(what: { base: Base; data: Data; recipe: string; checkpoint?: FileEntry[] }): Run;
  /** The reply to `messages`, piece by piece. Leaving the loop stops it. */
  chat(what: { base: Base; adapter?: FileEntry[]; messages: Message[] } & Sampling): AsyncIterable<string>;
  /** The adapter in another form. */
  export(what: { base: Base; adapter: FileEntry[]; to: Format }): Promise<FileEntry[]>;
  /** Loss, logits and gradients of a sample, to compare this device with another; -100 labels what carries no loss. */
  measure(what: { base: Base; adapter: FileEntry[]; ids: number[]; labels: number[] }): Promise<Measured>;
  /** Gives the device back; what is under way ends with an error. */
  close(): void;
}

/** Starts the worker and opens the device. Rejects where the browser has no WebGPU. */
export async function init(opts?: {
  /** Where the `.wasm` file lies; beside this file by default. */
  wasmUrl?: string;
  /** Where the tiny model lies; beside this file by default. */
  tinyUrl?: string;
}): Promise<Trainer> {
  const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: "rullama-train" });
  const tiny = new URL("../../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf", import.meta.url).href;
  const absolute = (url: string) => new URL(url, location.href).href;
  const link = new Link(worker);
  const gpu = await link.open(opts?.wasmUrl && absolute(opts.wasmUrl), opts?.tinyUrl ? absolute(opts.tinyUrl) : tiny);
  return {
    gpu,
    check: ({ base, ...task }) => link.ask(base, { do: "check", ...task }) as Promise<Check>,
    train: ({ base, checkpoint = [], ...task }) => run(link, base, { do: "train", checkpoint, ...task }),
    chat: ({ base, adapter = [], messages, ...sampling }) => {
      return talk(link, base, { do: "chat", adapter, messages, sampling });
    },
    export: ({ base, ...task }) => link.ask(base, { do: "export", ...task }) as Promise<FileEntry[]>,
    measure: async ({ base, ...task }) => {
      const { logits, ...rest } = (await link.ask(base, { do: "measure", ...task })) as Omit<Measured, "logits"> & { logits: Uint8Array };
      return { ...rest, logits: new Float32Array(logits.buffer) };
    },
    close: () => link.close(),
  };
}

function run(link: Link, base: Base, task: Extract<Task, { do: "train" }>): Run {
  let id: number | undefined;
  let ended = false;
  let last: FileEntry[] | undefined;
  let waiting: { resolve: (files: FileEntry[]) => void; reject: (error: unknown) => void }[] = [];
  const word = (word: Word) => id !== undefined && link.word(id, word);
  const start = () => {
    const channel = new Channel<Event>(() => word("stop"));
    id = link.start(base, task, {
      heard(value) {
        const event = value as Event;
        if (event.event === "checkpoint") {
          last = event.files;
          waiting.splice(0).forEach(({ resolve }) => resolve(event.files));
        }
        channel.put(event);
      },
      done: () => end(),
      failed: (error) => end(error),
    });
    const end = (error?: unknown) => {
      ended = true;
      const none = error ?? new TrainError("the run ended before its first step; there is no checkpoint");
      waiting.splice(0).forEach(({ resolve, reject }) => (last ? resolve(last) : reject(none)));
      channel.end(error);
    };
    return channel;
  };
  let events: Channel<Event> | undefined;
  return {
    [Symbol.asyncIterator]: () => (events ??= start()),
    pause: () => void word("pause"),
    resume: () => void word("resume"),
    stop: () => void word("stop"),
    checkpoint() {
      if (id === undefined) return Promise.reject(new TrainError("the run has not started; iterate it first"));
      if (ended && last) return Promise.resolve(last);
      if (ended) return Promise.reject(new TrainError("the run ended before its first step; there is no checkpoint"));
      word("checkpoint");
      return new Promise((resolve, reject) => waiting.push({ resolve, reject }));
    },
  };
}

function talk(link: Link, base: Base, task: Task): AsyncIterable<string> {
  return {
    [Symbol.asyncIterator]() {
      const channel = new Channel<string>(() => link.word(id, "stop"));
      const id = link.start(base, task, {
        heard: (piece) => channel.put(piece as string),
        done: () => channel.end(),
        failed: (error) => channel.end(error),
      });
      return channel;
    },
  };
}

/** Who hears of a task. */
interface Listener {
  heard(value: unknown): void;
  done(value: unknown): void;
  failed(error: TrainError): void;
}

/** The worker, and the tasks that it has. */
class Link {
  readonly #worker: Worker;
  readonly #tasks = new Map<number, Listener>();
  #opening: { resolve: (gpu: GpuInfo) => void; reject: (error: unknown) => void } | undefined;
  #next = 1;
  /** Why nothing can be done any more. */
  #broken: TrainError | undefined;

  constructor(worker: Worker) {
    this.#worker = worker;
    worker.onmessage = ({ data }: MessageEvent<FromWorker>) => this.#hear(data);
    worker.onerror = (event) => this.#break(new TrainError(event.message || "the worker could not be loaded"));
  }

  open(wasmUrl: string | undefined, tinyUrl: string): Promise<GpuInfo> {
    return new Promise((resolve, reject) => {
      this.#opening = { resolve, reject };
      this.#post({ type: "open", wasmUrl, tinyUrl });
    });
  }

  start(base: Base, task: Task, listener: Listener): number {
    const id = this.#next++;
    if (this.#broken) {
      const error = this.#broken;
      queueMicrotask(() => listener.failed(error));
    } else {
      this.#tasks.set(id, listener);
      this.#post({ type: "task", id, base, task });
    }
    return id;
  }

  ask(base: Base, task: Task): Promise<unknown> {
    return new Promise((done, failed) => this.start(base, task, { heard() {}, done, failed }));
  }

  word(id: number, word: Word): void {
    this.#post({ type: "word", id, word });
  }

  close(): void {
    this.#post({ type: "destroy" });
    this.#break(new TrainError("the trainer was closed"));
  }

  #post(message: ToWorker): void {
    this.#worker.postMessage(message);
  }

  #hear(message: FromWorker): void {
    switch (message.type) {
      case "opened":
        this.#opening?.resolve(message.gpu);
        break;
      case "heard":
        this.#tasks.get(message.id)?.heard(message.value);
        break;
      case "done":
        this.#end(message.id)?.done(message.value);
        break;
      case "failed":
        if (message.id === undefined) this.#break(toError(message.problem));
        else this.#end(message.id)?.failed(toError(message.problem));
        break;
    }
  }

  #end(id: number): Listener | undefined {
    const listener = this.#tasks.get(id);
    this.#tasks.delete(id);
    return listener;
  }

  /** Nothing goes on: every task fails, now and later. */
  #break(error: TrainError): void {
    if (this.#broken) return;
    this.#broken = error;
    this.#opening?.reject(error);
    for (const listener of this.#tasks.values()) listener.failed(error);
    this.#tasks.clear();
    this.#worker.terminate();
  }
}

function toError({ kind, message, key, line, column }: Problem): TrainError {
  switch (kind) {
    case "recipe":
      return new RecipeError(message, {
        ...(key !== null && { key }),
        ...(line !== null && { line }),
        ...(column !== null && { column }),
      });
    case "lost":
      return new DeviceLost(message);
    default:
      return new TrainError(message);
  }
}
