//! Qwen's chat layout for files without a template: ChatML.

use crate::data::template::BuiltIn;
use crate::families::turns::{CHATML, CHATML_TOKENS, turns};

/// ChatML. Reasoning stands in `<think>` in front of the answer to the last question.
pub static CHAT: BuiltIn = turns!("qwen2", "ChatML", CHATML_TOKENS, CHATML);
