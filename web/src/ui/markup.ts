/** Samples as people read them: turns without the tokens that a chat template puts around them. */

import type { SamplePiece } from "../api/index";
import { el } from "./dom";

/** Tokens of chat templates: `<bos>`, `<|turn>`, `<turn|>`, `<|im_start|>`, `</s>`, `[INST]`. Other angle brackets are the user's. */
const TOKEN = /(<\|[^<>\s]{1,40}\|?>|<[^<>\s|]{1,40}\|>|<\/?(?:bos|eos|pad|unk|s|start_of_turn|end_of_turn|end_of_utterance)>|\[\/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|AVAILABLE_TOOLS)\])/;
const ROLE = /^\s*(user|model|assistant|system|developer|tool)(?=\s|$)/;

/** A stretch of text, and whether training teaches it. */
export interface Turn {
  text: string;
  loss: boolean;
}

/** The turns in the pieces of a sample. */
export function turns(pieces: SamplePiece[]): Turn[] {
  const found: Turn[] = [];
  let begins = false; // a role stands only after a token
  for (const { text, loss } of pieces) {
    for (const part of text.split(TOKEN)) {
      if (TOKEN.test(part)) {
        begins = true;
        continue;
      }
      const spoken = begins ? part.replace(ROLE, "") : part;
      const last = found.at(-1);
      if (spoken.trim() === "") continue;
      if (last && !begins && last.loss === loss) last.text += spoken;
      else found.push({ text: spoken, loss });
      begins = false;
    }
  }
  return found.map(({ text, loss }) => ({ text: text.trim(), loss }));
}

/** The cell of a sample: its turns, or its exact tokens. */
export function sampleText(pieces: SamplePiece[], exact: boolean): (HTMLElement | string)[] {
  if (exact) return pieces.map((piece) => (piece.loss ? el("mark", {}, piece.text) : piece.text));
  return turns(pieces).map(({ text, loss }) => el("span", { class: "turn" }, loss ? el("mark", {}, text) : text));
}
