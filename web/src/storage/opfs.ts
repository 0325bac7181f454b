/** Files in the browser's storage (OPFS), or in memory where the browser gives none. Writes are atomic. */

import * as memory from "./memory";

/** The browser's storage quota is used up. */
export class StorageFull extends Error {
  override name = "StorageFull";
}

/** The folder at `path`, created if it is missing and `create` is true. */
async function folder(path: string[], create: boolean): Promise<FileSystemDirectoryHandle> {
  let at = await navigator.storage.getDirectory();
  for (const name of path) at = await at.getDirectoryHandle(name, { create });
  return at;
}

const parts = (path: string) => path.split("/").filter((part) => part !== "");

const isMissing = (error: unknown) => error instanceof DOMException && error.name === "NotFoundError";

/** The file at `path`, or null if it does not exist or is empty: a tab that was closed during the first write leaves an empty file. */
export async function read(path: string): Promise<File | null> {
  if (!(await memory.askForStorage())) return memory.read(path);
  const names = parts(path);
  const name = names.pop()!;
  try {
    const file = await (await (await folder(names, false)).getFileHandle(name)).getFile();
    return file.size > 0 ? file : null;
  } catch (error) {
    if (isMissing(error)) return null;
    throw error;
  }
}

/** Replaces the file at `path`. If this fails, the old file stays. */
export async function write(path: string, contents: Blob | BufferSource | string): Promise<void> {
  if (!(await memory.askForStorage())) return memory.write(path, contents);
  const names = parts(path);
  const name = names.pop()!;
  try {
    const file = await (await folder(names, true)).getFileHandle(name, { create: true });
    const writable = await file.createWritable(); // a temporary file that replaces the old one on close()
    try {
      await writable.write(contents);
      await writable.close();
    } catch (error) {
      await writable.abort().catch(() => {});
      throw error;
    }
  } catch (error) {
    if ((error as { name?: string }).name === "QuotaExceededError") throw new StorageFull("the storage of this browser is full");
    throw error;
  }
}

/** Sorted names in the folder at `path`; empty if it does not exist. */
export async function list(path: string): Promise<string[]> {
  if (!(await memory.askForStorage())) return memory.list(path);
  const names: string[] = [];
  try {
    for await (const name of (await folder(parts(path), false)).keys()) names.push(name);
  } catch (error) {
    if (!isMissing(error)) throw error;
  }
  return names.sort();
}

/** Removes a file, or a folder with its contents. */
export async function remove(path: string): Promise<void> {
  if (!(await memory.askForStorage())) return memory.remove(path);
  const names = parts(path);
  const name = names.pop()!;
  try {
    await (await folder(names, false)).removeEntry(name, { recursive: true });
  } catch (error) {
    if (!isMissing(error)) throw error;
  }
}
