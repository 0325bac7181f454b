/** Picked files: those of text are read like pasted text, as far as the program would read them otherwise. */

import type { Data } from "../api/index";
import type { Picked } from "./columns";
import { understand, type Reading, type Understood } from "./pasted";
import { rowsIn, type Row } from "./sheet";

/** Largest file whose text the page looks at. */
const MOST_LOOKED_AT = 16 * 2 ** 20;

/** How endings are read; other files are the program's. */
const ENDINGS: Record<string, Reading | undefined> = { csv: "table", tsv: "table", tab: "table", txt: undefined, jsonl: "json", ndjson: "json", json: "json" };

/** Whether a cell is what someone says rather than the name of a column. */
const speaks = (cell: string) => /[.!?…]\s*$/.test(cell) || cell.length > 40 || cell.trim().split(/\s+/).length > 4;

/** Rows of question and answer of files, if all of them are such text; null otherwise. */
export async function rowsOf(given: File[]): Promise<Row[] | null> {
  const rows: Row[] = [];
  for (const file of given) {
    if (file.size > MOST_LOOKED_AT) return null;
    try {
      const found = rowsIn(new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()));
      if (!found || found.length === 0) return null;
      rows.push(...found);
    } catch {
      return null; // not UTF-8
    }
  }
  return rows;
}

/** The samples of files, and how the text of a single one was read. */
export async function readFiles(picked: Data, said: Picked): Promise<{ data: Data; found: Understood | null }> {
  const [only] = picked;
  const ending = only?.name.split(".").at(-1)?.toLowerCase() ?? "";
  if (picked.length !== 1 || !only || !(ending in ENDINGS) || only.file.size > MOST_LOOKED_AT) return { data: picked, found: null };
  const text = new TextDecoder("utf-8", { fatal: true });
  let found: Understood;
  try {
    const usual = ENDINGS[ending];
    const body = text.decode(await only.file.arrayBuffer());
    found = understand(body, { ...(usual && { reading: usual }), ...said });
    // The first row of a file of rows names its columns, unless it speaks.
    const first = found.table && !found.table.heading && said.heading === undefined ? found.table.rows[0] : undefined;
    if (first && !first.some(speaks)) found = understand(body, { ...said, reading: "table", heading: true });
  } catch {
    return { data: picked, found: null }; // not UTF-8: the program says what it is
  }
  const same = found.table ? ENDINGS[ending] === "table" && found.table.heading : found.reading === "text" && ending === "txt";
  if (found.reading === "json" && !found.repair) return { data: picked, found: null };
  if (same && !found.repair) return { data: picked, found };
  // A broken file is read as it was repaired: there is no field to repair it in.
  const { repair, ...read } = found;
  const body = repair ? repair.text : found.text;
  const how = repair ? `${found.how} It was repaired: ${repair.what}.` : found.how;
  const name = only.name.replace(/\.[^.]*$/, found.name.replace(/^pasted/, ""));
  return { data: [{ name, file: new Blob([body]) }], found: { ...read, how } };
}
