/** Tables of text: rows of cells, with the separator that they have. */

/** A table as it was found in a text. */
export interface Table {
  rows: string[][];
  /** Whether the first row names the columns. */
  heading: boolean;
}

/** Rows of cells; cells in quotes may hold separators, line breaks and doubled quotes (RFC 4180). */
export function cells(text: string, separator: string): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let at = 0;
  while (at < text.length) {
    let cell = "";
    if (text[at] === '"') {
      for (at += 1; at < text.length; at++) {
        if (text[at] !== '"') cell += text[at];
        else if (text[at + 1] === '"') cell += text[(at += 1)];
        else break;
      }
      at += 1; // the closing quote
    }
    let end = at;
    while (end < text.length && text[end] !== separator && text[end] !== "\n") end += 1;
    row.push((cell + text.slice(at, end)).replace(/\r$/, ""));
    at = end + 1;
    if (text[end] !== separator) {
      rows.push(row);
      row = [];
    } else if (at >= text.length) row.push("");
  }
  if (row.length > 0) rows.push(row);
  return rows.filter((one) => one.some((cell) => cell.trim() !== ""));
}

const QUESTIONS = /question|problem|aufgabe|prompt|query|instruction|input|user|human|frage|pregunta|domanda|vraag|pytanie|вопрос|someone says|title|source/i;
const ANSWERS = /answer|solution|response|completion|output|reply|assistant|target|label|antwort|lösung|loesung|réponse|reponse|respuesta|risposta|odpowied|ответ|chosen/i;
const OTHERS = /^(id|nr|no|text|messages|conversations|history|system|tools|rejected|category|weight|language|date)$/i;

/** Longest name of a column, in characters. */
const LONGEST_NAME = 40;

/** Whether a row looks like the names of columns: short, all different, and one of them known. */
export function isHeading(row: string[]): boolean {
  const names = row.map((cell) => cell.trim());
  if (new Set(names).size < names.length || names.some((name) => name === "" || name.length > LONGEST_NAME || /[.!?…]$/.test(name))) return false;
  const known = names.filter((name) => name.split(/\s+/).length <= 4 && (QUESTIONS.test(name) || ANSWERS.test(name) || OTHERS.test(name)));
  return known.length >= Math.min(2, names.length);
}

/** Most columns of text that is taken for a table by itself. */
const MOST_COLUMNS = 40;

/** The rows of a table that a text is by all appearances; null for other texts. Poems have commas too: a table of commas needs a heading, or no blanks after them. */
export function findTable(text: string): Table | null {
  for (const separator of ["\t", ";", ",", "|"]) {
    if (!text.includes(separator)) continue;
    const rows = cells(text, separator);
    const [first] = rows;
    if (!first || first.length < 2 || first.length > MOST_COLUMNS) continue;
    const same = rows.every((row) => row.length === first.length);
    const heading = isHeading(first);
    if (heading && (same || separator !== "\t")) return { rows, heading };
    const prose = separator !== "\t" && rows.flatMap((row) => row.slice(1)).filter((cell) => /^\s/.test(cell)).length > 0;
    if (same && !prose && (separator === "\t" || rows.length > 1)) return { rows, heading };
  }
  return null;
}

/** The rows of a text that is said to be a table, by the separator that most of its rows agree on. */
export function asTable(text: string): Table {
  const tried = ["\t", ";", ",", "|"].map((separator) => {
    const rows = cells(text, separator);
    const width = rows[0]?.length ?? 0;
    return { rows, agree: width < 2 ? 0 : rows.filter((row) => row.length === width).length };
  });
  const best = tried.reduce((a, b) => (b.agree > a.agree ? b : a));
  return { rows: best.rows, heading: best.rows[0] !== undefined && isHeading(best.rows[0]) };
}

/** A row of CSV. */
export const csvRow = (row: string[]) => row.map((cell) => (/[",\n\r]/.test(cell) || cell.trim() !== cell ? `"${cell.replaceAll('"', '""')}"` : cell)).join(",");

/** Columns for question and answer: those with such names, or else the first two of text. */
export function guessColumns(names: string[]): [number, number] {
  const answer = names.findIndex((name) => ANSWERS.test(name) && !/^rejected$/i.test(name));
  const question = names.findIndex((name, i) => i !== answer && QUESTIONS.test(name));
  const free = (taken: number) => names.findIndex((name, i) => i !== taken && !OTHERS.test(name));
  const first = question >= 0 ? question : Math.max(free(answer), 0);
  const second = answer >= 0 ? answer : names.findIndex((name, i) => i > first && !OTHERS.test(name));
  return [first, second >= 0 ? second : names.length - 1];
}
