/**
 * Trains LoRA adapters on quantized Gemma 4 in this browser. All work is done in a worker that this file hides.
 *
 * ```ts
 * const trainer = await init();
 * const run = trainer.train({ base: { kind: "tiny" }, data: [{ name: "pirate.jsonl", file }], recipe });
 * for await (const event of run) if (event.event === "step") console.log(event.step, event.loss);
 * ```
 */

import type { Base, Check, Data, Event, FileEntry, Format, GpuInfo, Message, Sampling } from "./types";

export * from "./errors";
export * from "./types";

/** A run. It starts when it is iterated; one run, chat or export at a time has the device, the others wait. */
export interface Run extends AsyncIterable<Event> {
  /** After the step that is being taken. */
  pause(): void;
  resume(): void;
  /** After the step that is being taken: then `done` comes, with `stopped` and a checkpoint. */
  stop(): void;
  /** The state after the last step, as files: what `train` takes as `checkpoint`. */
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
  /** Gives the device back; what is under way ends with an error. */
  close(): void;
}

/** Starts the worker and opens the device. Rejects where the browser has no WebGPU. */
export declare function init(opts?: {
  /** Where the `.wasm` file lies; beside this file by default. */
  wasmUrl?: string;
  /** Where the tiny model lies; beside this file by default. */
  tinyUrl?: string;
}): Promise<Trainer>;
