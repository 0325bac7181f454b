/** Sends files to the program. A file that was sent is not sent again. */

import { TrainError } from "../errors";
import type { Data, FileEntry } from "../types";
import { request } from "./http";

/** Bytes of a part. */
const PART = 4 * 2 ** 20;

/** A file as a request names it. */
export interface Sent {
  path: string;
  upload: string;
}

/** Ids of the files that were sent. */
const known = new WeakMap<object, Promise<string>>();

function once(object: object, blob: () => Blob, name: string): Promise<string> {
  const sent = known.get(object) ?? send(blob(), name);
  known.set(object, sent);
  sent.catch(() => known.delete(object));
  return sent;
}

async function send(blob: Blob, name: string): Promise<string> {
  const id = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  for (let at = 0; at === 0 || at < blob.size; at += PART) {
    const part = blob.slice(at, at + PART);
    await part.slice(0, 1).arrayBuffer().catch((error: unknown) => {
      throw new TrainError(`${name} can no longer be read (${String(error)}): the file was changed or moved; pick it again`);
    });
    await request("PUT", `uploads/${id}/${at}`, part);
  }
  return id;
}

/** Sends samples and other files that a recipe names. */
export const sendData = (data: Data): Promise<Sent[]> =>
  Promise.all(data.map(async ({ name, file }) => ({ path: name, upload: await once(file, () => file, name) })));

/** Sends the files of an adapter or a checkpoint. */
export const sendFiles = (files: FileEntry[]): Promise<Sent[]> =>
  Promise.all(
    files.map(async ({ path, bytes }) => {
      return { path, upload: await once(bytes, () => new Blob([bytes as Uint8Array<ArrayBuffer>]), path) };
    }),
  );
