//! Qwen's chat layout for files without a template: ChatML.

use crate::data::template::BuiltIn;
use crate::families::turns::{CHATML, CHATML_TOKENS, turns};

/// ChatML. Reasoning stands in `<think>` in front of the answer to the last question.
pub static CHAT: BuiltIn = turns!("qwen3", "ChatML", CHATML_TOKENS, CHATML);

/// The layout of the mixtures of experts.
pub static CHAT_MOE: BuiltIn = turns!("qwen3moe", "ChatML", CHATML_TOKENS, CHATML);
