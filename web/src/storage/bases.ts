/**
 * Bases in the browser's storage, downloaded once. A base is stored in parts, each of which is written whole, so that a download
 * that was interrupted resumes after its last part.
 */

import { StorageFull, list, read, remove, write } from "./opfs";

const FOLDER = "bases";
const PART = 8 * 2 ** 20; // bytes: as much is downloaded again after a lost connection
/** Size of the parts of bases that were stored before their size was. */
const FORMER_PART = 32 * 2 ** 20;
const MAGIC = "GGUF";

/** What is stored beside the parts. */
interface About {
  url: string;
  size: number;
  /** The server's tag of this version of the file; empty if it has none. */
  tag: string;
  /** Size of the parts, but for the last one. */
  part?: number;
}

/** Progress of a download, in bytes. */
export type Progress = (done: number, of: number) => void;

async function folderOf(url: string): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url));
  const name = [...new Uint8Array(digest).subarray(0, 16)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return `${FOLDER}/${name}`;
}

const aboutOf = async (folder: string): Promise<About | null> => {
  const file = await read(`${folder}/about.json`);
  return file && (JSON.parse(await file.text()) as About);
};

const partName = (index: number) => `part-${String(index).padStart(5, "0")}`;
const partSize = (size: number, index: number, part: number) => Math.min(part, size - index * part);

/** The complete parts at the start of the file. */
async function stored(folder: string, { size, part: each = FORMER_PART }: About): Promise<File[]> {
  const parts: File[] = [];
  for (let index = 0; index * each < size; index++) {
    const part = await read(`${folder}/${partName(index)}`);
    if (part?.size !== partSize(size, index, each)) break;
    parts.push(part);
  }
  return parts;
}

const bytesOf = (parts: File[]) => parts.reduce((sum, part) => sum + part.size, 0);

/** The base at `url` if it is stored completely; it stays in the storage and is read in pieces. */
export async function storedBase(url: string): Promise<File | null> {
  const folder = await folderOf(url);
  const about = await aboutOf(folder);
  if (!about) return null;
  const parts = await stored(folder, about);
  return bytesOf(parts) === about.size ? fileOf(url, parts) : null;
}

const fileOf = (url: string, parts: File[]) =>
  new File(parts, new URL(url).pathname.split("/").at(-1) || "base.gguf", { lastModified: parts[0]!.lastModified });

/** Bytes of `url` that are stored, and the size of the file; null if nothing is. */
export async function storedBytes(url: string): Promise<{ done: number; of: number } | null> {
  const folder = await folderOf(url);
  const about = await aboutOf(folder);
  return about && { done: bytesOf(await stored(folder, about)), of: about.size };
}

/** Downloads `url` into the storage, after the parts that are there. `signal` ends the download; the parts stay. */
export async function downloadBase(url: string, progress: Progress, signal: AbortSignal): Promise<File> {
  const folder = await folderOf(url);
  const known = await aboutOf(folder);
  let start = known ? bytesOf(await stored(folder, known)) : 0;
  if (known && start === known.size) return (await storedBase(url))!;
  const headers: HeadersInit = start > 0 ? { Range: `bytes=${start}-` } : {};
  const response = await fetch(url, { headers, signal, cache: "no-store" }).catch((error: unknown) => {
    if (signal.aborted) throw error;
    throw new Error(`${url} cannot be reached (${String(error)}); check the URL, the network, and that the server allows requests from other pages (CORS)`);
  });
  if (!response.ok || !response.body) throw new Error(`${url}: the server responded ${response.status} ${response.statusText}; check the URL`);
  const about: About = { url, size: sizeOf(response, start), tag: response.headers.get("etag") ?? "", part: start > 0 ? (known?.part ?? FORMER_PART) : PART };
  if (about.size === 0) throw new Error(`${url}: the server does not report the size of the file; choose another server`);
  const changed = known && (known.size !== about.size || known.tag !== about.tag);
  if (changed && response.status === 206) {
    await response.body.cancel();
    await remove(folder);
    return downloadBase(url, progress, signal);
  }
  if (response.status !== 206) {
    start = 0;
    about.part = PART;
  }
  const reader = response.body.getReader();
  const first = start === 0 ? await beginning(url, reader) : [];
  if (start === 0) await remove(folder);
  try {
    await write(`${folder}/about.json`, JSON.stringify(about));
    await store(folder, about, start, first, reader, progress);
  } catch (error) {
    await reader.cancel().catch(() => {});
    if (!(error instanceof StorageFull)) throw error;
    throw new Error(`the model needs ${(about.size / 1e9).toFixed(1)} GB, and ${error.message}; delete a stored model, or download the file yourself and pick it`);
  }
  return (await storedBase(url))!;
}

