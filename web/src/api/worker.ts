/** The worker: it loads the WASM module, opens the GPU, and runs the tasks one after the other. */

import type { FromWorker, GpuUse, Task, ToWorker } from "./protocol";
import { openSource } from "./sources";
import type { Data } from "./types";
import load, { Control, Engine, type FileEntry, type Problem, type Request } from "./wasm/rullama_train_web";

const controls = new Map<number, Control>();
let engine: Engine | undefined;
let tinyUrl = "";

addEventListener("message", ({ data }: MessageEvent<ToWorker>) => {
  switch (data.type) {
    case "open":
      tinyUrl = data.tinyUrl;
      void open(data.wasmUrl, data.uses);
      break;
    case "task": {
      const control = new Control();
      controls.set(data.id, control);
      void run(data.id, data, control);
      break;
    }
    case "command":
      controls.get(data.id)?.[data.command]();
      break;
    case "destroy":
      engine?.destroy();
      break;
  }
});

// A panic in Rust arrives here. The module cannot be used afterwards.
addEventListener("error", (event) => failed(undefined, event.error ?? event.message));
addEventListener("unhandledrejection", (event) => failed(undefined, event.reason));

async function open(wasmUrl: string | undefined, uses: GpuUse): Promise<void> {
  try {
    if (uses !== "none" && !navigator.gpu) {
      throw new Error("this browser has no WebGPU, or this page is not a secure context (https or localhost); try a current Chrome, Edge, Firefox or Safari");
    }
    await (wasmUrl === undefined ? load() : load({ module_or_path: wasmUrl }));
    if (uses === "all") askForSubgroups();
    const opened = uses === "none" ? Engine.withoutGpu() : await Engine.open(uses === "guaranteed");
    engine = opened;
    post({ type: "opened", gpu: opened.gpu() });
  } catch (error) {
    failed(undefined, error);
  }
}

/** Adds subgroups, which wgpu does not know of browsers, to the features that it asks for. */
function askForSubgroups(): void {
  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = function (descriptor) {
    const more: GPUFeatureName[] = this.features.has("subgroups") ? ["subgroups"] : [];
    return request.call(this, { ...descriptor, requiredFeatures: [...(descriptor?.requiredFeatures ?? []), ...more] });
  };
}

async function run(id: number, what: Extract<ToWorker, { type: "task" }>, control: Control): Promise<void> {
  try {
    if (!engine) throw new Error("the device is not open");
    const source = await openSource(what.base, tinyUrl);
    const request = await prepared(what.task);
    const value: unknown = await engine.run(request, source, control, (value: unknown) => post({ type: "event", id, value }));
    post({ type: "done", id, value });
  } catch (error) {
    failed(id, error);
  } finally {
    controls.delete(id);
  }
}

/** Reads the blobs of a task. */
async function prepared(task: Task): Promise<Request> {
  if (!("data" in task)) return task;
  const { data, ...rest } = task;
  return { ...rest, files: await Promise.all(data.map(entry)) };
}

async function entry({ name, file }: Data[number]): Promise<FileEntry> {
  try {
    return { path: name, bytes: new Uint8Array(await file.arrayBuffer()) };
  } catch (error) {
    throw new Error(`${name} can no longer be read (${error}): the file was changed or moved; pick it again`);
  }
}

function failed(id: number | undefined, error: unknown): void {
  const known = typeof error === "object" && error !== null && "kind" in error;
  const message = error instanceof Error ? error.message : String(error);
  const problem: Problem = known ? (error as Problem) : { kind: "other", message, key: null, line: null, column: null };
  post({ type: "failed", id, problem });
}

/** Posts a message to the page. Byte arrays are transferred, not copied. */
function post(message: FromWorker): void {
  const buffers = new Set<ArrayBuffer>();
  collect("value" in message ? message.value : undefined, buffers);
  postMessage(message, { transfer: [...buffers] });
}

function collect(value: unknown, buffers: Set<ArrayBuffer>): void {
  if (value instanceof Uint8Array) buffers.add(value.buffer as ArrayBuffer);
  else if (typeof value === "object" && value !== null) for (const inner of Object.values(value)) collect(inner, buffers);
}
