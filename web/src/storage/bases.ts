/**
 * Bases in the browser's storage, downloaded once. A base is stored in parts, each of which is written whole, so that a download
 * that was interrupted resumes after its last part.
 */

import { list, read, remove, write } from "./opfs";

const FOLDER = "bases";
const PART = 32 * 2 ** 20; // bytes

/** What is stored beside the parts. */
interface About {
  url: string;
  size: number;
  /** The server's tag of this version of the file; empty if it has none. */
  tag: string;
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
const partSize = (size: number, index: number) => Math.min(PART, size - index * PART);

/** The complete parts at the start of the file. */
async function stored(folder: string, size: number): Promise<File[]> {
  const parts: File[] = [];
  for (let index = 0; index * PART < size; index++) {
    const part = await read(`${folder}/${partName(index)}`);
    if (part?.size !== partSize(size, index)) break;
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
  const parts = await stored(folder, about.size);
  return bytesOf(parts) === about.size ? fileOf(url, parts) : null;
}

const fileOf = (url: string, parts: File[]) =>
  new File(parts, new URL(url).pathname.split("/").at(-1) || "base.gguf", { lastModified: parts[0]!.lastModified });

/** Bytes of `url` that are stored, and the size of the file; null if nothing is. */
export async function storedBytes(url: string): Promise<{ done: number; of: number } | null> {
  const folder = await folderOf(url);
  const about = await aboutOf(folder);
  return about && { done: bytesOf(await stored(folder, about.size)), of: about.size };
}

/** Downloads `url` into the storage, after the parts that are there. `signal` ends the download; the parts stay. */
export async function downloadBase(url: string, progress: Progress, signal: AbortSignal): Promise<File> {
  const folder = await folderOf(url);
  const known = await aboutOf(folder);
  let start = known ? bytesOf(await stored(folder, known.size)) : 0;
  if (known && start === known.size) return (await storedBase(url))!;
  const headers: HeadersInit = start > 0 ? { Range: `bytes=${start}-` } : {};
  const response = await fetch(url, { headers, signal, cache: "no-store" }).catch((error: unknown) => {
    if (signal.aborted) throw error;
    throw new Error(`${url} cannot be reached (${String(error)}); check the URL, the network, and that the server allows requests from other pages (CORS)`);
  });
  if (!response.ok || !response.body) throw new Error(`${url}: the server responded ${response.status} ${response.statusText}; check the URL`);
  const about = { url, size: sizeOf(response, start), tag: response.headers.get("etag") ?? "" };
  if (about.size === 0) throw new Error(`${url}: the server does not report the size of the file; choose another server`);
  const changed = known && (known.size !== about.size || known.tag !== about.tag);
  if (changed && response.status === 206) {
    await response.body.cancel();
    await remove(folder);
    return downloadBase(url, progress, signal);
  }
  if (response.status !== 206) start = 0;
  if (start === 0) await remove(folder);
  await checkRoom(about.size - start);
  await write(`${folder}/about.json`, JSON.stringify(about));
  await store(folder, about.size, start, response.body, progress);
  return (await storedBase(url))!;
}

function sizeOf(response: Response, start: number): number {
  const range = /\/(\d+)$/.exec(response.headers.get("content-range") ?? "")?.[1];
  return Number(range ?? start + Number(response.headers.get("content-length") ?? -start));
}

/** Writes the rest of the file from byte `start`, the beginning of a part. */
async function store(folder: string, size: number, start: number, body: ReadableStream<Uint8Array>, progress: Progress): Promise<void> {
  let index = start / PART;
  let done = start;
  let waiting: Uint8Array<ArrayBuffer>[] = [];
  let held = 0;
  progress(done, size);
  const reader = body.getReader();
  for (;;) {
    const { done: ended, value } = await reader.read();
    if (value) {
      waiting.push(value as Uint8Array<ArrayBuffer>);
      held += value.length;
      progress(done + held, size);
    }
    while (held >= partSize(size, index) && held > 0 && done < size) {
      const whole = new Blob(waiting);
      const length = partSize(size, index);
      await write(`${folder}/${partName(index)}`, whole.slice(0, length));
      const rest = new Uint8Array(await whole.slice(length).arrayBuffer());
      waiting = rest.length > 0 ? [rest] : [];
      held = rest.length;
      done += length;
      index += 1;
    }
    if (ended) break;
  }
  if (done !== size) throw new Error(`the download ended after ${done + held} of ${size} bytes; download again to resume`);
}

async function checkRoom(needed: number): Promise<void> {
  const { quota = Infinity, usage = 0 } = await navigator.storage.estimate();
  if (quota - usage >= needed) return;
  const gb = (bytes: number) => `${(bytes / 1e9).toFixed(1)} GB`;
  throw new Error(`the model needs ${gb(needed)}, but this browser leaves the page ${gb(quota - usage)}; free some space, or download the file yourself and pick it`);
}

/** Removes all stored bases. */
export const forgetBases = () => remove(FOLDER);

/** Number of stored bases. */
export const countBases = async () => (await list(FOLDER)).length;
