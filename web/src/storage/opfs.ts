/** Files in the browser's own storage (OPFS): each write appears whole or not at all. */

/** The browser allows no more room. */
export class StorageFull extends Error {
  override name = "StorageFull";
}

/** The folder at `path`, made where it is missing if `create` says so. */
async function folder(path: string[], create: boolean): Promise<FileSystemDirectoryHandle> {
  let at = await navigator.storage.getDirectory();
  for (const name of path) at = await at.getDirectoryHandle(name, { create });
  return at;
}

const parts = (path: string) => path.split("/").filter((part) => part !== "");

const isMissing = (error: unknown) => error instanceof DOMException && error.name === "NotFoundError";

/** The file at `path`, or null where there is none. */
export async function read(path: string): Promise<File | null> {
  const names = parts(path);
  const name = names.pop()!;
  try {
    return await (await (await folder(names, false)).getFileHandle(name)).getFile();
  } catch (error) {
    if (isMissing(error)) return null;
    throw error;
  }
}

/** Replaces the file at `path`; the former one stays where this fails. */
export async function write(path: string, contents: Blob | BufferSource | string): Promise<void> {
  const names = parts(path);
  const name = names.pop()!;
  try {
    const file = await (await folder(names, true)).getFileHandle(name, { create: true });
    const writable = await file.createWritable(); // a file beside, which close() puts in its place
    try {
      await writable.write(contents);
      await writable.close();
    } catch (error) {
      await writable.abort().catch(() => {});
      throw error;
    }
  } catch (error) {
    if ((error as { name?: string }).name === "QuotaExceededError") throw new StorageFull(await room());
    throw error;
  }
}

/** Names in the folder at `path`, in order; none where there is no such folder. */
export async function list(path: string): Promise<string[]> {
  const names: string[] = [];
  try {
    for await (const name of (await folder(parts(path), false)).keys()) names.push(name);
  } catch (error) {
    if (!isMissing(error)) throw error;
  }
  return names.sort();
}

/** Removes a file, or a folder with all that it holds. */
export async function remove(path: string): Promise<void> {
  const names = parts(path);
  const name = names.pop()!;
  try {
    await (await folder(names, false)).removeEntry(name, { recursive: true });
  } catch (error) {
    if (!isMissing(error)) throw error;
  }
}

/** How full the storage is, in words. */
async function room(): Promise<string> {
  const { usage, quota } = await navigator.storage.estimate();
  const mb = (bytes: number | undefined) => `${((bytes ?? 0) / 1e6).toFixed(1)} MB`;
  return `this browser allows the page ${mb(quota)}, of which ${mb(usage)} are taken`;
}
