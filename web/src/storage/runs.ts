/** Finished runs, kept with their settings, adapter and report until the user deletes them. */

import type { FileEntry } from "../api/index";
import { list, read, remove, write } from "./opfs";

const FOLDER = "runs";
const ABOUT = "about.json";

/** A finished run, without its files. */
export interface KeptRun {
  id: string;
  /** When it ended, as ISO 8601. */
  ended: string;
  /** Files of samples. */
  samples: string;
  base: string;
  /** The step of the adapter. */
  step: number;
  steps: number;
  /** Loss of the first and of the best evaluation, or of the first and last step. */
  before: number | null;
  after: number | null;
  /** How it ranks pairs, if its objective compares answers. */
  ranking?: { margin: Change; ranked: Change };
  /** Its reward, if it learns from rewards. */
  reward?: Change;
  /** Time of the steps. */
  seconds: number;
  /** Time from the click to the end, if the page saw both. */
  waited?: number;
  /** Whether it is in the program's folder and not in this browser. */
  folder?: boolean;
  /** Questions that were asked in the chat, with both replies. */
  chats?: { prompt: string; before: string; after: string }[];
  /** What the user calls it. */
  name?: string;
  /** The recipe with all defaults filled in. */
  recipe: string;
  replies: { prompt: string; before: string; after: string }[];
  /** Rewards by step, if it learns from them. */
  rewards?: [number, number][];
  /** Losses by step. */
  losses: [number, number][];
}

/** A measurement at the start and at the end. */
export interface Change {
  before: number | null;
  after: number | null;
}

const baseName = (path: string) => path.slice(path.lastIndexOf("/") + 1);

/** Saves a run; its description last, so that a run without one is incomplete. */
export async function keepRun(run: KeptRun, files: FileEntry[]): Promise<void> {
  for (const file of files) await write(`${FOLDER}/${run.id}/files/${baseName(file.path)}`, file.bytes as Uint8Array<ArrayBuffer>);
  await write(`${FOLDER}/${run.id}/${ABOUT}`, JSON.stringify(run));
}

/** Writes the description of a kept run anew. */
export const renameRun = (run: KeptRun) => write(`${FOLDER}/${run.id}/${ABOUT}`, JSON.stringify(run));

/** All runs, latest first. Removes incomplete ones. */
export async function keptRuns(): Promise<KeptRun[]> {
  const runs: KeptRun[] = [];
  for (const id of await list(FOLDER)) {
    const about = await read(`${FOLDER}/${id}/${ABOUT}`);
    if (about) runs.push(JSON.parse(await about.text()) as KeptRun);
    else await remove(`${FOLDER}/${id}`);
  }
  return runs.sort((a, b) => b.ended.localeCompare(a.ended));
}

/** The adapter and the report of a run. */
export async function filesOfRun(id: string): Promise<FileEntry[]> {
  const folder = `${FOLDER}/${id}/files`;
  const entries = (await list(folder)).map(async (name) => {
    const bytes = new Uint8Array(await (await read(`${folder}/${name}`))!.arrayBuffer());
    return { path: name, bytes };
  });
  return Promise.all(entries);
}

export const forgetKeptRun = (id: string) => remove(`${FOLDER}/${id}`);

export const forgetKeptRuns = () => remove(FOLDER);
