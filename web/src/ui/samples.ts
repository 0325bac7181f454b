/** The samples as a table: their text with the trained part marked, and their lengths. */

import { BaseError, RecipeError, type SampleRow, type Samples } from "../api/index";
import { isAutomatic } from "./automatic";
import { elsewhere } from "./base-problem";
import { button, byId, el } from "./dom";
import { count, percent, plural } from "./format";
import { readingRecipe } from "./data";
import { sampleText } from "./markup";
import { base, data, phase, reader, recipe, table, trainer } from "./state";

const PAUSE = 300; // ms without a change
const FEW = 4; // rows at first
const MORE = 100; // rows with each click
const BINS = 24;

let timer = 0;
let asked = 0;
let late = false;
let reading = false;

/** Whether samples are being read, after which the recipe may change. */
export const isReading = () => reading;

/** Reads the samples after a short time without changes. */
export function readSamplesSoon(): void {
  reading = true;
  clearTimeout(timer);
  timer = window.setTimeout(() => void readSamples(phase.get() === "idle"), PAUSE);
}

/** The samples as the table shows them, after the last change. */
export async function readSamplesNow(): Promise<Samples | Error | null> {
  clearTimeout(timer);
  if (reading) await readSamples(true);
  return table.get();
}

/** Reads the samples, if the worker is `free`; after the run otherwise. */
async function readSamples(free: boolean): Promise<void> {
  const [device, model, picked] = [trainer.get() ?? reader.get(), base.get(), data.get()];
  late = !free;
  if (late) reading = false;
  if (late) return;
  if (!device || !model || picked.length === 0) return show(null);
  const mine = ++asked;
  byId("samples").setAttribute("aria-busy", "true");
  const text = readingRecipe();
  const found = await device
    .samples({ base: model, data: picked, recipe: text })
    .catch((error: unknown) => (error instanceof Error ? error : new Error(String(error))));
  if (mine !== asked) return;
  // The places of a recipe that the page made for reading are nobody's.
  const placed = found instanceof RecipeError && text !== recipe.get();
  show(placed ? new Error(found.message.replace(/^recipe:\d+:\d+: /, "")) : found);
}

function show(found: Samples | Error | null): void {
  reading = false;
  table.set(found);
}

/** Starts the table. `fit` makes the recipe fit the samples. */
export function samplesTable(fit: (samples: Samples | null) => void): void {
  const place = byId("samples");
  let view: View = { rows: FEW, find: "", exact: false };
  const show = () => {
    const found = table.get();
    const used = place.contains(document.activeElement) ? document.activeElement!.id : "";
    place.setAttribute("aria-busy", "false");
    if (found === null) place.replaceChildren(waiting());
    else if (found instanceof BaseError) place.replaceChildren(elsewhere());
    else if (found instanceof Error) place.replaceChildren(el("p", { class: "error" }, found.message), ...wayOut(fit));
    else place.replaceChildren(...parts(found, view, more), ...fitting(found, fit));
    if (used) byId(used)?.focus(); // the field that is used was replaced
  };
  const more = (next: View) => {
    const used = document.activeElement?.id;
    view = next;
    show();
    if (!used) place.querySelector<HTMLElement>(".samples")?.focus();
  };
  table.watch(() => {
    view = { rows: FEW, find: "", exact: view.exact };
    show();
  });
  for (const cell of [recipe, data, trainer, reader, base]) cell.watch(show);
  phase.watch((now) => now === "idle" && late && readSamplesSoon());
}

function waiting(): HTMLElement {
  if (data.get().length === 0) return el("p", { class: "note empty" }, "No samples yet. Pick files, paste some text, or drop a file anywhere on this page.");
  if (base.get() === null) return el("p", { class: "note" }, "The samples are shown once there is a base model: see Settings.");
  return el("p", { class: "note" }, trainer.get() || reader.get() ? "Reading the samples …" : "The samples are shown once the page is ready.");
}

/** What the table shows: a number of rows, of those with a text. */
interface View {
  rows: number;
  find: string;
  /** Whether control tokens and lengths are shown. */
  exact: boolean;
}

/** The switch for control tokens and lengths. */
function exactly(view: View, more: (next: View) => void): HTMLElement {
  const box = el("input", { type: "checkbox", id: "samples-exact" });
  box.checked = view.exact;
  box.addEventListener("change", () => more({ ...view, exact: box.checked }));
  return el("label", { class: "exact" }, box, " Exact tokens and lengths");
}

