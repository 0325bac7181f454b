/** How pasted text is read. */

import { expect, test } from "@playwright/test";
import { guessColumns } from "../../src/ui/cells";
import { understand } from "../../src/ui/pasted";

const lines = (text: string) => text.split("\n").map((line) => JSON.parse(line) as { messages: { role: string; content: string }[] });

test("tables are found by their cells, whatever separates them and whether or not a row names the columns", () => {
  const read = (text: string) => {
    const { reading, text: found, how } = understand(text);
    return [reading, found, how];
  };
  const both = ["table", "prompt,completion\nHi,Ahoy", "Read as a table of 1 row below a heading."];
  expect(read("prompt;completion\nHi;Ahoy\n")).toEqual(both);
  expect(read("\ufeffprompt\tcompletion\r\nHi\tAhoy\r\n")).toEqual(both);
  expect(read("Frage,Lösung\nWer?,Ich.")).toEqual(["table", "Frage,Lösung\nWer?,Ich.", "Read as a table of 1 row below a heading."]);
  expect(read("Hi\tAhoy!\nBye\tFair winds, matey")).toEqual(["table", 'prompt,completion\nHi,Ahoy!\nBye,"Fair winds, matey"', "Read as a table of 2 rows, without a heading."]);
  expect(read('question,answer\n"a, ""b""",c')).toEqual(["table", 'question,answer\n"a, ""b""",c', "Read as a table of 1 row below a heading."]);
  expect(understand("Hi\tAhoy\nBye\tSo long", { heading: true }).table).toEqual({ names: ["Hi", "Ahoy"], rows: [["Bye", "So long"]], heading: true });
});

test("prose is text, also with commas and colons in it", () => {
  const poem = "Roses are red, violets are blue\nSugar is sweet, and so are you";
  for (const text of [poem, "Roses are red, violets are blue\nSugar is sweet", "one ahoy\ntwo ahoys", "Note: this is\na story.", "a; b\nc; d"]) {
    expect(understand(text)).toMatchObject({ reading: "text", name: "pasted.txt", text });
  }
  expect(understand(poem, { reading: "table" }).table?.rows).toHaveLength(2);
});

test("transcripts are conversations", () => {
  const two = lines(understand("User: Hi\nAssistant: Ahoy!\nWelcome.\nUser: Bye\nAssistant: Winds\n\nUser: Who?\nAssistant: Me").text);
  expect(two.map(({ messages }) => messages.length)).toEqual([4, 2]);
  expect(two[0]!.messages[1]).toEqual({ role: "assistant", content: "Ahoy!\nWelcome." });
  expect(lines(understand("Q: 1+1?\nA: 2\nQ: 2+2?\nA: 4").text)).toHaveLength(2);
  expect(lines(understand("User: a\n\nAssistant: b\n\nUser: c\n\nAssistant: d").text)).toHaveLength(1);
  expect(lines(understand("**Frage:** Wer?\n**Antwort:** Ich.").text)[0]!.messages.map(({ role, content }) => `${role}: ${content}`)).toEqual(["user: Wer?", "assistant: Ich."]);
  expect(understand("System: Be brief.\nUser: a\nAssistant: b").how).toBe("Read as 1 conversation.");
  expect(lines(understand("Anna: Hi\nBob: Ho", { reading: "conversation" }).text)[0]!.messages.map(({ role }) => role)).toEqual(["user", "assistant"]);
  expect(lines(understand("Hi\nHo\nHu\nHa", { reading: "conversation" }).text)).toHaveLength(2);
});

test("JSON of all kinds is read, and what spoils it is repaired", () => {
  expect(understand('[\n  {"prompt": "a", "completion": "b"}\n]')).toMatchObject({ name: "pasted.jsonl", text: '{"prompt":"a","completion":"b"}' });
  expect(understand('{"prompt": "a", "completion": "b"}')).toMatchObject({ reading: "json", text: '{"prompt": "a", "completion": "b"}' });
  const curly = understand("{“prompt”: “a”, “completion”: “b”}");
  expect(curly.repair).toEqual({ text: '{"prompt": "a", "completion": "b"}', what: "straight quotes" });
  const commas = understand('{"prompt": "a", "completion": "b",},\n{"prompt": "c", "completion": "d"},');
  expect(commas.repair?.text).toBe('{"prompt": "a", "completion": "b"}\n{"prompt": "c", "completion": "d"}');
  expect(understand('{"prompt": broken').repair).toBeUndefined();
});

test("columns are guessed by their names", () => {
  expect(guessColumns(["id", "Kundenfrage", "Unsere Antwort"])).toEqual([1, 2]);
  expect(guessColumns(["Hi", "Ahoy"])).toEqual([0, 1]);
  expect(guessColumns(["answer", "question"])).toEqual([1, 0]);
  expect(guessColumns(["prompt", "chosen", "rejected"])).toEqual([0, 1]);
});
