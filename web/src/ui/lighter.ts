/** Recipes that need less memory. */

import { getValue, setValue } from "./toml";

/** Whether an error is about memory. */
export const isShortage = (message: string) => /out of memory|memory_limit|too large for|exceeds? .*(limit|memory)|allocation/i.test(message);

/** The recipe with one saving more, and the saving in words; null if there is none left. `longest`: tokens of the longest sample. */
export function lighter(text: string, longest: number): { recipe: string; saving: string } | null {
  const number = (section: string, key: string, usual: number) => Number(getValue(text, section, key) ?? usual);
  const rows = number("train", "batch_size", 1);
  const steps = number("train", "gradient_accumulation_steps", 1);
  if (rows > 1) {
    const one = setValue(text, "train", "batch_size", "1");
    return { recipe: setValue(one, "train", "gradient_accumulation_steps", String(rows * steps)), saving: "one row at a time" };
  }
  if (getValue(text, "train", "gradient_checkpointing") !== "true") {
    return { recipe: setValue(text, "train", "gradient_checkpointing", "true"), saving: "activations computed twice" };
  }
  const row = number("data", "max_seq_len", 2048);
  const completion = getValue(text, "train", "objective") === '"grpo"' ? number("grpo", "max_completion_length", 512) : 0;
  const half = Math.max(Math.ceil(row / 2), longest + completion);
  if (half >= row) return null;
  const shorter = setValue(text, "data", "max_seq_len", String(half));
  const same = setValue(shorter, "train", "gradient_accumulation_steps", String(Math.max(1, Math.round((steps * row) / half))));
  return { recipe: same, saving: `rows of ${half} tokens` };
}
