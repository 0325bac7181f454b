/** The stages of a run with their times: load, test, answer, train, answer, save. */

import type { Event } from "../api/index";
import { el } from "./dom";
import { duration } from "./format";

const STAGES = ["Load", "Test", "Answer before", "Train", "Answer after", "Save"] as const;
type Stage = (typeof STAGES)[number];

/** Starts the list in `place`. */
export function stages(place: HTMLElement) {
  let now: Stage | null = null;
  let since = 0;
  let step = 0;
  let steps = 0;
  let timer = 0;
  const seconds = new Map<Stage, number>();

  const draw = () => {
    const at = now === null ? STAGES.length : STAGES.indexOf(now);
    const items = STAGES.filter((stage) => stage === now || seconds.has(stage) || STAGES.indexOf(stage) > at).map((stage) => {
      const index = STAGES.indexOf(stage);
      const done = index < at && seconds.has(stage);
      const spent = (seconds.get(stage) ?? 0) + (stage === now ? (performance.now() - since) / 1000 : 0);
      const name = stage === "Train" && step > 0 ? `Train ${step} of ${steps}` : stage;
      const time = done || stage === now ? ` ${duration(spent)}` : "";
      const item = el("li", { class: done ? "done" : stage === now ? "now" : "" }, name, el("small", {}, time));
      if (stage === now) item.setAttribute("aria-current", "step");
      if (done) item.append(el("span", { class: "hidden-text" }, ", done"));
      return item;
    });
    place.replaceChildren(...items);
  };
  const enter = (stage: Stage | null) => {
    if (stage === now) return;
    if (now !== null) seconds.set(now, (seconds.get(now) ?? 0) + (performance.now() - since) / 1000);
    now = stage;
    since = performance.now();
    clearInterval(timer);
    if (stage !== null) timer = window.setInterval(draw, 1000);
    draw();
  };

  return {
    /** Begins with loading. */
    begin() {
      enter(null);
      seconds.clear();
      [step, steps] = [0, 0];
      place.hidden = false;
      enter("Load");
    },
    take(event: Event) {
      if (now === null) return;
      if (event.event === "loading" && event.layers === event.of) enter("Test");
      if (event.event === "plan") {
        [step, steps] = [event.resumed_at, event.steps];
        enter("Train");
      }
      const drawing = event.event === "phase" && (event.phase === "completions" || event.phase === "rewards"); // a part of a step
      if (event.event === "phase") enter(drawing ? "Train" : event.phase === "export" ? "Save" : step === 0 ? "Answer before" : step >= steps ? "Answer after" : "Train");
      if (event.event === "eval" || event.event === "sample") draw();
      if (event.event === "step") {
        step = event.step;
        enter("Train");
        draw();
      }
      if (event.event === "done") enter(null);
    },
    /** Stops the clock where the run has ended early. */
    end() {
      enter(null);
    },
    hide() {
      enter(null);
      place.hidden = true;
    },
  };
}
