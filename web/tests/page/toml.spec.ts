/** Reading and changing single keys of a recipe; all other characters stay. */

import { readFileSync } from "node:fs";
import { expect, test } from "@playwright/test";
import { getValue, quote, quoteList, readList, setValue, unsetValue } from "../../src/ui/toml";

const manual = readFileSync(new URL("../../../recipes/chat.toml", import.meta.url), "utf8");

/** The lines in which two texts differ. */
function changes(before: string, after: string): string[] {
  const old = before.split("\n");
  return after.split("\n").filter((line) => !old.includes(line));
}

test("values are read as they are written", () => {
  expect(getValue(manual, "lora", "rank")).toBe("16");
  expect(getValue(manual, "model", "base")).toBe('"tiny"');
  expect(getValue(manual, "train", "learning_rate")).toBe("4e-3");
  expect(getValue(manual, "train", "max_steps")).toBeNull(); // a comment
  expect(getValue(manual, "eval", "rank")).toBeNull(); // another section's
  expect(readList(getValue(manual, "eval", "samples")!)).toHaveLength(3);
});

test("a value is replaced where it stands, and its comment stays", () => {
  const after = setValue(manual, "lora", "rank", "8");
  expect(changes(manual, after)).toEqual(["rank = 8                       # default: 16; a higher rank can learn more, but needs more memory and time"]);
  expect(setValue(after, "lora", "rank", "16")).toBe(manual);
});

test("a key that the manual shows as a comment is set there, and unset again", () => {
  const after = setValue(manual, "train", "max_steps", "6");
  expect(changes(manual, after)).toEqual(["max_steps = 6               # default: none; number of optimizer steps; overrides epochs"]);
  expect(getValue(unsetValue(after, "train", "max_steps"), "train", "max_steps")).toBeNull();
});

test("a key or a section that is missing is added", () => {
  expect(setValue("[model]\nbase = 1\n", "model", "x", "2")).toBe("[model]\nx = 2\nbase = 1\n");
  expect(setValue("[model]", "model", "x", "2")).toBe("[model]\nx = 2\n");
  expect(setValue("[model]\n", "train", "seed", "2")).toBe("[model]\n\n[train]\nseed = 2\n");
});

test("a dotted key is its section's", () => {
  expect(setValue("lora.rank = 4\n[train]\nlora.rank = 1\n", "lora", "rank", "8")).toBe("lora.rank = 8\n[train]\nlora.rank = 1\n");
});

test("strings, lists and comments hide no keys", () => {
  const text = '[a]\nx = ["]", # ]\n  "#",\n]\ny = """\n[b]\nz = 1\n"""\n[b]\nz = 2 # z = 3\n';
  expect(getValue(text, "b", "z")).toBe("2");
  expect(readList(getValue(text, "a", "x")!)).toEqual(["]", "#"]);
  expect(setValue(text, "a", "x", "[]")).toContain("[a]\nx = []\ny =");
});

test("quoted strings are parsed back", () => {
  const texts = ['a "b" \\ c', "tab\tand # and ]", "ü\u007f"];
  for (const text of texts) expect(JSON.parse(quote(text))).toBe(text);
  expect(readList(quoteList(texts))).toEqual(texts);
  expect(readList(quoteList([]))).toEqual([]);
});
