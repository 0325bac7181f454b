/** Zip files: writing and reading. */

import { unzipSync, zipSync } from "fflate";
import type { FileEntry } from "../api/index";

/** Downloads a file. */
export function download(name: string, contents: BlobPart): void {
  const url = URL.createObjectURL(new Blob([contents]));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the browser may still be reading
}

/** Packs files into a zip without compression, as weights hardly compress. */
export function zip(files: FileEntry[]): Uint8Array<ArrayBuffer> {
  const entries = Object.fromEntries(files.map((file) => [file.path, file.bytes]));
  return zipSync(entries, { level: 0 }) as Uint8Array<ArrayBuffer>;
}

/** Unpacks a zip. */
export async function unzip(file: File): Promise<FileEntry[]> {
  let entries: Record<string, Uint8Array>;
  try {
    entries = unzipSync(new Uint8Array(await file.arrayBuffer()));
  } catch {
    throw new Error(`${file.name} is not a valid zip file; pick one that was downloaded here, or the folder itself`);
  }
  const isFile = ([path]: [string, Uint8Array]) => !path.endsWith("/");
  return Object.entries(entries).filter(isFile).map(([path, bytes]) => ({ path, bytes }));
}
