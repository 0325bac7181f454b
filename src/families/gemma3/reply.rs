//! Marks of function calls in replies of Gemma 3: FunctionGemma writes
//! `<start_function_call>call:NAME{key:<escape>text<escape>,number:1}<end_function_call>`.

use crate::data::template::ReplySyntax;
use crate::families::gemma4;

pub(super) static SYNTAX: ReplySyntax = ReplySyntax {
    // Gemma 3 does not reason; distillations on it use these marks.
    thought: ("<think>", "</think>"),
    thought_name: "\n",
    calls: &[("<start_function_call>", "<end_function_call>")],
    headers: &[],
    bare_call: "",
    spaced: true,
    parse_calls: |text, _| gemma4::call(text, "<escape>").into_iter().collect(),
};
