/** Progress of the run: a bar, a status line, the charts, and replies before and after training. */

import type { Event } from "../api/index";
import { charts } from "./charts";
import { byId, el } from "./dom";
import { decimal, duration } from "./format";
import { emptyHistory, record, type History } from "./history";

/** Number of recent steps for the estimate of the remaining time. */
const RECENT = 10;

/** Starts the section. */
export function progress() {
  const bar = byId<HTMLProgressElement>("bar");
  const text = byId("progress-text");
  const pictures = charts(byId("charts"));
  let history = emptyHistory();
  let steps = 0;
  let recent: number[] = [];
  let drawing = false;

  const draw = () => {
    drawing = false;
    pictures.draw(history);
    replies(history);
  };
  // At most once per frame.
  const drawSoon = () => {
    if (!drawing) requestAnimationFrame(draw);
    drawing = true;
  };

  return {
    /** Shows a run with its history so far; null for no run. */
    begin(known: History | null, step: number, all: number) {
      const there = known !== null;
      history = known ?? emptyHistory();
      [steps, recent] = [all, []];
      for (const id of ["progress", "charts"]) byId(id).hidden = !there;
      bar.max = Math.max(all, 1);
      bar.value = step;
      text.textContent = there ? `Step ${step} of ${all}` : "";
      drawSoon();
    },
    /** Shows an event of the run. */
    take(event: Event) {
      record(history, event);
      if (event.event === "loading") {
        byId("progress").hidden = false;
        [bar.max, bar.value] = [event.of, event.layers];
        const read = `Loading the model: layer ${event.layers} of ${event.of}`;
        text.textContent = event.layers < event.of ? read : "Testing the longest batch …";
      }
      if (event.event === "step") {
        recent = [...recent, event.seconds].slice(-RECENT);
        const left = ((steps - event.step) * recent.reduce((sum, s) => sum + s, 0)) / recent.length;
        const rest = event.step < steps ? `, ${duration(left)} left` : "";
        bar.value = event.step;
        text.textContent = `Step ${event.step} of ${steps}, loss ${decimal(event.loss)}${rest}`;
      }
      drawSoon();
    },
  };
}

/** Shows each prompt with its first and last reply, and the notices. */
function replies(history: History): void {
  const place = byId("replies");
  const prompts = [...new Set(history.replies.map((reply) => reply.prompt))];
  place.hidden = prompts.length === 0 && history.notices.length === 0;
  const rows = prompts.map((prompt) => {
    const answers = history.replies.filter((reply) => reply.prompt === prompt);
    const [first, last] = [answers[0]!, answers.at(-1)!];
    const after = last.step > first.step ? last.reply : "";
    return el("tr", {}, el("th", { scope: "row" }, prompt), el("td", {}, first.reply), el("td", {}, after));
  });
  const head = el("tr", {}, ...["Prompt", "Before", "After"].map((name) => el("th", { scope: "col" }, name)));
  const table = el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows));
  const notices = history.notices.map(({ step, notice }) => el("p", { class: "note" }, `Step ${step}: ${notice}`));
  place.replaceChildren(...(prompts.length > 0 ? [table] : []), ...notices);
}
