//! The tokenizer of gpt-oss, `o200k_harmony`: byte-level merges.

use super::reply;
use crate::data::tokenizer::{Kind, TokenizerSpec};

/// The tokenizer of gpt-oss. `<|end|>` ends a message and not a reply, which may have several.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp")],
    pre: "",
    bos: "",
    end_of_text: &["<|endoftext|>"],
    required: &[],
    turn_end: &["<|return|>"],
    control: &[
        "<|start|>",
        "<|end|>",
        "<|message|>",
        "<|channel|>",
        "<|constrain|>",
        "<|call|>",
        "<|endoftext|>",
    ],
    end_names: &["<|return|>", "<|call|>", "<|endoftext|>"],
    reply: &reply::SYNTAX,
};
