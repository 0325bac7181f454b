/** Times a few steps of the run on this device, for an estimate before the first one. */

import { isNative } from "../api/engine";
import { alertUser, announce, words } from "./alert";
import { byId } from "./dom";
import { noteSpeed } from "./pace";
import { base, checked, data, phase, recipe, trainer } from "./state";
import { setValue } from "./toml";

/** Steps that are timed, after one in which kernels are compiled. */
const TIMED = 2;

/** Whether steps can be timed: the program would keep a run of them. */
export const canMeasure = () => !isNative() && trainer.get() !== null && phase.get() === "idle";

/** Takes a few steps without questions, and notes their speed. Nothing is kept. */
export async function measure(): Promise<void> {
  const [device, model, check] = [trainer.get(), base.get(), checked.get()];
  if (!device || !model || !check || check instanceof Error || !canMeasure()) return;
  const settings: [string, string, string][] = [
    ["train", "max_steps", String(1 + TIMED)],
    ["data", "val_size", "0"],
    ["eval", "samples", "[]"],
    ["eval", "steps", "0"],
  ];
  const text = settings.reduce((before, setting) => setValue(before, ...setting), recipe.get());
  phase.set("starting");
  byId("progress").hidden = false;
  byId("bar").removeAttribute("value");
  byId("progress-text").textContent = `Timing ${TIMED} steps on this device …`;
  let [tokens, seconds, taken] = [0, 0, 0];
  try {
    for await (const event of device.train({ base: model, data: data.get(), recipe: text })) {
      if (event.event !== "step") continue;
      if (++taken > 1) [tokens, seconds] = [tokens + event.tokens, seconds + event.seconds];
      if (taken > TIMED) break;
    }
    noteSpeed(check, tokens, seconds, { seconds: 0, count: 0 });
    announce("The time is in the plan.");
  } catch (error) {
    if (trainer.get() === device) alertUser(`The time could not be measured: ${words(error)}`);
  } finally {
    byId("progress").hidden = true;
    phase.set("idle");
    checked.set(check);
  }
}
