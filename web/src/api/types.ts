/** What goes in and out of the API. Most of it is generated from the Rust that does the work. */

import type { Event as AnyEvent, FileEntry } from "./wasm/rullama_train_web";

export type {
  Check,
  Counts,
  FileEntry,
  GpuInfo,
  GpuLimits,
  Measured,
  MemoryPlan,
  Message,
  PlanLine,
  Sampling,
  Scores,
} from "./wasm/rullama_train_web";

/** What happens in a run. */
export type Event = AnyEvent;

/** A base: the tiny model beside the WASM file, a GGUF on the user's disk, or one that a server hands out by ranges. */
export type Base = { kind: "tiny" } | { kind: "file"; file: File } | { kind: "url"; url: string };

/** Files of samples, by the names that the recipe's `data.train` and `data.valid` use; `lora.init_from` finds its own here too. */
export type Data = { name: string; file: Blob }[];

/** An adapter in any form: a folder's files, or one file. */
export type AdapterFiles = FileEntry[];

/** The forms in which an adapter is handed out. */
export type Format =
  | "peft"
  | "peft-conditional-generation"
  | "gguf-lora"
  | "gguf-lora-f16"
  | "mlx"
  | "rullama-v0";
