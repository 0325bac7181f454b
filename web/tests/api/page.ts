/** Runs in the browser: provides the API as `window.api`. Bytes are encoded as text to pass them between browser and test. */

import { type Base, type Event, type FileEntry, init, type Run, type Trainer } from "../../src/api";

export type Encoded = { path: string; base64: string };

/** The events and results of a run. */
export interface Story {
  events: Event[];
  error?: { name: string; message: string };
  checkpoints: { step: number; files: Encoded[] }[];
  adapter: Encoded[];
  files: Encoded[];
}

// The worker, so that a test can destroy its device.
let worker: Worker | undefined;
const Original = Worker;
globalThis.Worker = class extends Original {
  constructor(...rest: ConstructorParameters<typeof Worker>) {
    super(...rest);
    worker = this;
  }
};

const base = (url: string): Base => (url === "tiny" ? { kind: "tiny" } : { kind: "url", url });
const encode = async (bytes: Uint8Array): Promise<string> => {
  const url = await new Promise<string>((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.readAsDataURL(new Blob([bytes as BlobPart]));
  });
  return url.slice(url.indexOf(",") + 1);
};
const encodeAll = (files: FileEntry[]) =>
  Promise.all(files.map(async ({ path, bytes }) => ({ path, base64: await encode(bytes) })));
const decode = (text: string) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const decodeAll = (files: Encoded[]): FileEntry[] => files.map(({ path, base64 }) => ({ path, bytes: decode(base64) }));

async function data(names: string[]): Promise<{ name: string; file: Blob }[]> {
  return Promise.all(names.map(async (name) => ({ name, file: await (await fetch(`/@fs${root}/${name}`)).blob() })));
}

let trainer: Trainer | undefined;
let root = "";

const api = {
  async open(at: string, guaranteed = false) {
    root = at;
    trainer?.close();
    trainer = await init({ guaranteed });
    return trainer.gpu;
  },
  async check(from: string, recipe: string, names: string[]) {
    try {
      return { check: await trainer!.check({ base: base(from), data: await data(names), recipe }) };
    } catch (error) {
      const { name, message, key, line, column } = error as Error & { key?: string; line?: number; column?: number };
      return { error: { name, message, key, line, column } };
    }
  },
  async measure(from: string, adapter: Encoded[], ids: number[], labels: number[]) {
    const { loss, logits, gradients } = await trainer!.measure({ base: base(from), adapter: decodeAll(adapter), ids, labels });
    return { loss, logits: await encode(new Uint8Array(logits.buffer)), gradients: await encode(gradients) };
  },
  async train(
    from: string,
    recipe: string,
    names: string[],
    checkpoint: Encoded[] = [],
    what: { at?: number; then?: "stop" | "pause" | "lose" } = {},
  ): Promise<Story> {
    const run: Run = trainer!.train({ base: base(from), data: await data(names), recipe, checkpoint: decodeAll(checkpoint) });
    const story: Story = { events: [], checkpoints: [], adapter: [], files: [] };
    try {
      for await (const event of run) {
        if (event.event === "checkpoint") {
          story.checkpoints.push({ step: event.step, files: await encodeAll(event.files) });
        } else if (event.event === "done") {
          story.adapter = await encodeAll(event.adapter ?? []);
          story.files = await encodeAll(event.files);
        }
        story.events.push(JSON.parse(JSON.stringify(event, (key, value) => (key === "files" || key === "adapter" ? undefined : value))));
        if (event.event === "step" && event.step === what.at) {
          if (what.then === "stop") run.stop();
          if (what.then === "lose") worker!.postMessage({ type: "destroy" });
          if (what.then === "pause") run.pause();
        }
        if (event.event === "paused") {
          const files = await run.checkpoint();
          story.checkpoints.push({ step: event.step, files: await encodeAll(files) });
          run.resume();
        }
      }
    } catch (error) {
      const { name, message } = error as Error;
      story.error = { name, message };
    }
    return story;
  },
  async chat(from: string, text: string, adapter: Encoded[] = [], max_new_tokens = 24) {
    const messages = [{ role: "user" as const, content: text }];
    const pieces: string[] = [];
    for await (const piece of trainer!.chat({ base: base(from), adapter: decodeAll(adapter), messages, temperature: 0, max_new_tokens })) {
      pieces.push(piece);
    }
    return pieces;
  },
  async export(from: string, adapter: Encoded[], to: "peft" | "gguf-lora" | "mlx") {
    return encodeAll(await trainer!.export({ base: base(from), adapter: decodeAll(adapter), to }));
  },
  async failure(work: string) {
    try {
      await new Function("trainer", `return (async () => { ${work} })()`)(trainer);
      return undefined;
    } catch (error) {
      const { name, message } = error as Error;
      return { name, message };
    }
  },
  close() {
    trainer?.close();
    trainer = undefined;
  },
};

export type Api = typeof api;
declare global {
  interface Window {
    api: Api;
  }
}
window.api = api;
