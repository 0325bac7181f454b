/** The five settings that most runs change. The form edits the recipe text. */

import { byId, el } from "./dom";
import { recipe } from "./state";
import { getValue, isInline, quoteList, readList, setValue, unsetValue } from "./toml";

interface Field {
  section: string;
  key: string;
  label: string;
  /** The default if the recipe does not set the key. */
  default: string;
  hint: string;
  /** Why a value cannot be used; empty if it can. */
  wrong(value: string): string;
}

const whole = (value: string) => (/^\d+$/.test(value) && Number(value) > 0 ? "" : `Write a whole number from 1, not “${value}”.`);

/** Highest learning rate that any optimizer takes. */
const HIGHEST = 100;

/** The first field with a value that cannot be used, in view. */
export function wrongField(): HTMLElement | null {
  const wrong = byId("recipe-form").querySelector<HTMLElement>("[data-wrong]");
  if (wrong) byId<HTMLDetailsElement>("settings-details").open = true;
  return wrong;
}

function positive(value: string): string {
  if (Number(value) > HIGHEST) return `${value} is far above any usual rate; write one such as 1e-4.`;
  if (/^\d+,\d+$/.test(value)) return `Write ${value.replace(",", ".")}, with a point.`;
  return Number(value) > 0 && Number.isFinite(Number(value)) ? "" : `Write a number above 0, such as 1e-4, not “${value}”.`;
}

const FIELDS: Field[] = [
  { section: "train", key: "epochs", label: "Epochs", default: "3", hint: "passes over the samples", wrong: whole },
  { section: "train", key: "learning_rate", label: "Learning rate", default: "2e-4", hint: "lower it if the loss jumps", wrong: positive },
  { section: "lora", key: "rank", label: "Rank", default: "16", hint: "higher: can learn more, takes more memory", wrong: whole },
  { section: "data", key: "max_seq_len", label: "Tokens per row", default: "2048", hint: "at least the longest sample", wrong: whole },
];

/** Starts the form. `changed` is called with the new recipe text. */
export function form(changed: (text: string) => void) {
  const inputs = FIELDS.map((field) => {
    const id = `field-${field.key}-${field.section}`;
    const attributes = { id, inputmode: "decimal", autocomplete: "off", "aria-describedby": `${id}-hint ${id}-error` };
    const input = el("input", { ...attributes, placeholder: field.default });
    const error = el("p", { class: "error", id: `${id}-error` });
    const refuse = (message: string) => {
      error.textContent = message;
      input.setAttribute("aria-invalid", String(message !== ""));
    };
    input.addEventListener("input", () => {
      const { section, key } = field;
      const value = input.value.trim();
      const message = value === "" ? "" : field.wrong(value);
      refuse(message);
      input.toggleAttribute("data-wrong", message !== "");
      if (message !== "") return;
      const text = key === "epochs" ? unsetValue(recipe.get(), "train", "max_steps") : recipe.get();
      changed(value === "" ? unsetValue(text, section, key) : setValue(text, section, key, value));
    });
    const note = el("small", { id: `${id}-hint` }, field.hint);
    byId("recipe-form").append(el("div", {}, el("label", { for: id }, field.label), input, note, error));
    return { ...field, input, note, refuse };
  });

  const prompts = el("textarea", { id: "field-samples", rows: "3", "aria-describedby": "field-samples-hint" });
  const hint = el("small", { id: "field-samples-hint" }, "one per line");
  const label = el("label", { for: "field-samples" }, "Questions to answer before and after");
  byId("recipe-form").append(el("div", { class: "wide" }, label, prompts, hint));
  prompts.addEventListener("input", () => {
    const lines = prompts.value.split("\n").filter((line) => line.trim() !== "");
    changed(setValue(recipe.get(), "eval", "samples", quoteList(lines)));
  });
  byId("recipe-form").addEventListener("submit", (event) => event.preventDefault());

  // Do not change the field that the user is typing in.
  const show = (field: HTMLInputElement | HTMLTextAreaElement, value: string) => {
    if (document.activeElement !== field && field.value !== value) field.value = value;
  };
  let free = true;
  const refresh = () => {
    const text = recipe.get();
    for (const { section, key, input, note, refuse, hint, default: usual } of inputs) {
      const inline = isInline(text, section);
      const steps = key === "epochs" ? getValue(text, "train", "max_steps") : null; // overrides epochs
      const value = steps === null ? (getValue(text, section, key) ?? "") : "";
      input.placeholder = steps === null ? usual : "—";
      // A wrong value stays, with its reason, until its setting is changed elsewhere.
      if (value !== input.dataset["was"]) input.removeAttribute("data-wrong");
      input.dataset["was"] = value;
      if (!input.hasAttribute("data-wrong")) {
        if (document.activeElement !== input && input.value !== value) refuse("");
        show(input, value);
      }
      input.disabled = !free || inline;
      note.textContent = inline ? `set in the recipe, as ${section} = { … }` : steps === null ? hint : `now ${steps} steps: max_steps in the recipe`;
    }
    const list = readList(getValue(text, "eval", "samples") ?? "[]");
    show(prompts, list?.join("\n") ?? "");
    prompts.disabled = list === null || isInline(text, "eval");
  };
  recipe.watch(refresh);
  for (const field of [prompts, ...inputs.map(({ input }) => input)]) field.addEventListener("blur", () => setTimeout(refresh));

  return {
    /** Shows the error of `section.key` at its field. Returns whether it has one. */
    markKey(wrong: string | null, message: string): boolean {
      for (const { section, key, input, refuse } of inputs) {
        if (`${section}.${key}` === wrong) refuse(message);
        else if (document.activeElement !== input && !input.hasAttribute("data-wrong")) refuse("");
      }
      const marked = inputs.some(({ section, key }) => `${section}.${key}` === wrong);
      if (marked) byId<HTMLDetailsElement>("settings-details").open = true;
      return marked;
    },
    disable(disabled: boolean) {
      free = !disabled;
      refresh();
      prompts.readOnly = disabled;
    },
  };
}
