/** Messages between the page and the worker. */

import type { Base, Data } from "./types";
import type { FileEntry, GpuInfo, Message, Problem, Sampling } from "./wasm/rullama_train_web";

/** A task on a base. The worker reads the blobs. */
export type Task =
  | { do: "samples"; recipe: string; data: Data }
  | { do: "check"; recipe: string; data: Data }
  | { do: "train"; recipe: string; data: Data; checkpoint: FileEntry[] }
  | { do: "chat"; adapter: FileEntry[]; messages: Message[]; sampling: Sampling }
  | { do: "export"; adapter: FileEntry[]; to: string }
  | { do: "measure"; adapter: FileEntry[]; ids: number[]; labels: number[] };

/** A command for a running task. */
export type Command = "pause" | "resume" | "stop" | "checkpoint";

/** What of the GPU is used: all that it offers, what every browser guarantees, or nothing. */
export type GpuUse = "all" | "guaranteed" | "none";

export type ToWorker =
  | { type: "open"; wasmUrl: string | undefined; tinyUrl: string; uses: GpuUse }
  | { type: "task"; id: number; base: Base; task: Task }
  | { type: "command"; id: number; command: Command }
  | { type: "destroy" };

export type FromWorker =
  | { type: "opened"; gpu: GpuInfo }
  | { type: "event"; id: number; value: unknown }
  | { type: "done"; id: number; value: unknown }
  /** Failure of a task, or of the worker if `id` is undefined. */
  | { type: "failed"; id: number | undefined; problem: Problem };
