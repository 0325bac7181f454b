/** What own samples are learnt from: their answers, or a reward for what the model tries. */

import { byId, el } from "./dom";
import { quote, setValue } from "./toml";

/** The reward that the user has chosen. */
export interface Learning {
  reward: Reward;
  /** Its setting, as typed. */
  value?: string;
  /** The column with what is expected, for records with names of their own. */
  column?: string;
}

/** Rewards that a browser can compute, and those that need another program. */
export type Reward = "number" | "exact_match" | "regex" | "json" | "think_format" | "length" | "repetition";

interface Kind {
  title: string;
  /** Whether it compares with a column. */
  expects?: true;
  /** Its one setting. */
  setting?: { key: string; label: string; usual: string; toml: (value: string) => string };
}

const number = (value: string) => (/^\d+$/.test(value.trim()) ? value.trim() : quote(value)); // the engine says what is wrong

const REWARDS: Record<Reward, Kind> = {
  number: { title: "number: the last number is right", expects: true },
  exact_match: { title: "exact_match: the whole answer is right", expects: true },
  regex: { title: "regex: a pattern occurs", setting: { key: "pattern", label: "Pattern", usual: "(?i)\\b(please|thank you)\\b", toml: quote } },
  json: { title: "json: the answer is JSON" },
  think_format: { title: "think_format: it thinks before it answers" },
  length: { title: "length: the answer is about so long", setting: { key: "target_len", label: "Tokens", usual: "100", toml: number } },
  repetition: { title: "repetition: it does not repeat itself" },
};

/** The column that a sheet and plain pairs have for what is expected. */
export const EXPECTED = "answer";

/** Whether the reward compares with a column. */
export const expects = ({ reward }: Learning) => REWARDS[reward].expects === true;

/** The recipe `text` with the chosen reward. `column`: what is expected. */
export function withReward(text: string, { reward, value }: Learning, column: string): string {
  const { setting, expects } = REWARDS[reward];
  const keys = [`name = ${quote(reward)}`];
  if (setting) keys.push(`${setting.key} = ${setting.toml(value ?? setting.usual)}`);
  if (expects) keys.push(`column = ${quote(column)}`);
  return `${setValue(text, "train", "objective", quote("grpo")).trimEnd()}\n\n[[rewards]]\n${keys.join("\n")}\n`;
}

/** What can be chosen of the samples. */
export interface Shown {
  learning: Learning | null;
  /** Names of the records' columns; empty if they are chosen elsewhere. */
  names: string[];
  /** The column with what is expected; null where the samples have no names that the user has seen. */
  column: string | null;
}

/** Starts the choice. `changed` gets what the user chooses. */
export function learnChoice(changed: (learning: Learning | null) => void) {
  const place = byId("learn");
  const from = el("select", { id: "learn-from" });
  const tries = el("optgroup", { label: "a reward for what it tries" });
  for (const [name, { title }] of Object.entries(REWARDS)) tries.append(el("option", { value: name }, title));
  from.append(el("option", { value: "" }, "the answers: it imitates them"), tries);
  const more = el("div", { class: "more" });
  const note = el("p", { class: "note" });
  place.append(el("label", { for: from.id }, "It learns from"), from, more, note);
  let now: Learning | null = null;
  let typing = 0;
  from.addEventListener("change", () => changed(from.value === "" ? null : { reward: from.value as Reward, ...(now?.column !== undefined && { column: now.column }) }));

  const setting = (learning: Learning): HTMLElement[] => {
    const { setting } = REWARDS[learning.reward];
    if (!setting) return [];
    const field = el("input", { id: "learn-value", autocomplete: "off", spellcheck: "false" });
    field.value = learning.value ?? setting.usual;
    field.addEventListener("input", () => {
      clearTimeout(typing);
      typing = window.setTimeout(() => changed({ ...learning, value: field.value }), 400);
    });
    return [el("label", { for: field.id }, setting.label), field];
  };
  const column = (learning: Learning, names: string[], shown: string | null): HTMLElement[] => {
    if (!expects(learning) || names.length === 0) return [];
    const select = el("select", { id: "learn-column" }, ...names.map((name) => el("option", { value: name }, name)));
    if (shown !== null) select.value = shown;
    select.addEventListener("change", () => changed({ ...learning, column: select.value }));
    return [el("label", { for: select.id }, "Expected answer"), select];
  };

  return {
    /** Shows the choice for the samples in use; null hides it. */
    show(shown: Shown | null) {
      place.hidden = shown === null;
      if (shown === null) return;
      const { learning, names, column: expected } = shown;
      const same = learning?.reward === now?.reward && document.activeElement?.id === "learn-value";
      now = learning;
      from.value = learning?.reward ?? "";
      if (!same) more.replaceChildren(...(learning ? [...setting(learning), ...column(learning, names, expected)] : []));
      const compared = learning && expects(learning) && expected !== null ? ` The column “${expected}” has what is expected.` : "";
      note.textContent = learning ? `It tries several answers to each prompt, and learns from those that get more than the others.${compared}` : "";
    },
    disable(disabled: boolean) {
      for (const one of place.querySelectorAll<HTMLSelectElement | HTMLInputElement>("select, input")) one.disabled = disabled;
    },
  };
}

/** The names of a record's columns: those of the first line of JSON, or of the first item of a list. */
export function namesOf(text: string): string[] {
  const first = (value: unknown): string[] => (Array.isArray(value) ? first(value[0]) : typeof value === "object" && value !== null ? Object.keys(value) : []);
  for (const one of [text.slice(0, text.indexOf("\n") < 0 ? undefined : text.indexOf("\n")), text]) {
    try {
      return first(JSON.parse(one));
    } catch {
      continue; // the first line of a list is no record
    }
  }
  return [];
}
