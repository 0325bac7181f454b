/** Storage of the checkpoints of the current run. `trainer_state.json` is written last: a folder without it is incomplete. */

import type { FileEntry } from "../api/index";
import type { Setup } from "../ui/setup";
import { list, read, remove, write } from "./opfs";
import type { Session } from "./session";

const FOLDER = "run";
const STATE = "trainer_state.json";
const RESULT = "result.json";
/** Name of the recipe in the output folder of the native program. */
export const RECIPE = "recipe.resolved.toml";

/** Name of the report of a run, which is kept with its adapter. */
export const REPORT = "report.html";

/** A checkpoint or the adapter of a kept run, and the step it belongs to. */
export interface Saved {
  step: number;
  /** Number of steps of the whole run, if known. */
  steps: number | null;
  files: FileEntry[];
  /** Set if it could not be saved and is in memory only: the step whose checkpoint is stored, if one is. */
  unsaved?: { stored: number | null };
}

/** The step of a checkpoint, from the name of its folder: `checkpoint-50/…`. */
export function stepOf(files: FileEntry[]): number | null {
  const match = files.map((file) => /(?:^|\/)checkpoint-(\d+)\//.exec(file.path)).find((found) => found !== null);
  return match ? Number(match[1]) : null;
}

const baseName = (path: string) => path.slice(path.lastIndexOf("/") + 1);

/** Steps of the complete checkpoints, latest first. Removes incomplete ones. */
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

/** Saves a checkpoint, then removes the older ones. If the storage is full, the older ones stay. */
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

/** The latest complete checkpoint. */
export async function loadCheckpoint(): Promise<Saved | null> {
  const [step] = await steps();
  if (step === undefined) return null;
  const files = await readFolder(`checkpoint-${step}`);
  const state = files.find((file) => baseName(file.path) === STATE)!;
  const { steps: all } = JSON.parse(new TextDecoder().decode(state.bytes)) as { steps?: number };
  return { step, steps: all ?? null, files };
}

/** Notes which of the kept runs the checkpoint belongs to, and the setup that the page had with it. */
export const saveResult = (id: string, setup: Setup | null) => write(`${FOLDER}/${RESULT}`, JSON.stringify({ id, setup }));

/** The kept run that the page shows. */
export async function loadResult(): Promise<{ id: string; setup?: Setup | null } | null> {
  const file = await read(`${FOLDER}/${RESULT}`);
  return file && (JSON.parse(await file.text()) as { id: string; setup?: Setup | null });
}

/** The setup of a run, and what restores it. */
export interface RunSetup {
  setup: Setup;
  session: Session;
}

/** Most bytes of picked files that are kept with an unfinished run. */
const MOST_KEPT = 64 * 2 ** 20;

/** Keeps the setup of the run, with its picked files if they are not too large. */
export async function saveRunSetup(kept: RunSetup, files: { name: string; file: Blob }[]): Promise<void> {
  await remove(`${FOLDER}/samples`);
  if (files.reduce((sum, { file }) => sum + file.size, 0) <= MOST_KEPT) {
    for (const { name, file } of files) await write(`${FOLDER}/samples/${encodeURIComponent(name)}`, file);
  }
  await write(`${FOLDER}/setup.json`, JSON.stringify(kept));
}

export async function loadRunSetup(): Promise<RunSetup | null> {
  const file = await read(`${FOLDER}/setup.json`);
  return file && (JSON.parse(await file.text()) as RunSetup);
}

/** The picked files of the run; empty if they were not kept. */
export async function loadRunSamples(): Promise<{ name: string; file: File }[]> {
  const found = (await list(`${FOLDER}/samples`)).map(async (stored) => ({ name: decodeURIComponent(stored), file: (await read(`${FOLDER}/samples/${stored}`))! }));
  return Promise.all(found);
}

/** Saves the recipe of the run with all defaults filled in, independent of the editor. */
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