/** The field that finds samples, once there are more than a few. */
function finder(found: Samples, view: View, more: (next: View) => void): HTMLElement[] {
  if (found.rows.length <= MORE) return [];
  const field = el("input", { type: "search", id: "samples-find", "aria-label": "Find in the samples", placeholder: "Find in the samples" });
  field.value = view.find;
  field.addEventListener("input", () => more({ ...view, rows: FEW, find: field.value }));
  return [field];
}

function parts(found: Samples, view: View, showMore: (next: View) => void): HTMLElement[] {
  const { samples, tokens, loss_tokens } = found.counts;
  const longest = found.lengths.reduce((most, length) => Math.max(most, length), 0);
  const prompts = loss_tokens === 0; // it tries answers to them
  const sizes = `${plural(samples, prompts ? "prompt" : "sample")}, ${plural(tokens, "token")}; the longest has ${count(longest)}.`;
  const trained = prompts ? " Training tries answers to them, and rewards judge these." : ` Training teaches the marked text, ${percent(loss_tokens / Math.max(tokens, 1))} of the tokens.`;
  const wanted = view.find.toLowerCase();
  const all = found.rows.filter(({ pieces }) => wanted === "" || pieces.map(({ text }) => text).join("").toLowerCase().includes(wanted));
  const rows = all.slice(0, view.rows).map((one) => row(one, view.exact));
  const head = el("tr", {}, el("th", { scope: "col" }, "Sample"), el("th", { scope: "col" }, "Tokens"));
  const body = el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows));
  const box = el("div", { class: "samples", tabindex: "0", role: "region", "aria-label": "Table of samples" }, body);
  const rest = Math.min(all.length - rows.length, MORE);
  const more: HTMLElement[] = rest > 0 ? [button(`Show ${rest} more`, () => showMore({ ...view, rows: rows.length + rest }), { class: "quiet" })] : [];
  const unseen = samples - found.rows.length;
  if (rest <= 0 && unseen > 0 && found.rows.every(({ side }) => side === null)) more.push(el("p", { class: "note" }, `${plural(unseen, "more sample")} cannot be seen here.`));
  if (rows.length === 0) more.push(el("p", { class: "note" }, "No sample has this text."));
  const warnings = found.warnings.map((warning) => el("li", {}, warning));
  const list = warnings.length > 0 ? [el("ul", { class: "warnings", "aria-label": "Notes on the samples" }, ...warnings)] : [];
  return [el("p", { class: "note" }, sizes + trained), ...(view.exact ? [lengths(found.lengths)] : []), ...finder(found, view, showMore), box, ...more, exactly(view, showMore), ...list];
}

function row({ origin, side, tokens, pieces, expected }: SampleRow, exact: boolean): HTMLElement {
  const text = sampleText(pieces, exact);
  if (expected !== null) text.push(el("small", { class: "expected" }, `expected: ${expected}`));
  const which = side === null ? [] : [el("small", {}, `${side} `)];
  return el("tr", { title: origin }, el("td", {}, ...which, ...text), el("td", {}, count(tokens)));
}

/** A histogram of the lengths. */
function lengths(all: number[]): HTMLElement {
  const most = all.reduce((a, b) => Math.max(a, b), 1);
  const least = all.reduce((a, b) => Math.min(a, b), most);
  const bins = new Array<number>(BINS).fill(0);
  for (const length of all) bins[Math.min(Math.floor(((length - least) / (most - least + 1)) * BINS), BINS - 1)]! += 1;
  const highest = Math.max(...bins);
  const bars = bins.map((n) => {
    const bar = el("i");
    bar.style.height = `${n === 0 ? 0 : 8 + (92 * n) / highest}%`;
    return bar;
  });
  const picture = el("div", { class: "bars", role: "img", "aria-label": `Lengths: ${least} to ${most} tokens` }, ...bars);
  const ends = el("div", { class: "ends", "aria-hidden": "true" }, el("span", {}, count(least)), el("span", {}, "tokens per sample"), el("span", {}, count(most)));
  return el("div", { class: "lengths" }, picture, ends);
}

/** What to do about samples that the user's own recipe cannot read. */
function wayOut(fit: (samples: null) => void): HTMLElement[] {
  if (isAutomatic() || phase.get() !== "idle") return [];
  return [button("Propose a recipe for these samples", () => fit(null))];
}

/** The proposal, if the recipe is not the page's own. */
function fitting(found: Samples, fit: (samples: Samples | null) => void): HTMLElement[] {
  if (isAutomatic() || phase.get() !== "idle") return [];
  const act = button("Fit the recipe to these samples", () => fit(found), { class: "link" });
  return [el("p", { class: "note" }, `The recipe is yours. Proposed for these samples: ${found.proposal}. `, act)];
}
