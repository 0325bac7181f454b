/** How a text was read, with a choice beside it: as a table, a conversation or plain text, and which columns are question and answer. */

import "./samples.css";
import { guessColumns } from "./cells";
import { button, byId, el } from "./dom";
import type { Choice, Reading, Understood } from "./pasted";
import { quote } from "./toml";

/** What the user says about the samples. */
export interface Picked extends Choice {
  /** Columns of question and answer. */
  columns?: [string, string];
}

const READINGS: Record<Reading, string> = { table: "a table", conversation: "a conversation", text: "plain text", json: "JSON" };
const FIRST = 3; // rows below the choice of columns

/** Keys that the program knows, alone or together. */
const KNOWN = [["messages"], ["conversations"], ["contents"], ["text"], ["input_ids"], ["prompt", "completion"], ["question", "answer"], ["input", "output"], ["prompt", "response"], ["query", "response"], ["instruction", "output"], ["chosen", "rejected"]];

/** Whether the program reads columns of these names by itself. */
const isKnown = (names: string[]) => KNOWN.some((keys) => keys.every((key) => names.includes(key)));

/** The columns of question and answer; null if the names say it to the program, or there is no table. */
export function columnsOf({ table }: Understood, { columns }: Picked): [string, string] | null {
  if (!table || table.names.length < 2) return null;
  if (columns?.every((name) => table.names.includes(name))) return columns;
  if (isKnown(table.names)) return null;
  const [question, answer] = guessColumns(table.names);
  return [table.names[question]!, table.names[answer]!];
}

/** The columns of question and answer, whatever their names are; null without a table of two. */
export function bothOf(found: Understood, picked: Picked): [string, string] | null {
  const { table } = found;
  if (!table || table.names.length < 2) return null;
  return columnsOf(found, picked) ?? (guessColumns(table.names).map((i) => table.names[i]!) as [string, string]);
}

/** The value of `data.fields` for two columns. */
export const fieldsOf = ([question, answer]: [string, string]) => `{ prompt = ${quote(question)}, completion = ${quote(answer)} }`;

/** Shows how `found` was read. `changed` gets what the user says, `repair` a text without the mistakes. */
export function showReading(found: Understood | null, picked: Picked, changed: (picked: Picked) => void, repair: (text: string) => void): void {
  const place = byId("reading");
  const focused = document.activeElement?.id;
  if (!found) return place.replaceChildren();
  const options = (Object.keys(READINGS) as Reading[]).filter((one) => one !== "json" || found.reading === "json");
  const how = el("select", { id: "reading-as" }, ...options.map((one) => el("option", { value: one }, READINGS[one])));
  how.value = found.reading;
  how.addEventListener("change", () => changed({ reading: how.value as Reading }));
  const parts: HTMLElement[] = [el("p", { class: "note" }, found.how), el("span", { class: "pick" }, el("label", { for: how.id }, "Read as"), how)];
  if (found.table) parts.push(...tableParts(found, picked, changed));
  if (found.repair) {
    const { text, what } = found.repair;
    parts.push(button(`Repair the text: ${what}`, () => repair(text)));
  }
  place.replaceChildren(...parts);
  if (focused && place.querySelector(`#${focused}`)) byId(focused).focus();
}

function tableParts(found: Understood, picked: Picked, changed: (picked: Picked) => void): HTMLElement[] {
  const { names, rows, heading } = found.table!;
  const box = el("input", { type: "checkbox", id: "reading-heading" });
  box.checked = heading;
  box.addEventListener("change", () => changed({ reading: "table", heading: box.checked }));
  const parts: HTMLElement[] = [el("label", { class: "pick" }, box, " The first row names the columns")];
  const shown = bothOf(found, picked);
  if (!shown) return parts;
  const selects = ["question", "answer"].map((part, i) => {
    const select = el("select", { id: `column-${part}` }, ...names.map((name) => el("option", { value: name }, name)));
    select.value = shown[i]!;
    select.addEventListener("change", () => {
      const both = [...shown] as [string, string];
      if (select.value === both[1 - i]) both[1 - i] = both[i]!; // they change places
      both[i] = select.value;
      changed({ ...picked, reading: "table", columns: both });
    });
    return el("span", { class: "pick" }, el("label", { for: select.id }, i === 0 ? "Question" : "Answer"), select);
  });
  const at = shown.map((name) => names.indexOf(name));
  const body = rows.slice(0, FIRST).map((row) => el("tr", {}, ...at.map((i) => el("td", {}, row[i] ?? ""))));
  const head = el("tr", {}, ...["Question", "Answer"].map((name) => el("th", { scope: "col" }, name)));
  const first = el("table", { class: "first", "aria-label": "First rows" }, el("thead", {}, head), el("tbody", {}, ...body));
  return [...parts, el("div", { class: "both" }, ...selects), first];
}
