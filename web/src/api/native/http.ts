/** Requests to the program that serves the page. */

import { BaseError, RecipeError, TrainError } from "../errors";

/** How often a request is tried if the program does not answer, and the pause between. */
const ATTEMPTS = 4;
const PAUSE = 500; // ms

/** The page's address: `/KEY/`, with the key that every request needs. */
const page = new URL(".", document.baseURI);
const key = page.pathname.split("/")[1] ?? "";

const GONE = "the program has ended: start `rullama-train ui` again, and open the address that it prints";

/** An error of the program. */
interface Problem {
  kind?: "recipe" | "base" | "other";
  message?: string;
  key?: string | null;
  line?: number | null;
  column?: number | null;
  /** Of the server itself. */
  error?: { message: string };
}

/** The error that a problem stands for. */
export function toError({ kind, message, key, line, column, error }: Problem): TrainError {
  const text = message ?? error?.message ?? "the program answered with an unknown error";
  if (kind === "base") return new BaseError(text);
  if (kind !== "recipe") return new TrainError(text);
  return new RecipeError(text, { ...(key && { key }), ...(line && { line }), ...(column && { column }) });
}

/** Sends a request. Rejects with the program's error. */
export async function request(method: "GET" | "POST" | "PUT", path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const raw = body instanceof Blob;
  const headers: Record<string, string> = { Authorization: `Bearer ${key}` };
  if (body !== undefined) headers["Content-Type"] = raw ? "application/octet-stream" : "application/json";
  const init: RequestInit = { method, headers, cache: "no-store", ...(signal && { signal }) };
  if (body !== undefined) init.body = raw ? body : JSON.stringify(body);
  let answer: Response;
  try {
    answer = await fetch(new URL(`api/${path}`, page), init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new TrainError(GONE);
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let problem: Problem;
  try {
    problem = JSON.parse(text) as Problem;
  } catch {
    problem = { message: text.trim() };
  }
  throw answer.status === 401 ? new TrainError(GONE) : toError(problem);
}

export const get = async <T>(path: string): Promise<T> => (await (await request("GET", path)).json()) as T;

export const post = async <T>(path: string, body: unknown): Promise<T> => (await (await request("POST", path, body)).json()) as T;

/** The bytes of a file. */
export async function bytes(path: string): Promise<Uint8Array> {
  return new Uint8Array(await (await request("GET", path)).arrayBuffer());
}

/** A path as part of a URL. */
export const escaped = (path: string): string => path.split("/").map(encodeURIComponent).join("/");

/** The lines of JSON of an answer, as they arrive. */
export async function* lines<T>(answer: Response): AsyncGenerator<T> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop()!;
      for (const part of parts) if (part !== "") yield JSON.parse(part) as T;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** The lines of a stream that can be read again from a line on: after a broken connection it continues. `isLast` tells the end. */
export async function* resumed<T>(path: (from: number) => string, isLast: (line: T) => boolean): AsyncGenerator<T> {
  let from = 0;
  for (let failures = 0; ; ) {
    try {
      for await (const line of lines<T>(await request("GET", path(from)))) {
        from += 1;
        failures = 0;
        yield line;
        if (isLast(line)) return;
      }
      throw new TrainError(GONE);
    } catch (error) {
      failures += 1;
      if (failures >= ATTEMPTS) throw error instanceof TrainError ? error : new TrainError(GONE);
      await new Promise((done) => setTimeout(done, PAUSE));
    }
  }
}
