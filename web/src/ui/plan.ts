/** Checks the recipe after every change, and shows what training will do and need. */

import { BaseError, RecipeError, type Check } from "../api/index";
import { announce } from "./alert";
import { elsewhere } from "./base-problem";
import { button, byId, el } from "./dom";
import { bytes, count, percent, plural } from "./format";
import { canMeasure, measure } from "./measure";
import { estimate, timeOf, type Estimate } from "./pace";
import { isReading } from "./samples";
import { changes } from "./setup";
import { base, checked, data, phase, recipe, result, stale, table as samplesRead, trainer } from "./state";

const PAUSE = 400; // ms without a change

let timer = 0;
/** Whether a check is running, and whether it has to be repeated because something changed. */
let running = false;
let again = false;

/** Checks after a short time without changes. */
export function checkSoon(): void {
  stale.set(true);
  clearTimeout(timer);
  timer = window.setTimeout(() => void check(), PAUSE);
}

async function check(): Promise<void> {
  again = running;
  if (running || phase.get() !== "idle" || isReading()) return;
  const [device, model, samples] = [trainer.get(), base.get(), data.get()];
  if (!device || !model || samples.length === 0) return checked.set(null);
  const unread = samplesRead.get();
  if (unread instanceof Error) {
    stale.set(false);
    return checked.set(unread);
  }
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
  const show = () => {
    const found = checked.get();
    const plan = byId("plan");
    plan.setAttribute("aria-busy", "false");
    plan.replaceChildren(...(found instanceof Error ? failure(found) : found ? summary(found) : [missing()]));
    byId("plan-table").replaceChildren(...(found && !(found instanceof Error) ? table(found) : []));
    byId("plan-box").hidden = !found || found instanceof Error;
    plan.hidden = !(found instanceof Error) && (phase.get() !== "idle" || (result.get() !== null && changes.get().length === 0));
  };
  checked.watch((found) => {
    if (found && !(found instanceof Error)) announce(`Plan: ${count(found.steps)} steps, ${bytes(found.plan.bytes)} on the GPU.`);
    if (found instanceof Error) announce(found.message);
  });
  for (const cell of [checked, phase, result, changes, samplesRead]) cell.watch(show);
  for (const cell of [base, data, trainer]) cell.watch(() => checked.set(null));
}

/** Why no GPU can be used, if that is so. */
let noGpu = false;
export const setNoGpu = (none: boolean) => (noGpu = none);

function missing(): HTMLElement {
  if (noGpu) return el("p", { class: "note" }, "Training needs a GPU in this browser.");
  const what = !base.get() ? "Pick a base model in the settings." : data.get().length === 0 ? "Pick samples first." : "Reading samples and settings …";
  return el("p", { class: "note" }, trainer.get() ? what : "Looking for a GPU …");
}

function failure(error: Error): HTMLElement[] {
  if (error instanceof RecipeError) return [el("p", { class: "error" }, "A setting has an error: see Settings.")];
  if (error instanceof BaseError) return [elsewhere()];
  const known = samplesRead.get();
  if (known instanceof Error && known.message === error.message) return [el("p", { class: "error" }, "The samples have an error: see Samples.")];
  return [el("p", { class: "error" }, error.message)];
}

/** Where a time comes from. */
const FROM: Record<Estimate["from"], string> = {
  base: " ",
  other: " The time is a guess from another base on this device. ",
  kind: " The time is that of most devices like this one. ",
};

/** One sentence for everybody. */
function summary(check: Check): HTMLElement[] {
  const time = estimate(check);
  const over = plural(check.train.samples, check.tries === null ? "sample" : "prompt");
  const text = `${plural(check.steps, "step")} over ${over}${time === null ? "" : `, ${timeOf(time)}`}. Needs ${bytes(check.plan.bytes)} of GPU memory.`;
  const by = time ? FROM[time.from] : " ";
  const ask = time?.from !== "base" && canMeasure() ? [by, button("How long will it take?", () => void measure(), { class: "link" })] : [];
  // Those of the samples stand beside them.
  const read = samplesRead.get();
  const known = read && !(read instanceof Error) ? read.warnings : [];
  const warnings = check.warnings.filter((warning) => !known.includes(warning)).map((warning) => el("li", {}, warning));
  const learnt = check.rewards.length > 0 ? [el("p", { class: "note" }, `It learns from ${plural(check.rewards.length, "reward")}: ${check.rewards.join("; ")}.`)] : [];
  return [el("p", { class: "note" }, text, ...ask), ...learnt, ...(warnings.length > 0 ? [el("ul", { class: "warnings", "aria-label": "Warnings" }, ...warnings)] : [])];
}

function table(check: Check): HTMLElement[] {
  const part = (set: Check["train"]) =>
    check.tries !== null
      ? `${plural(set.samples, "prompt")}, ${plural(set.tokens, "token")}`
      : `${plural(set.samples, "sample")}, ${plural(set.tokens, "token")}, ${percent(set.loss_tokens / Math.max(set.tokens, 1))} loss tokens`;
  const rows: [string, string][] = [
    ["Base", check.base],
    ["Adapter", `${count(check.parameters)} trainable parameters`],
    ["Template", check.template],
    ["Train", part(check.train)],
    ["Validation", check.validation.samples > 0 ? part(check.validation) : "none"],
    ["Steps", count(check.steps)],
    ...(check.tries === null ? [] : [["Tries", check.tries] as [string, string]]),
    ...check.rewards.map((text): [string, string] => ["Reward", text]),
    ["Memory", `${bytes(check.plan.bytes)} on the GPU`],
    ...check.plan.lines.map((line): [string, string] => [`– ${line.what}`, bytes(line.bytes)]),
  ];
  return [el("dl", {}, ...rows.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]))];
}
