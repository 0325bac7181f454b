/** Types of the API. Most of them are generated from the Rust code. */

import type { Event as AnyEvent, FileEntry } from "./wasm/rullama_train_web";

export type {
  Check,
  Completion,
  Counts,
  FileEntry,
  GpuInfo,
  GpuLimits,
  Measured,
  MemoryPlan,
  Message,
  PlanLine,
  SamplePiece,
  SampleRow,
  Samples,
  Sampling,
  Scores,
} from "./wasm/rullama_train_web";

/** Events of a run. */
export type Event = AnyEvent;

/**
 * A base: the tiny model next to the WASM file, a GGUF file on the user's disk, one at a URL that supports range requests, or, with the
 * program behind the page, a model on its machine.
 */
export type Base = { kind: "tiny" } | { kind: "file"; file: File } | { kind: "url"; url: string } | { kind: "named"; name: string };

/** Sample files, named as in the recipe's `data.train` and `data.valid`. The adapter of `lora.init_from` belongs here too. */
export type Data = { name: string; file: Blob }[];

/** An adapter in any format: the files of a folder, or one file. */
export type AdapterFiles = FileEntry[];

/** Export formats of adapters. `gguf-merged` is a model of its own, with a Modelfile for Ollama. */
export type Format =
  | "peft"
  | "peft-conditional-generation"
  | "gguf-lora"
  | "gguf-lora-f16"
  | "gguf-merged"
  | "mlx"
  | "rullama-v0";
