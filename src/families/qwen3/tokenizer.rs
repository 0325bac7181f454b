//! Qwen's tokenizer: byte-level merges. A sequence starts with its text.

use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};
use crate::families::calls;

/// The tokenizer of Qwen 2, 2.5 and 3, and of the DeepSeek R1 distillations on them.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp and Ollama")],
    pre: "",
    bos: "",
    end_of_text: &["<｜end▁of▁sentence｜>", "<|endoftext|>"],
    required: &[],
    turn_end: &["<|im_end|>"],
    control: &["<|im_start|>"],
    end_names: END_NAMES,
    reply: &calls::QWEN,
};
