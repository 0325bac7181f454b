/** Files in memory, for windows in which the browser gives the page no storage: private ones, and pages without https. */

let files: Map<string, File> | null = null;
let asked: Promise<boolean> | null = null;

/** Whether files are kept in memory only. */
export const isInMemory = () => files !== null;

/** Asks the browser for storage, once. Without it, everything is kept in memory. */
export function askForStorage(): Promise<boolean> {
  const ask = async () => {
    try {
      await navigator.storage.getDirectory();
      return true;
    } catch {
      files = new Map();
      return false;
    }
  };
  return (asked ??= ask());
}

const plain = (path: string) => path.split("/").filter((part) => part !== "").join("/");

export const read = (path: string): File | null => files?.get(plain(path)) ?? null;

export function write(path: string, contents: Blob | BufferSource | string): void {
  const name = plain(path);
  files?.set(name, new File([contents as BlobPart], name.slice(name.lastIndexOf("/") + 1)));
}

export function list(path: string): string[] {
  const folder = `${plain(path)}/`;
  const inside = [...(files?.keys() ?? [])].filter((name) => name.startsWith(folder));
  return [...new Set(inside.map((name) => name.slice(folder.length).split("/")[0]!))].sort();
}

export function remove(path: string): void {
  const name = plain(path);
  for (const one of [...(files?.keys() ?? [])]) if (one === name || one.startsWith(`${name}/`)) files?.delete(one);
}
