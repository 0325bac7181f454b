//! Gemma's chat layout up to Gemma 3, for files without a template.

use crate::data::template::BuiltIn;
use crate::families::turns::{Turns, turns};

static TURNS: Turns = Turns {
    start: "<bos>",
    header: ("<start_of_turn>", "\n"),
    end: "<end_of_turn>",
    after: "\n",
    assistant: "model",
    system_in_question: true,
    trims: true,
    thought: None,
};

/// `<start_of_turn>ROLE\nCONTENT<end_of_turn>\n` behind `<bos>`. The system message stands in front of the first question.
pub static CHAT: BuiltIn = turns!("gemma3", "Gemma 3", &["<start_of_turn>", "<end_of_turn>"], TURNS);
