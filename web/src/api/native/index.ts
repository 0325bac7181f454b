/** The engine of `rullama-train ui`: the program that serves the page computes, and its files stay on its disk. */

import type { Native, Run, Trainer } from "../index";
import { TrainError } from "../errors";
import type { Base, Check, Data, FileEntry, GpuInfo, Samples } from "../types";
import { bytes, escaped, get, lines, post, request, toError } from "./http";
import { MARK, followed, follow } from "./run";
import { sendData, sendFiles } from "./uploads";

/** Files of a finished run that the page shows or converts. */
const RESULTS = ["adapter_model.safetensors", "adapter_config.json", "report.html", "metrics.jsonl", "timing.jsonl", "recipe.resolved.toml"];

/** The program's state. */
interface State {
  gpu?: GpuInfo;
  problem?: { message: string };
  folder: string;
  ollama: boolean;
  run: { name: string; folder: string; over: boolean; delivered: boolean } | null;
}

/** The name of a base, as the program has it. */
function named(base: Base): string {
  if (base.kind === "tiny") return "tiny";
  if (base.kind === "named") return base.name;
  throw new TrainError("choose a model from the list; a file has to be in one of the folders that the program was started with");
}

const task = async ({ base, data, recipe }: { base: Base; data: Data; recipe: string }) => ({
  base: named(base),
  recipe,
  files: await sendData(data),
});

/** The run whose folder holds this checkpoint; undefined for the checkpoint of another engine. */
function runOf(checkpoint: FileEntry[]): string | undefined {
  const mark = checkpoint.find(({ path }) => path.endsWith(`/${MARK}`));
  return mark && (JSON.parse(new TextDecoder().decode(mark.bytes)) as { run: string }).run;
}

async function* chat(what: Parameters<Trainer["chat"]>[0]): AsyncGenerator<string> {
  const { base, adapter = [], messages, loading: _, ...sampling } = what;
  const stop = new AbortController();
  try {
    const body = { base: named(base), adapter: await sendFiles(adapter), messages, sampling };
    const answer = await request("POST", "chat", body, stop.signal);
    for await (const line of lines<{ text?: string; failed?: { message: string }; done?: true }>(answer)) {
      if (line.failed) throw toError(line.failed);
      if (line.done) return;
      yield line.text ?? "";
    }
    throw new TrainError("the program ended during the reply; start `rullama-train ui` again");
  } finally {
    stop.abort(); // ends a reply that is no longer wanted
  }
}

/** Connects to the program. Rejects if it has no GPU. */
export async function open(): Promise<Trainer> {
  const state = await get<State>("state");
  if (!state.gpu) throw new TrainError(state.problem?.message ?? "the program found no GPU");
  const native: Native = {
    folder: state.folder,
    ollama: state.ollama,
    bases: () => get("bases"),
    ping: async () => void (await get("state")),
    async attach(): Promise<Run | null> {
      const { run } = await get<State>("state");
      return run && !run.delivered ? follow(() => Promise.resolve()) : null;
    },
    runs: () => get("runs"),
    keepRun: async (id, about) => void (await request("PUT", `runs/${escaped(id)}/page.json`, new Blob([JSON.stringify(about)]))),
    async filesOfRun(id) {
      const read = async (path: string) => ({ path, bytes: await bytes(`runs/${escaped(id)}/${path}`) });
      // A run without a step has fewer files.
      const found = await Promise.allSettled(RESULTS.map(read));
      return found.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
    },
    lastRun: () => followed.name,
    merge: async ({ base, adapter, name, ollama }) => {
      return post("merge", { base: named(base), adapter: await sendFiles(adapter), name, ollama });
    },
  };
  return {
    gpu: state.gpu,
    native,
    samples: async (what) => post<Samples>("samples", await task(what)),
    check: async (what) => post<Check>("check", await task(what)),
    train: ({ checkpoint = [], ...what }) =>
      follow(async () => {
        const resume = runOf(checkpoint);
        const files = resume === undefined ? await sendFiles(checkpoint) : [];
        await post("train", { task: await task(what), checkpoint: files, ...(resume !== undefined && { resume }) });
      }),
    chat: (what) => chat(what),
    async export({ base, adapter, to }) {
      const found = await post<{ output: string; files: string[] }>("export", { base: named(base), adapter: await sendFiles(adapter), to });
      const read = async (path: string) => ({ path, bytes: await bytes(`outputs/${found.output}/${escaped(path)}`) });
      return Promise.all(found.files.map(read));
    },
    measure: () => Promise.reject(new TrainError("the program has its own tests of devices: rullama-train selftest")),
    // A run that has not begun its first step ends at once; the program discards nothing else.
    close: () => void request("POST", "run/command", { command: "cancel" }).catch(() => {}),
  };
}
