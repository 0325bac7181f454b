/** Storage of the user's choices, so that a reload restores them. */

import type { Picked } from "../ui/columns";
import type { Learning } from "../ui/learn";
import type { Row } from "../ui/sheet";
import { list, read, remove, write } from "./opfs";

const FOLDER = "session";
const FILE = `${FOLDER}/session.json`;

/** The stored choices. */
export interface Session {
  base: { kind: "tiny" } | { kind: "file"; name: string } | { kind: "url"; url: string } | { kind: "named"; name: string };
  data: { kind: "task"; task: string } | ({ kind: "sheet"; rows: Row[] } | { kind: "files"; picked?: Picked } | { kind: "pasted"; text: string; picked?: Picked }) & { learn?: Learning };
  recipe: string;
  /** Whether the recipe is one that the page made and the user has not changed. */
  automatic?: boolean;
  /** Settings of a link that wait for the samples to be read. */
  pending?: [string, string][];
}

export async function loadSession(): Promise<Session | null> {
  const file = await read(FILE);
  return file && (JSON.parse(await file.text()) as Session);
}

export const saveSession = (session: Session) => write(FILE, JSON.stringify(session));

const SAMPLES = `${FOLDER}/samples`;

/** Replaces the stored sample files. */
export async function saveSamples(files: { name: string; file: Blob }[]): Promise<void> {
  await remove(SAMPLES);
  for (const { name, file } of files) await write(`${SAMPLES}/${encodeURIComponent(name)}`, file);
}

/** The stored sample files. */
export async function loadSamples(): Promise<{ name: string; file: File }[]> {
  const found = (await list(SAMPLES)).map(async (stored) => {
    const name = decodeURIComponent(stored);
    return { name, file: (await read(`${SAMPLES}/${stored}`)) ?? new File([], name) };
  });
  return Promise.all(found);
}

export const forgetSession = () => remove(FOLDER);
