//! Gemma 3's tokenizer: SentencePiece by scores.

use super::reply;
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

/// The tokenizer of Gemma 3 and the models made from it.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("llama", Kind::Scores, "SentencePiece")],
    pre: "",
    bos: "<bos>",
    end_of_text: &["<eos>"],
    required: &[],
    turn_end: &["<end_of_turn>"],
    control: &["<start_of_turn>", "<eos>"],
    end_names: END_NAMES,
    reply: &reply::SYNTAX,
};
