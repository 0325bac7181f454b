/** Progress of the run: a bar with what is happening, the charts, and the hero. */

import type { Event } from "../api/index";
import { charts } from "./charts";
import { byId } from "./dom";
import { decimal, duration } from "./format";
import { showHero } from "./hero";
import { evaluationsAfter } from "./pace";
import { emptyHistory, record, type History } from "./history";
import { changes } from "./setup";
import { phase, recipe, runRecipe } from "./state";
import { measured } from "./rewards";
import { getValue } from "./toml";
import { showTried } from "./tried";
import { stages } from "./steps";

/** Number of recent steps for the estimate of the remaining time. */
const RECENT = 10;

const PHASES = {
  reference: "Scoring the samples before training",
  completions: "Trying answers",
  rewards: "Judging the answers",
  validation: "Testing on samples that it does not train on",
  replies: "Answering the questions",
  answers: "Answering the questions of the metrics",
  export: "Writing the adapter and comparing it with the trained one",
};

/** Phases that are a part of every step. */
const PARTS: string[] = ["completions", "rewards"];

/** Starts the section. */
export function progress() {
  const bar = byId<HTMLProgressElement>("bar");
  const text = byId("progress-text");
  const list = stages(byId("steps"));
  const pictures = charts(byId("charts"));
  let history: History | null = null;
  let steps = 0;
  let recent: number[] = [];
  /** Seconds of evaluations so far, and when the current one began. */
  let aside = { seconds: 0, count: 0, since: 0 };
  let at = "";
  let drawing = false;
  /** Questions of the current evaluation, and how many are answered. */
  let questions = { of: 0, answered: 0 };

  const draw = () => {
    drawing = false;
    if (history) pictures.draw(history, steps);
    showHero(history);
    showTried(history?.tried ?? null);
  };
  // At most once per frame.
  const drawSoon = () => {
    if (!drawing) requestAnimationFrame(draw);
    drawing = true;
  };
  for (const cell of [recipe, phase, changes]) cell.watch(drawSoon);
  phase.watch((now) => now === "idle" && list.end());

  /** Estimated seconds to the end: of the steps, and of the evaluations among them and at the end. */
  const left = (step: number) => {
    const each = recent.reduce((sum, s) => sum + s, 0) / Math.max(recent.length, 1);
    const evaluation = aside.count > 0 ? aside.seconds / aside.count : 0;
    const every = Number(getValue(runRecipe.get() ?? "", "eval", "steps") ?? 0);
    return (steps - step) * each + evaluationsAfter(step, every, steps) * evaluation;
  };

  let tokens = 0;
  const takeStep = (event: Extract<Event, { event: "step" }>) => {
    tokens += event.tokens;
    recent = [...recent, event.seconds].slice(-RECENT);
    const rest = event.step < steps ? `, ${duration(left(event.step))} left` : "";
    bar.value = event.step;
    const margin = event["rewards/margins"];
    const reward = measured(event.rewards)["reward"];
    const loss = reward === undefined ? `loss ${decimal(event.loss)}` : `reward ${decimal(reward, 3)}`; // the loss says nothing then
    at = `Step ${event.step} of ${steps}, ${loss}${margin == null ? "" : `, reward margin ${decimal(margin, 2)}`}`;
    text.textContent = at + rest;
  };

  return {
    /** Shows a run with its history so far; null for no run. */
    begin(known: History | null, step: number, all: number) {
      history = known;
      [steps, recent, tokens] = [all, [], 0];
      aside = { seconds: 0, count: 0, since: 0 };
      if (phase.get() === "idle") list.hide();
      byId("progress").hidden = known === null;
      byId("charts-box").hidden = known === null || known.steps.length === 0;
      bar.max = Math.max(all, 1);
      bar.value = step;
      at = known === null ? "" : `Step ${step} of ${all}`;
      text.textContent = at;
      drawSoon();
    },
    /** Shows that the page waits for the worker. */
    wait(words: string) {
      list.begin();
      byId("progress").hidden = false;
      bar.removeAttribute("value");
      text.textContent = words;
    },
    /** Shows an event of the run. */
    take(event: Event) {
      history ??= emptyHistory();
      record(history, event);
      list.take(event);
      if (event.event === "loading") {
        [bar.max, bar.value] = [event.of, event.layers];
        const read = `Loading the model: layer ${event.layers} of ${event.of}`;
        if (event.layers === event.of) bar.removeAttribute("value");
        text.textContent = event.layers < event.of ? read : "Testing the longest batch …";
      }
      if (event.event === "phase") {
        if (!PARTS.includes(event.phase)) aside.since ||= performance.now();
        if (event.phase === "replies" && event.done <= 1) questions = { of: event.of, answered: 0 };
        text.textContent = `${at ? `${at}. ` : ""}${(PHASES as Record<string, string>)[event.phase] ?? "Answering general questions"}: ${event.done} of ${event.of}`;
      } else if (aside.since > 0 && (event.event === "eval" || event.event === "done")) {
        aside = { seconds: aside.seconds + (performance.now() - aside.since) / 1000, count: aside.count + 1, since: 0 };
      }
      if (event.event === "sample" && ++questions.answered === questions.of && event.step < steps) {
        text.textContent = `Step ${event.step + 1} of ${steps} …`; // the answers are there
      }
      if (event.event === "step") {
        byId("charts-box").hidden = false;
        takeStep(event);
      }
      drawSoon();
    },
    /** Tokens of the steps that were seen, and the evaluations. */
    measured: () => ({ tokens, evaluations: { seconds: aside.seconds, count: aside.count } }),
    /** The history of the run. */
    history: () => history ?? emptyHistory(),
  };
}
