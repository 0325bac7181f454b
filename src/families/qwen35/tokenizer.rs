//! The tokenizer of Qwen 3.5: that of Qwen 3 with other functions in replies. The pre-tokenizer, which keeps combining marks with
//! their letters, is the file's (`qwen35`).

use super::reply;
use crate::data::tokenizer::TokenizerSpec;
use crate::families::qwen3;

/// The tokenizer of Qwen 3.5, 3.6 and 3.8.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec { reply: &reply::SYNTAX, ..qwen3::TOKENIZER };
