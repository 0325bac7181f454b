/** Samples without the tokens of chat templates. */

import { expect, test } from "@playwright/test";
import { turns } from "../../src/ui/markup";

const said = (...pieces: [string, boolean][]) => turns(pieces.map(([text, loss]) => ({ text, loss }))).map(({ text, loss }) => (loss ? `[${text}]` : text));

test("turns of several templates are read without their tokens, and what users write in angle brackets stays", () => {
  expect(said(["<bos><|turn>user\nHi<turn|>\n<|turn>model\n", false], ["Ahoy!<turn|>", true], ["\n", false])).toEqual(["Hi", "[Ahoy!]"]);
  expect(said(["<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nuser of <b>x</b><|im_end|>\n<|im_start|>assistant\n", false], ["1 < 2<|im_end|>", true])).toEqual(["Be brief.", "user of <b>x</b>", "[1 < 2]"]);
  expect(said(["<s>[INST] Hi [/INST]", false], ["Ho</s>", true])).toEqual(["Hi", "[Ho]"]);
  expect(said(["<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", false], ["Ho", true])).toEqual(["Hi", "[Ho]"]);
  expect(said(["user manuals are long.", true])).toEqual(["[user manuals are long.]"]);
});
