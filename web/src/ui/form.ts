/** Form fields for the keys that most runs change. The form edits the recipe text. */

import { byId, el } from "./dom";
import { recipe } from "./state";
import { getValue, quoteList, readList, setValue, unsetValue } from "./toml";

interface Field {
  section: string;
  key: string;
  label: string;
  /** The default if the recipe does not set the key. */
  default: string;
  hint: string;
}

const FIELDS: Field[] = [
  { section: "lora", key: "rank", label: "Rank", default: "16", hint: "higher: more capacity, memory and time" },
  { section: "train", key: "learning_rate", label: "Learning rate", default: "1e-4", hint: "peak value; 4e-3 suits tiny" },
  { section: "train", key: "epochs", label: "Epochs", default: "3", hint: "passes over the samples" },
  { section: "train", key: "max_steps", label: "Maximum steps", default: "", hint: "empty: all steps of the epochs" },
  { section: "train", key: "batch_size", label: "Rows per batch", default: "1", hint: "more rows need more memory" },
  { section: "data", key: "max_seq_len", label: "Tokens per row", default: "2048", hint: "longer samples are an error" },
  { section: "data", key: "val_size", label: "Validation", default: "0.05", hint: "a number or a fraction of the samples" },
  { section: "eval", key: "steps", label: "Validate every", default: "0", hint: "steps; 0: only first and last" },
  { section: "output", key: "save_steps", label: "Save every", default: "50", hint: "steps; saved in this browser" },
  { section: "train", key: "seed", label: "Seed", default: "42", hint: "same seed, same result" },
];

/** Starts the form. `changed` is called with the new recipe text. */
export function form(changed: (text: string) => void) {
  const inputs = FIELDS.map((field) => {
    const id = `field-${field.key}-${field.section}`;
    const attributes = { id, inputmode: "decimal", autocomplete: "off", "aria-describedby": `${id}-hint` };
    const input = el("input", { ...attributes, placeholder: field.default });
    input.addEventListener("input", () => {
      const { section, key } = field;
      const value = input.value.trim();
      changed(value === "" ? unsetValue(recipe.get(), section, key) : setValue(recipe.get(), section, key, value));
    });
    const hint = el("small", { id: `${id}-hint` }, field.hint);
    byId("recipe-form").append(el("div", {}, el("label", { for: id }, field.label), input, hint));
    return { ...field, input };
  });

  const prompts = el("textarea", { id: "field-samples", rows: "3", "aria-describedby": "field-samples-hint" });
  const hint = el("small", { id: "field-samples-hint" }, "one per line; answered at every validation");
  const label = el("label", { for: "field-samples" }, "Prompts answered before and after");
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
  const refresh = () => {
    const text = recipe.get();
    for (const { section, key, input } of inputs) show(input, getValue(text, section, key) ?? "");
    const list = readList(getValue(text, "eval", "samples") ?? "[]");
    show(prompts, list?.join("\n") ?? "");
    prompts.disabled = list === null;
  };
  recipe.watch(refresh);
  for (const field of [prompts, ...inputs.map(({ input }) => input)]) field.addEventListener("blur", () => setTimeout(refresh));

  return {
    /** Marks only the field of `section.key` as invalid. */
    markKey(wrong: string | null) {
      for (const { section, key, input } of inputs) input.setAttribute("aria-invalid", String(`${section}.${key}` === wrong));
    },
    disable(disabled: boolean) {
      for (const { input } of inputs) input.disabled = disabled;
      prompts.readOnly = disabled;
    },
  };
}
