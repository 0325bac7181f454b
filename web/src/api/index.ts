/**
 * Trains LoRA adapters on quantized Gemma 4 in the browser. A worker does all the work.
 *
 * ```ts
 * const trainer = await init();
 * const run = trainer.train({ base: { kind: "tiny" }, data: [{ name: "datasets/pirate.jsonl", file }], recipe });
 * for await (const event of run) if (event.event === "step") console.log(event.step, event.loss);
 * ```
 */

import { Channel } from "./channel";
import { isNative } from "./engine";
import { BaseError, DeviceLost, RecipeError, TrainError } from "./errors";
import type { Command, FromWorker, GpuUse, Task, ToWorker } from "./protocol";
import type { Base, Check, Data, Event, FileEntry, Format, GpuInfo, Measured, Message, Samples, Sampling } from "./types";
import type { FolderRun } from "../ui/kept";
import type { Problem } from "./wasm/rullama_train_web";

export * from "./errors";
export * from "./types";

/** A run. It starts when it is iterated; leaving the loop stops it. Only one run, chat or export uses the GPU at a time: others wait. */
export interface Run extends AsyncIterable<Event> {
  /** Pauses after the current step. */
  pause(): void;
  resume(): void;
  /** Stops after the current step, with a checkpoint event and then `done` with `stopped`. */
  stop(): void;
  /** The state after the current step, as files for the `checkpoint` of `train`. After the end: the last checkpoint. */
  checkpoint(): Promise<FileEntry[]>;
}

/** Gets the number of layers that are on the GPU, and of all. */
export type Loading = (layers: number, of: number) => void;

/** What needs no GPU. */
export type Reader = Pick<Trainer, "samples" | "close">;

export interface Trainer {
  readonly gpu: GpuInfo;
  /** Present if the program that serves the page computes, rather than the browser. */
  readonly native?: Native;
  /** The samples as a table, and a recipe that fits them and the base. Reads them with the settings of `recipe`; needs no GPU. */
  samples(what: { base: Base; data: Data; recipe: string }): Promise<Samples>;
  /** Reads the samples and plans steps and memory, without reading the weights. Rejects with a `RecipeError` if the recipe is wrong. */
  check(what: { base: Base; data: Data; recipe: string }): Promise<Check>;
  /** Trains with a recipe (TOML). Resumes from `checkpoint`, which may come from the native program. */
  train(what: { base: Base; data: Data; recipe: string; checkpoint?: FileEntry[] }): Run;
  /**
   * The reply to `messages`, piece by piece. Leaving the loop stops generation. `loading` gets the progress of the model's upload, if it
   * is not on the GPU yet.
   */
  chat(what: { base: Base; adapter?: FileEntry[]; messages: Message[]; loading?: Loading } & Sampling): AsyncIterable<string>;
  /** Converts an adapter to another format. */
  export(what: { base: Base; adapter: FileEntry[]; to: Format }): Promise<FileEntry[]>;
  /** Loss, logits and gradients of a sample, for comparing devices. Tokens with the label -100 have no loss. */
  measure(what: { base: Base; adapter: FileEntry[]; ids: number[]; labels: number[] }): Promise<Measured>;
  /** Releases the GPU. Running tasks fail. */
  close(): void;
}

/** What the program offers besides, on the machine that it runs on. */
export interface Native {
  /** The folder for runs and merged models. */
  readonly folder: string;
  /** Whether Ollama is installed. */
  readonly ollama: boolean;
  /** The models that can be trained: the built-in one, Ollama's, and files in the chosen folders. */
  bases(): Promise<NativeBase[]>;
  /** Rejects if the program has ended. */
  ping(): Promise<void>;
  /** The run in progress, or one that has ended since the page was last open. It goes on without the page. */
  attach(): Promise<Run | null>;
  /** The finished runs in the folder, latest first. */
  runs(): Promise<FolderRun[]>;
  /** Writes the page's description of a run into its folder. */
  keepRun(id: string, about: object): Promise<void>;
  /** The adapter, the report and the measurements of a run. */
  filesOfRun(id: string): Promise<FileEntry[]>;
  /** The name of the run that was followed last. */
  lastRun(): string | undefined;
  /** Merges an adapter into its base: a GGUF file in the program's folder, and a model in Ollama if `ollama` is set. */
  merge(what: { base: Base; adapter: FileEntry[]; name: string; ollama: boolean }): Promise<{ path: string; printed: string }>;
}

/** A model on the machine of the program. */
export interface NativeBase {
  /** Name for a base of the kind `named`. */
  model: string;
  bytes: number | null;
  trainable: boolean;
  /** Layers, width and context, or why the model cannot be trained. */
  shape: string | null;
  problem: string | null;
}

/** The tiny model. */
const TINY = new URL("../../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf", import.meta.url);

/**
 * Opens the engine: the program that serves the page, or else a worker of the browser, which opens the GPU. Rejects if there is no
 * GPU.
 */
