//! Marks of reasoning and function calls in replies of models with Llama's architecture.
//!
//! Llama 3 calls a function by `{"name": …, "parameters": {…}}` alone or behind `<|python_tag|>`, Mistral behind
//! `[TOOL_CALLS]`, and Hermes as Qwen does. The DeepSeek R1 distillations reason in `<think>`.

use crate::data::template::ReplySyntax;
use crate::families::calls;

pub(in crate::families) static SYNTAX: ReplySyntax = ReplySyntax {
    thought: ("<think>", "</think>"),
    thought_name: "\n",
    calls: &[("<|python_tag|>", ""), ("[TOOL_CALLS]", ""), ("<tool_call>", "</tool_call>")],
    headers: &[],
    bare_call: "{\"name\":",
    spaced: true,
    parse_calls: calls::parse,
};
