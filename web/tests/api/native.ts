/** The native program, PyTorch's files, and differences between tensors. */

import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import type { Encoded } from "./page";

/** The repository. */
export const root = fileURLToPath(new URL("../../..", import.meta.url)).replace(/\/$/, "");
/** Cargo's folder. */
export const target = process.env.CARGO_TARGET_DIR ?? join(root, "target");
/** Folder of the native program; `RULLAMA_PROFILE` names another profile of Cargo. */
const built = join(target, process.env.RULLAMA_PROFILE ?? "release");

export const read = (path: string): Buffer => readFileSync(join(root, path));
export const temporary = (): string => mkdtempSync(join(tmpdir(), "rullama-train-"));

/** The native program. */
export const program = join(built, "rullama-train");

/** Runs the native program in the repository. */
export const native = (...args: string[]): string => execute(program, args);
export const example = (name: string, ...args: string[]): string => execute(join(built, "examples", name), args);

function execute(program: string, args: string[]): string {
  return execFileSync(program, args, { cwd: root, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });
}

/** A folder's files, by their paths from there. */
export function folder(path: string): Encoded[] {
  const inside = (at: string): string[] =>
    readdirSync(at).flatMap((name) => (statSync(join(at, name)).isDirectory() ? inside(join(at, name)) : [join(at, name)]));
  return inside(path).map((file) => ({ path: relative(path, file), base64: readFileSync(file, "base64") }));
}

export function write(files: Encoded[], to: string): void {
  for (const { path, base64 } of files) {
    mkdirSync(dirname(join(to, path)), { recursive: true });
    writeFileSync(join(to, path), base64, "base64");
  }
}

/** The objects of a `metrics.jsonl`. */
export const lines = (path: string): Record<string, unknown>[] =>
  readFileSync(path, "utf8").trim().split("\n").map((line) => JSON.parse(line));

/** Every tensor of a safetensors file, as numbers. */
export function tensors(file: Buffer): Map<string, Float64Array> {
  const length = Number(file.readBigUInt64LE(0));
  const header: Record<string, { dtype: string; data_offsets: [number, number] }> = JSON.parse(file.toString("utf8", 8, 8 + length));
  const found = new Map<string, Float64Array>();
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [start, end] = entry.data_offsets.map((offset) => 8 + length + offset) as [number, number];
    found.set(name, values(entry.dtype, Uint8Array.from(file.subarray(start, end)).buffer));
  }
  return found;
}

function values(dtype: string, bytes: ArrayBuffer): Float64Array {
  switch (dtype) {
    case "F64":
      return new Float64Array(bytes);
    case "F32":
      return Float64Array.from(new Float32Array(bytes));
    case "I64":
      return Float64Array.from(new BigInt64Array(bytes), Number);
    default:
      throw new Error(`no ${dtype} is expected here`);
  }
}

/** Norm of the difference, as a part of the norm of what is expected. */
export function difference(found: ArrayLike<number>, expected: ArrayLike<number>): number {
  if (found.length !== expected.length) return Infinity;
  let [apart, norm] = [0, 0];
  for (let i = 0; i < expected.length; i++) {
    apart += (found[i]! - expected[i]!) ** 2;
    norm += expected[i]! ** 2;
  }
  return Math.sqrt(apart / norm);
}

export const floats = (base64: string): Float32Array => new Float32Array(Uint8Array.from(Buffer.from(base64, "base64")).buffer);
