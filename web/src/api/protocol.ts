/** What page and worker say to each other. */

import type { Base, Data } from "./types";
import type { FileEntry, GpuInfo, Message, Problem, Sampling } from "./wasm/rullama_train_web";

/** Something to do, on a base. Blobs are read by the worker. */
export type Task =
  | { do: "check"; recipe: string; data: Data }
  | { do: "train"; recipe: string; data: Data; checkpoint: FileEntry[] }
  | { do: "chat"; adapter: FileEntry[]; messages: Message[]; sampling: Sampling }
  | { do: "export"; adapter: FileEntry[]; to: string }
  | { do: "measure"; adapter: FileEntry[]; ids: number[]; labels: number[] };

/** What a task is told while it works. */
export type Word = "pause" | "resume" | "stop" | "checkpoint";

export type ToWorker =
  | { type: "open"; wasmUrl: string | undefined; tinyUrl: string }
  | { type: "task"; id: number; base: Base; task: Task }
  | { type: "word"; id: number; word: Word }
  | { type: "destroy" };

export type FromWorker =
  | { type: "opened"; gpu: GpuInfo }
  | { type: "heard"; id: number; value: unknown }
  | { type: "done"; id: number; value: unknown }
  /** Of one task, or of the worker itself. */
  | { type: "failed"; id: number | undefined; problem: Problem };