type Chunk = Uint8Array<ArrayBuffer>;
type Reader = ReadableStreamDefaultReader<Uint8Array>;

/** The first bytes, which tell a GGUF file from anything else before it is stored. */
async function beginning(url: string, reader: Reader): Promise<Chunk[]> {
  const chunks: Chunk[] = [];
  let text = "";
  while (text.length < MAGIC.length) {
    const { done, value } = await reader.read();
    if (done) break;
    chunks.push(value as Chunk);
    text += String.fromCharCode(...value.subarray(0, MAGIC.length));
  }
  if (text.startsWith(MAGIC)) return chunks;
  await reader.cancel().catch(() => {});
  const what = text.startsWith("<") ? "a web page" : `a file that starts with ${JSON.stringify(text.slice(0, 4))}`;
  throw new Error(`${url} is ${what}, expected a GGUF file; copy the link of the file itself`);
}

function sizeOf(response: Response, start: number): number {
  const range = /\/(\d+)$/.exec(response.headers.get("content-range") ?? "")?.[1];
  return Number(range ?? start + Number(response.headers.get("content-length") ?? -start));
}

/** Writes the rest of the file from byte `start`, the beginning of a part. `waiting`: what was read of it already. */
async function store(folder: string, { size, part = FORMER_PART }: About, start: number, waiting: Chunk[], reader: Reader, progress: Progress): Promise<void> {
  let index = start / part;
  let done = start;
  let held = waiting.reduce((sum, chunk) => sum + chunk.length, 0);
  progress(done + held, size);
  for (let ended = false; !ended; ) {
    while (held >= partSize(size, index, part) && held > 0 && done < size) {
      const whole = new Blob(waiting);
      const length = partSize(size, index, part);
      await write(`${folder}/${partName(index)}`, whole.slice(0, length));
      const rest = new Uint8Array(await whole.slice(length).arrayBuffer());
      waiting = rest.length > 0 ? [rest] : [];
      held = rest.length;
      done += length;
      index += 1;
    }
    const next = await reader.read();
    ended = next.done;
    if (!next.value) continue;
    waiting.push(next.value as Chunk);
    held += next.value.length;
    progress(done + held, size);
  }
  if (done !== size) throw new TypeError(`the download ended after ${done + held} of ${size} bytes; download again to resume`);
}

/** A base in the storage, complete or not. */
export interface StoredBase {
  url: string;
  done: number;
  of: number;
}

/** All stored bases. */
export async function storedBases(): Promise<StoredBase[]> {
  const found: StoredBase[] = [];
  for (const name of await list(FOLDER)) {
    const about = await aboutOf(`${FOLDER}/${name}`);
    if (about) found.push({ url: about.url, done: bytesOf(await stored(`${FOLDER}/${name}`, about)), of: about.size });
    else await remove(`${FOLDER}/${name}`);
  }
  return found;
}

/** Removes a stored base. */
export const forgetBase = async (url: string) => remove(await folderOf(url));

/** Removes all stored bases. */
export const forgetBases = () => remove(FOLDER);
