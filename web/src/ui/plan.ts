/** Checks the recipe after every change, and shows the result with the memory plan and warnings. */

import { RecipeError, type Check } from "../api/index";
import { announce } from "./alert";
import { button, byId, el } from "./dom";
import { bytes, count, percent, plural } from "./format";
import { base, checked, data, phase, recipe, stale, trainer } from "./state";

const PAUSE = 400; // ms without a change

let timer = 0;
/** Whether a check is running, and whether it has to be repeated because something changed. */
let running = false;
let again = false;
/** The URL that the user allows the page to read: a whole model may be downloaded from there. */
let allowed = "";

/** Checks after a short time without changes. */
export function checkSoon(): void {
  stale.set(true);
  clearTimeout(timer);
  timer = window.setTimeout(() => void check(), PAUSE);
}

async function check(): Promise<void> {
  again = running;
  if (running || phase.get() !== "idle") return;
  const [device, model, samples] = [trainer.get(), base.get(), data.get()];
  const readable = model?.kind !== "url" || model.url === allowed;
  if (!device || !model || !readable || samples.length === 0) return checked.set(null);
  running = true;
  byId("plan").setAttribute("aria-busy", "true");
  const found: Check | Error = await device
    .check({ base: model, data: samples, recipe: recipe.get() })
    .catch((error: unknown) => (error instanceof Error ? error : new Error(String(error))));
  running = false;
  if (again) return check();
  stale.set(false);
  checked.set(found);
}

/** Starts the section. */
export function planSection(): void {
  checked.watch((found) => {
    const plan = byId("plan");
    plan.setAttribute("aria-busy", "false");
    if (found && !(found instanceof Error)) announce(`Plan: ${count(found.steps)} steps, ${bytes(found.plan.bytes)} on the GPU.`);
    if (found instanceof Error) announce(found.message);
    if (found instanceof Error) byId<HTMLDetailsElement>("plan-box").open = true;
    plan.replaceChildren(...(found instanceof Error ? failure(found) : found ? table(found) : [missing()]));
  });
  // Collapse the plan when training starts.
  const box = byId<HTMLDetailsElement>("plan-box");
  phase.watch((now) => {
    if (now === "starting") box.open = false;
  });
  for (const cell of [base, data, trainer]) cell.watch(() => checked.set(null));
}

function missing(): HTMLElement {
  const model = base.get();
  if (trainer.get() && model?.kind === "url" && model.url !== allowed) {
    const read = () => {
      allowed = model.url;
      checkSoon();
    };
    const note = `The model will be downloaded from ${model.url}, layer by layer. No data is sent there.`;
    return el("p", { class: "note" }, note, " ", button("Download it", read));
  }
  const what = !model ? "Pick a base." : data.get().length === 0 ? "Pick samples." : "Checking …";
  return el("p", { class: "note" }, trainer.get() ? what : "Waiting for the GPU …");
}

function failure(error: Error): HTMLElement[] {
  if (error instanceof RecipeError) return [el("p", { class: "note" }, "The recipe has an error, which is shown below it.")];
  return [el("p", { class: "error" }, error.message)];
}

function table(check: Check): HTMLElement[] {
  const part = (set: Check["train"]) =>
    `${plural(set.samples, "sample")}, ${plural(set.tokens, "token")}, ${percent(set.loss_tokens / Math.max(set.tokens, 1))} loss tokens`;
  const rows: [string, string][] = [
    ["Base", check.base],
    ["Adapter", `${count(check.parameters)} trainable parameters`],
    ["Template", check.template],
    ["Train", part(check.train)],
    ["Validation", check.validation.samples > 0 ? part(check.validation) : "none"],
    ["Steps", count(check.steps)],
    ["Memory", `${bytes(check.plan.bytes)} on the GPU`],
  ];
  const list = el("dl", {}, ...rows.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
  const lines = check.plan.lines.map((line) => el("tr", {}, el("td", {}, line.what), el("td", {}, bytes(line.bytes))));
  const memory = el("details", {}, el("summary", {}, "Memory plan"), el("table", {}, el("tbody", {}, ...lines)));
  const warnings = check.warnings.map((warning) => el("li", {}, warning));
  return [list, ...(warnings.length > 0 ? [el("ul", { "aria-label": "Warnings" }, ...warnings)] : []), memory];
}
