/** Bases for the worker, which reads them in ranges of bytes. Only the tiny one is in memory as a whole. */

import type { Base } from "./types";
import type { ByteSource } from "./wasm/rullama_train_web";

/** Number of parallel reads. */
const AT_ONCE = 8;
/** Maximum size of a file from a server without range requests, which is downloaded as a whole. */
const MOST_WITHOUT_RANGES = 256 * 2 ** 20;
/** How often a request is tried if the network fails. */
const ATTEMPTS = 3;

type Read = (start: number, end: number) => Promise<ArrayBuffer>;

/** Opens a base. Rejects if the file or the server cannot be used. */
export async function openSource(base: Base, tinyUrl: string): Promise<ByteSource> {
  switch (base.kind) {
    case "tiny":
      return ofBytes(await whole(tinyUrl), "tiny");
    case "file": {
      const { name, size, lastModified } = base.file;
      return ofBlob(base.file, `file:${name}:${size}:${lastModified}`, name);
    }
    case "url":
      return ofUrl(base.url);
    case "named":
      throw new Error(`${base.name} is a model of the program; start \`rullama-train ui\` to train it`);
  }
}

/** The tiny base, which is read once: every step needs rows of it. */
let tiny: ArrayBuffer | undefined;

async function whole(url: string): Promise<ArrayBuffer> {
  return (tiny ??= await (await ask(url)).arrayBuffer());
}

const ofBytes = (bytes: ArrayBuffer, name: string): ByteSource => source(name, name, bytes.byteLength, async (start, end) => bytes.slice(start, end));

function ofBlob(blob: Blob, key: string, name: string): ByteSource {
  const read: Read = async (start, end) => {
    try {
      return await blob.slice(start, end).arrayBuffer();
    } catch (error) {
      throw new Error(`the file can no longer be read (${message(error)}): it was changed or moved; pick it again`);
    }
  };
  return source(key, name, blob.size, read);
}

async function ofUrl(url: string): Promise<ByteSource> {
  const response = await ask(url, [0, 1]);
  const name = url;
  if (response.status === 206) {
    await response.arrayBuffer();
    const size = total(response);
    if (size === undefined) throw new Error(`${url}: the server does not report the size of the file; choose another server`);
    const read: Read = async (start, end) => {
      const response = await ask(url, [start, end]);
      const from = Number(/^bytes (\d+)-/.exec(response.headers.get("content-range") ?? "")?.[1]);
      const bytes = await response.arrayBuffer();
      // Some servers send more than was requested.
      if (response.status !== 206 || total(response) !== size || !(from <= start && end <= from + bytes.byteLength)) {
        throw new Error(`${url}: expected bytes ${start} to ${end} of ${size}, found ${response.status} ${response.statusText}`);
      }
      return bytes.slice(start - from, end - from);
    };
    return source(`url:${url}`, name, size, read);
  }
  const size = Number(response.headers.get("content-length") ?? 0);
  if (size > MOST_WITHOUT_RANGES) {
    await response.body?.cancel();
    throw new Error(`${url}: the server does not support range requests, which are necessary for a file of ${size} bytes; choose another server, or download the file and pick it`);
  }
  return ofBlob(await response.blob(), `url:${url}`, name);
}

/** Requests a range of a file, or all of it, and retries if the network fails. */
async function ask(url: string, range?: [number, number]): Promise<Response> {
  const init: RequestInit = range ? { headers: { Range: `bytes=${range[0]}-${range[1] - 1}` }, cache: "no-store" } : {};
  for (let attempt = 1; ; attempt++) {
    try {
      const response = await fetch(url, init);
      if (response.ok) return response;
      const found = `${response.status} ${response.statusText}`.trim();
      if (response.status < 500 || attempt === ATTEMPTS) {
        throw new Refused(`${url}: the server responded ${found}; check the URL`);
      }
    } catch (error) {
      if (error instanceof Refused || attempt === ATTEMPTS) {
        throw error instanceof Refused
          ? error
          : new Error(`${url} cannot be reached (${message(error)}); check the URL, and that the server allows requests from other pages (CORS)`);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 250 * 4 ** attempt));
  }
}

class Refused extends Error {}

/** The size of the file from `Content-Range: bytes 0-0/SIZE`. */
function total(response: Response): number | undefined {
  const size = response.headers.get("content-range")?.split("/")[1];
  return size && /^\d+$/.test(size) ? Number(size) : undefined;
}

function source(key: string, name: string, size: number, read: Read): ByteSource {
  return {
    key,
    name,
    size,
    async read(starts, ends) {
      const found = new Array<Uint8Array>(starts.length);
      let next = 0;
      const work = async () => {
        for (let i = next++; i < starts.length; i = next++) {
          const [start, end] = [starts[i]!, ends[i]!];
          found[i] = new Uint8Array(start === end ? new ArrayBuffer(0) : await read(start, end));
        }
      };
      await Promise.all(Array.from({ length: AT_ONCE }, work));
      return found;
    },
  };
}

function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
