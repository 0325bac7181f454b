//! Llama 3's chat layout, for files without a template.

use crate::data::template::BuiltIn;
use crate::families::turns::{Turns, turns};

static TURNS: Turns = Turns {
    start: "<|begin_of_text|>",
    header: ("<|start_header_id|>", "<|end_header_id|>\n\n"),
    end: "<|eot_id|>",
    after: "",
    assistant: "assistant",
    system_in_question: false,
    trims: true,
    thought: None,
};

/// `<|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>`, behind `<|begin_of_text|>`.
pub static CHAT: BuiltIn = turns!(
    "llama",
    "Llama 3",
    &["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    TURNS
);
