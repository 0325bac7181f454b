/** Pasted text: what it is by all appearances, and the samples in it. */

import { asTable, csvRow, findTable, type Table } from "./cells";
import { plural } from "./format";
import { asTranscript, findTranscript } from "./transcript";

/** Ways to read a text. */
export type Reading = "json" | "table" | "conversation" | "text";

/** What the user says about the text; the page finds out what is missing. */
export interface Choice {
  reading?: Reading;
  /** Whether the first row of the table names the columns. */
  heading?: boolean;
}

/** A text as samples. */
export interface Understood {
  reading: Reading;
  /** File name in the recipe: its ending says how the program reads it. */
  name: string;
  text: string;
  /** How it was read, in words. */
  how: string;
  /** The table, with names for its columns. */
  table?: { names: string[]; rows: string[][]; heading: boolean };
  /** The text after an obvious repair, and what that was. */
  repair?: { text: string; what: string };
}

/** Reads a text as the user says, or as it looks. */
export function understand(given: string, { reading, heading }: Choice = {}): Understood {
  const text = given.replace(/^\ufeff/, "");
  const looks = /^\s*[[{]/.test(text);
  if (reading === "json" || (!reading && looks)) return json(text);
  if (reading === "table" || !reading) {
    const found = reading ? asTable(text) : findTable(text);
    if (found && (reading || found.rows.length > 0)) return table({ ...found, heading: heading ?? found.heading });
  }
  if (reading === "conversation" || !reading) {
    const found = reading ? asTranscript(text) : findTranscript(text);
    if (found) {
      const lines = found.map((messages) => JSON.stringify({ messages }));
      return { reading: "conversation", name: "pasted.jsonl", text: lines.join("\n"), how: `Read as ${plural(found.length, "conversation")}.` };
    }
  }
  return { reading: "text", name: "pasted.txt", text, how: "Read as plain text: all of it is trained, question and answer alike." };
}

function table({ rows, heading }: Table): Understood {
  const width = Math.max(...rows.map((row) => row.length), 0);
  const first = heading ? rows[0]! : Array.from({ length: width }, (_, i) => (width === 2 ? ["prompt", "completion"][i]! : `column ${i + 1}`));
  const names = first.map((name, i) => name.trim() || `column ${i + 1}`);
  const body = heading ? rows.slice(1) : rows;
  const text = [names, ...body].map(csvRow).join("\n");
  const how = `Read as a table of ${plural(body.length, "row")}${heading ? " below a heading" : ", without a heading"}.`;
  return { reading: "table", name: "pasted.csv", text, how, table: { names, rows: body, heading } };
}

const parse = (text: string): unknown => {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
};

/** Straight quotes, and no commas where JSON has none. */
function repaired(text: string): string {
  const straight = text.replace(/[“”„‟«»″]/g, '"').replace(/[\u00a0\u2028]/g, " ");
  return straight.replace(/,(\s*[\]}])/g, "$1").replace(/^(\s*\{.*\})\s*,\s*$/gm, "$1");
}

function json(text: string): Understood {
  const whole = parse(text);
  const lines = text.split(/\r?\n/).filter((line) => line.trim() !== "");
  if (whole !== undefined && lines.length > 1) {
    const records = Array.isArray(whole) ? whole : [whole];
    const records_ = records.map((record) => JSON.stringify(record));
    return { reading: "json", name: "pasted.jsonl", text: records_.join("\n"), how: `Read as JSON: ${plural(records_.length, "record")}.` };
  }
  const as: Understood = { reading: "json", name: "pasted.jsonl", text, how: `Read as JSON Lines: ${plural(lines.length, "line")}.` };
  const valid = (one: string) => parse(one) !== undefined || one.split(/\r?\n/).every((line) => line.trim() === "" || parse(line) !== undefined);
  if (valid(text)) return as;
  const mended = repaired(text);
  const what = /[“”„‟«»″]/.test(text) ? "straight quotes" : "no commas at the ends";
  return valid(mended) ? { ...as, repair: { text: mended, what } } : as;
}