export async function init(opts?: {
  /** URL of the `.wasm` file; next to this file by default. */
  wasmUrl?: string;
  /** URL of the tiny model; next to this file by default. */
  tinyUrl?: string;
  /** Uses no more of the GPU than every browser with WebGPU guarantees: no f16, no subgroups, small buffers. */
  guaranteed?: boolean;
}): Promise<Trainer> {
  if (isNative()) return (await import("./native/index")).open();
  const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: "rullama-train" });
  const absolute = (url: string) => new URL(url, location.href).href;
  const link = new Link(worker);
  const gpu = await link.open(opts?.wasmUrl && absolute(opts.wasmUrl), opts?.tinyUrl ? absolute(opts.tinyUrl) : TINY.href, opts?.guaranteed ? "guaranteed" : "all");
  return {
    gpu,
    samples: ({ base, ...task }) => link.ask(base, { do: "samples", ...task }) as Promise<Samples>,
    check: ({ base, ...task }) => link.ask(base, { do: "check", ...task }) as Promise<Check>,
    train: ({ base, checkpoint = [], ...task }) => run(link, base, { do: "train", checkpoint, ...task }),
    chat: ({ base, adapter = [], messages, loading, ...sampling }) => {
      return talk(link, base, { do: "chat", adapter, messages, sampling }, loading);
    },
    export: ({ base, ...task }) => link.ask(base, { do: "export", ...task }) as Promise<FileEntry[]>,
    measure: async ({ base, ...task }) => {
      const { logits, ...rest } = (await link.ask(base, { do: "measure", ...task })) as Omit<Measured, "logits"> & { logits: Uint8Array };
      return { ...rest, logits: new Float32Array(logits.buffer) };
    },
    close: () => link.close(),
  };
}

/** Opens an engine that reads samples, for browsers without a GPU. */
export async function openReader(): Promise<Reader> {
  const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: "rullama-train" });
  const link = new Link(worker);
  await link.open(undefined, TINY.href, "none");
  return {
    samples: ({ base, ...task }) => link.ask(base, { do: "samples", ...task }) as Promise<Samples>,
    close: () => link.close(),
  };
}

function run(link: Link, base: Base, task: Extract<Task, { do: "train" }>): Run {
  let id: number | undefined;
  let ended = false;
  let last: FileEntry[] | undefined;
  let waiting: { resolve: (files: FileEntry[]) => void; reject: (error: unknown) => void }[] = [];
  const send = (command: Command) => id !== undefined && link.send(id, command);
  const start = () => {
    const channel = new Channel<Event>(() => send("stop"));
    id = link.start(base, task, {
      event(value) {
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
    pause: () => void send("pause"),
    resume: () => void send("resume"),
    stop: () => void send("stop"),
    checkpoint() {
      if (id === undefined) return Promise.reject(new TrainError("the run has not started; iterate it first"));
      if (ended && last) return Promise.resolve(last);
      if (ended) return Promise.reject(new TrainError("the run ended before its first step; there is no checkpoint"));
      send("checkpoint");
      return new Promise((resolve, reject) => waiting.push({ resolve, reject }));
    },
  };
}

function talk(link: Link, base: Base, task: Task, loading: Loading = () => {}): AsyncIterable<string> {
  return {
    [Symbol.asyncIterator]() {
      const channel = new Channel<string>(() => link.send(id, "stop"));
      const id = link.start(base, task, {
        event(value) {
          const news = value as string | Extract<Event, { event: "loading" }>;
          if (typeof news === "string") channel.put(news);
          else loading(news.layers, news.of);
        },
        done: () => channel.end(),
        failed: (error) => channel.end(error),
      });
      return channel;
    },
  };
}

/** Receives the events of a task. */
interface Listener {
  event(value: unknown): void;
  done(value: unknown): void;
  failed(error: TrainError): void;
}

/** The worker and its tasks. */
class Link {
  readonly #worker: Worker;
  readonly #tasks = new Map<number, Listener>();
  #opening: { resolve: (gpu: GpuInfo) => void; reject: (error: unknown) => void } | undefined;
  #next = 1;
  /** Set when the worker can no longer be used. */
  #broken: TrainError | undefined;

  constructor(worker: Worker) {
    this.#worker = worker;
    worker.onmessage = ({ data }: MessageEvent<FromWorker>) => this.#receive(data);
    worker.onerror = (event) => this.#break(new TrainError(event.message || "the worker could not be loaded"));
  }

  open(wasmUrl: string | undefined, tinyUrl: string, uses: GpuUse): Promise<GpuInfo> {
    return new Promise((resolve, reject) => {
      this.#opening = { resolve, reject };
      this.#post({ type: "open", wasmUrl, tinyUrl, uses });
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
    return new Promise((done, failed) => this.start(base, task, { event() {}, done, failed }));
  }

  send(id: number, command: Command): void {
    this.#post({ type: "command", id, command });
  }

  close(): void {
    this.#post({ type: "destroy" });
    this.#break(new TrainError("the trainer was closed"));
  }

  #post(message: ToWorker): void {
    this.#worker.postMessage(message);
  }

  #receive(message: FromWorker): void {
    switch (message.type) {
      case "opened":
        this.#opening?.resolve(message.gpu);
        break;
      case "event":
        this.#tasks.get(message.id)?.event(message.value);
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

  /** Fails all current and future tasks. */
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
    case "base":
      return new BaseError(message);
    case "lost":
      return new DeviceLost(message);
    default:
      return new TrainError(message);
  }
}
