/** Samples as a sheet: rows of what someone says and what the model answers. */

import { announce } from "./alert";
import { button, el } from "./dom";
import { plural } from "./format";
import { understand } from "./pasted";
import { guessColumns } from "./cells";

/** What someone says, and what it answers. */
export type Row = [string, string];

/** Most rows of a sheet; more belong into a file. */
export const MOST_ROWS = 500;

const QUESTION = "When someone says";
const ANSWER: Record<Answers, string> = { completion: "it answers", expected: "the right answer is", none: "(not needed)" };
const EXAMPLES: Row = ["Hello!", "Ahoy, matey!"];

/** Rows of question and answer in a text, if it is a table or holds conversations of one turn; null otherwise. */
export function rowsIn(text: string): Row[] | null {
  const { reading, table, text: read, repair } = understand(text);
  if (reading === "table" && table) {
    const [question, answer] = guessColumns(table.names);
    return table.rows.map((row) => [row[question] ?? "", row[answer] ?? ""]);
  }
  if (reading !== "conversation" && reading !== "json") return null;
  const rows: Row[] = [];
  for (const line of (repair?.text ?? read).split("\n")) {
    if (line.trim() === "") continue;
    const row = rowOf(line);
    if (!row) return null;
    rows.push(row);
  }
  return rows;
}

/** Question and answer of a record in JSON; null for any other. */
function rowOf(line: string): Row | null {
  let record: unknown;
  try {
    record = JSON.parse(line);
  } catch {
    return null;
  }
  if (typeof record !== "object" || record === null) return null;
  const { messages, prompt, completion, ...rest } = record as Record<string, unknown>;
  if (Object.keys(rest).length > 0) return null;
  if (typeof prompt === "string" && typeof completion === "string" && messages === undefined) return [prompt, completion];
  if (!Array.isArray(messages) || messages.length !== 2) return null;
  const [question, answer] = messages as { role?: unknown; content?: unknown }[];
  const fits = question?.role === "user" && answer?.role === "assistant" && typeof question.content === "string" && typeof answer.content === "string";
  return fits ? [question.content as string, answer.content as string] : null;
}

/** The answers of a sheet: to be imitated, to be compared with, or not needed. */
export type Answers = "completion" | "expected" | "none";

/** The samples of a sheet as JSON Lines, and how many rows lack a side. */
export function linesOf(rows: Row[], answers: Answers = "completion"): { text: string; count: number; half: number } {
  const is = (text: string) => text.trim() !== "";
  const filled = rows.filter(([question, answer]) => is(question) && (answers === "none" || is(answer)));
  const half = rows.filter(([question, answer]) => (answers === "none" ? !is(question) && is(answer) : is(question) !== is(answer))).length;
  const record = ([prompt, answer]: Row) => (answers === "completion" ? { prompt, completion: answer } : is(answer) ? { prompt, answer } : { prompt });
  return { text: filled.map((row) => JSON.stringify(record(row))).join("\n"), count: filled.length, half };
}

/** Starts the sheet in `place`. `changed` gets the rows after every edit. */
export function sheet(place: HTMLElement, changed: (rows: Row[]) => void) {
  let rows: Row[] = [["", ""]];
  let answers: Answers = "completion";
  const names = () => [QUESTION, ANSWER[answers]];
  const body = el("tbody");
  const note = el("p", { class: "note", id: "sheet-note" });
  const hint = el("p", { class: "note" }, "Type, or paste two columns from a spreadsheet into a cell.");
  const head = el("tr");
  place.append(hint, el("table", { class: "sheet", "aria-label": "Sheet of samples" }, el("thead", {}, head), body), note);
  const add = button("Add a row", () => {
    rows.push(["", ""]);
    body.append(line(rows.length - 1));
    field(rows.length - 1, 0)?.focus();
  });
  place.append(add);

  const field = (row: number, column: number) => body.rows[row]?.querySelectorAll("textarea")[column];
  const tell = () => {
    const { half } = linesOf(rows, answers);
    const which = answers === "none" ? "without a prompt" : "with one side only";
    note.textContent = half === 0 ? "" : `${plural(half, "row")} ${which} ${half === 1 ? "is" : "are"} left out.`;
  };
  const told = () => {
    tell();
    add.disabled = rows.length >= MOST_ROWS;
    changed(rows);
  };
  const show = () => {
    head.replaceChildren(...names().map((name) => el("th", { scope: "col" }, name)), el("td"));
    body.replaceChildren(...rows.map((_, i) => line(i)));
    tell();
  };

  const line = (index: number): HTMLTableRowElement => {
    const one = el("tr");
    const at = () => [...body.rows].indexOf(one); // rows above may go
    const fields = names().map((name, column) => {
      const area = el("textarea", { rows: "1", "aria-label": `${name}, row ${index + 1}`, ...(index === 0 && { placeholder: EXAMPLES[column]! }) });
      area.value = rows[index]![column]!;
      area.addEventListener("input", () => {
        rows[at()]![column] = area.value;
        // The last row gets one below it as soon as it is used.
        if (at() === rows.length - 1 && rows.length < MOST_ROWS) {
          rows.push(["", ""]);
          body.append(line(rows.length - 1));
        }
        told();
      });
      area.addEventListener("paste", (event) => {
        const text = event.clipboardData?.getData("text/plain") ?? "";
        const found = /[\n\t]/.test(text.trim()) ? rowsIn(text) : null;
        if (!found || found.length === 0) return;
        event.preventDefault();
        fill(at(), found);
      });
      return el("td", {}, area);
    });
    const remove = button("×", () => {
      const was = at();
      rows.splice(was, 1);
      if (rows.length === 0) rows.push(["", ""]);
      show();
      told();
      field(Math.min(was, rows.length - 1), 0)?.focus();
    }, { class: "quiet", "aria-label": `Delete row ${index + 1}` });
    one.append(...fields, el("td", {}, remove));
    return one;
  };

  /** Puts rows into the sheet from row `from` on. Rows that are filled stay and move down. */
  const fill = (from: number, found: Row[]) => {
    const empty = rows[from]?.every((text) => text.trim() === "") ? 1 : 0;
    rows.splice(empty ? from : from + 1, empty, ...found);
    const left = Math.max(rows.length - MOST_ROWS, 0);
    rows = rows.slice(0, MOST_ROWS);
    if (rows.length < MOST_ROWS && rows.at(-1)!.some((text) => text !== "")) rows.push(["", ""]);
    show();
    told();
    if (left > 0) note.textContent += ` A sheet has up to ${MOST_ROWS} rows: ${plural(left, "row")} did not fit; use a file for more.`;
    announce(`${plural(found.length - left, "row")} pasted.`);
    field(Math.min(from + found.length, rows.length - 1), 0)?.focus();
  };

  show();
  return {
    rows: () => rows,
    /** Adds rows after those that are filled. */
    add(found: Row[]) {
      const last = rows.findLastIndex((row) => row.some((text) => text.trim() !== ""));
      rows = rows.slice(0, last + 1);
      rows.push(["", ""]);
      fill(rows.length - 1, found);
    },
    /** Shows other rows. Does not call `changed`. */
    set(other: Row[]) {
      rows = other.length > 0 ? other.map(([question, answer]): Row => [question, answer]) : [["", ""]];
      show();
    },
    /** Says what the answers are for. */
    answers(now: Answers) {
      if (now === answers) return;
      answers = now;
      show();
    },
    disable(disabled: boolean) {
      for (const area of place.querySelectorAll("textarea")) area.readOnly = disabled;
      for (const one of place.querySelectorAll("button")) one.disabled = disabled;
    },
  };
}
