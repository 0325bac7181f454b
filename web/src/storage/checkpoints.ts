/** Checkpoints and the finished adapter. Like the program on its disk, `trainer_state.json` is written last: it makes the folder whole. */

import type { FileEntry } from "../api/index";
import { list, read, remove, write } from "./opfs";

const FOLDER = "run";
const STATE = "trainer_state.json";
const RESULT = "result.json";
/** As the program calls it in a run's folder. */
export const RECIPE = "recipe.resolved.toml";

/** A checkpoint or an adapter, and after which step it was made. */
export interface Saved {
  step: number;
  /** Steps of the whole run, where it is known. */
  steps: number | null;
  files: FileEntry[];
}

/** The step of a checkpoint's files, from their folder's name: `checkpoint-50/…`. */
export function stepOf(files: FileEntry[]): number | null {
  const match = files.map((file) => /(?:^|\/)checkpoint-(\d+)\//.exec(file.path)).find((found) => found !== null);
  return match ? Number(match[1]) : null;
}

const baseName = (path: string) => path.slice(path.lastIndexOf("/") + 1);

/** Steps of the checkpoints that are whole, the last one first; what was cut off in mid-write is removed. */
async function steps(): Promise<number[]> {
  const found: number[] = [];
  for (const name of await list(FOLDER)) {
    const match = /^checkpoint-(\d+)$/.exec(name);
    if (!match) continue;
    if (await read(`${FOLDER}/${name}/${STATE}`)) found.push(Number(match[1]));
    else await remove(`${FOLDER}/${name}`);
  }
  return found.sort((a, b) => b - a);
}

/** Saves a checkpoint, and then removes the older ones. Where there is no room, those before it stay. */
export async function saveCheckpoint(step: number, files: FileEntry[]): Promise<void> {
  const path = `${FOLDER}/checkpoint-${step}`;
  const last = (file: FileEntry) => Number(baseName(file.path) === STATE);
  try {
    for (const file of [...files].sort((a, b) => last(a) - last(b))) {
      await write(`${path}/${baseName(file.path)}`, file.bytes as Uint8Array<ArrayBuffer>);
    }
  } catch (error) {
    if (!(await read(`${path}/${STATE}`))) await remove(path);
    throw error;
  }
  for (const older of await steps()) if (older !== step) await remove(`${FOLDER}/checkpoint-${older}`);
}

/** The last whole checkpoint. */
export async function loadCheckpoint(): Promise<Saved | null> {
  const [step] = await steps();
  if (step === undefined) return null;
  const files = await readFolder(`checkpoint-${step}`);
  const state = files.find((file) => baseName(file.path) === STATE)!;
  const { steps: all } = JSON.parse(new TextDecoder().decode(state.bytes)) as { steps?: number };
  return { step, steps: all ?? null, files };
}

/** The adapter that a finished run hands out: a PEFT folder. */
export async function saveResult(step: number, files: FileEntry[]): Promise<void> {
  await remove(`${FOLDER}/${RESULT}`);
  for (const file of files) {
    await write(`${FOLDER}/adapter/${baseName(file.path)}`, file.bytes as Uint8Array<ArrayBuffer>);
  }
  await write(`${FOLDER}/${RESULT}`, JSON.stringify({ step }));
}

export async function loadResult(): Promise<Saved | null> {
  const file = await read(`${FOLDER}/${RESULT}`);
  if (!file) return null;
  const { step } = JSON.parse(await file.text()) as { step: number };
  return { step, steps: null, files: await readFolder("adapter") };
}

/** The run's own recipe with every default in it, whatever the editor has by now. */
export const saveRunRecipe = (text: string) => write(`${FOLDER}/${RECIPE}`, text);

export const loadRunRecipe = async (): Promise<string | null> => (await read(`${FOLDER}/${RECIPE}`))?.text() ?? null;

export const forgetRun = () => remove(FOLDER);

async function readFolder(name: string): Promise<FileEntry[]> {
  const entries = (await list(`${FOLDER}/${name}`)).map(async (file) => {
    const bytes = new Uint8Array(await (await read(`${FOLDER}/${name}/${file}`))!.arrayBuffer());
    return { path: `${name}/${file}`, bytes };
  });
  return Promise.all(entries);
}
