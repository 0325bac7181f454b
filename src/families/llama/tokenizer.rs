//! Tokenizers of the models with Llama's architecture: byte-level merges since Llama 3, SentencePiece before.

use super::reply;
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

/// The tokenizers of Llama 2 and 3, Mistral, SmolLM and others.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "since Llama 3"), ("llama", Kind::Scores, "SentencePiece")],
    pre: "",
    bos: "",
    end_of_text: &["<｜end▁of▁sentence｜>", "<|end_of_text|>", "<|endoftext|>", "</s>"],
    required: &[],
    turn_end: &["<|eot_id|>", "<|im_end|>", "<|end|>"],
    control: &["<|start_header_id|>", "<|end_header_id|>", "<|im_start|>"],
    end_names: END_NAMES,
    reply: &reply::SYNTAX,
};
