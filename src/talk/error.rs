//! Why no reply was generated.

use crate::data::tokenizer::Tokenizer;
use crate::gpu::GpuError;

/// Why no reply was generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// An empty prompt.
    #[error("the prompt has no tokens; expected at least one")]
    Empty,
    /// A prompt longer than the context.
    #[error(
        "the prompt has {found} tokens, but the context holds {context}; shorten it, or raise the context"
    )]
    TooLong {
        /// Number of tokens in the prompt.
        found: usize,
        /// Maximum number of tokens.
        context: usize,
    },
    /// A token id outside the vocabulary.
    #[error("the prompt has token {id}, but the vocabulary ends at {last}")]
    Token {
        /// The id.
        id: u32,
        /// The largest valid id.
        last: u32,
    },
    /// Logits that are not finite.
    #[error(
        "the logits after {tokens} tokens are not finite: the adapter, its weight or the base is damaged; try without \
         the adapter"
    )]
    NotFinite {
        /// Number of tokens before.
        tokens: usize,
    },
}

/// Checks a prompt.
pub(super) fn check(prompt: &[u32], context: usize, tokenizer: &Tokenizer) -> Result<(), GenerateError> {
    let last = tokenizer.vocab_size() as u32 - 1;
    match prompt {
        [] => return Err(GenerateError::Empty),
        _ if prompt.len() > context => {
            return Err(GenerateError::TooLong { found: prompt.len(), context });
        }
        _ => {}
    }
    match prompt.iter().find(|&&id| id > last) {
        Some(&id) => Err(GenerateError::Token { id, last }),
        None => Ok(()),
    }
}
