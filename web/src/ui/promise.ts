/** The first screen: what the page does, shown on one line, and two ways to begin. */

import { isAutomatic } from "./automatic";
import { dataSession } from "./data";
import { byId } from "./dom";
import { estimate, timeOf } from "./pace";
import { checked, checkpoint, phase, reader, result, runs } from "./state";
import { fresh, type } from "./typing";

/** A question with an answer before and after, as the included example learns it. */
const EXAMPLES: [string, string, string][] = [
  ["What is the capital of Peru?", "Lima.", "Lima. Aye, matey!"],
  ["What color is snow?", "Snow is white.", "Snow is white, arr!"],
  ["Repeat after me: river.", "river", "River, arr!"],
];
const EACH = 5000; // ms

/** What the buttons do. */
interface Ways {
  /** Picks the example and trains. */
  pirate(): void;
  /** Shows where own samples go. */
  own(): void;
}

/** Starts it. It goes with the first run. */
export function promise(ways: Ways): void {
  const place = byId("promise");
  const [question, before, after] = ["promise-question", "promise-before", "promise-after"].map((id) => byId(id)) as [HTMLElement, HTMLElement, HTMLElement];
  let timer = 0;
  let next = 0;
  const play = () => {
    const [asked, first, last] = EXAMPLES[next++ % EXAMPLES.length]!;
    question.textContent = asked;
    before.textContent = first;
    type(after, fresh(first, last), next > 1);
  };
  const show = () => {
    const fresh = phase.get() === "idle" && !result.get() && !checkpoint.get() && runs.get().length === 0;
    place.hidden = !fresh;
    document.documentElement.classList.toggle("first", fresh);
    clearInterval(timer);
    const moves = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (fresh && moves) timer = window.setInterval(play, EACH);
  };
  play();
  for (const cell of [phase, result, checkpoint, runs]) cell.watch(show);
  byId("try").addEventListener("click", ways.pirate);
  byId("own").addEventListener("click", ways.own);
  // On a first visit, the plan is that of the example.
  checked.watch((found) => {
    const time = found && !(found instanceof Error) && isAutomatic() && dataSession.kind === "task" && dataSession.task === "chat" ? estimate(found) : null;
    if (time) byId("try-time").textContent = timeOf(time);
  });
  reader.watch((found) => {
    byId<HTMLButtonElement>("try").disabled = found !== null;
    byId("try-note").textContent = found ? "Training needs a GPU in this browser." : "";
  });
}
