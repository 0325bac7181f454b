//! Inputs of a tokenizer: the metadata of a GGUF file, and its family's constants.

use sha2::{Digest, Sha256};

use crate::base::{Error, Gguf};
use crate::data::template::ReplySyntax;

/// The tokenizer metadata of a GGUF file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenizerData {
    /// `tokenizer.ggml.model`.
    pub model: String,
    /// `tokenizer.ggml.pre`, if present.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, `[V]`.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`, `[V]`. Ollama marks byte tokens NORMAL, so byte tokens are recognized by their spelling.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, best first: two tokens separated by a space.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: u32,
    /// `tokenizer.ggml.eos_token_id` and `tokenizer.ggml.eos_token_ids`.
    pub eos: Vec<u32>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: bool,
}

impl TokenizerData {
    /// Reads the metadata. Fails if a key is missing or has the wrong type.
    pub fn from_gguf(gguf: &Gguf) -> Result<TokenizerData, Error> {
        let mut eos: Vec<u32> = gguf.get("tokenizer.ggml.eos_token_ids")?.unwrap_or_default();
        eos.extend(gguf.get::<u32>("tokenizer.ggml.eos_token_id")?);
        Ok(TokenizerData {
            model: gguf.require::<&str>("tokenizer.ggml.model")?.to_owned(),
            pre: gguf.get::<&str>("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: gguf.require::<&[String]>("tokenizer.ggml.tokens")?.to_vec(),
            token_types: gguf.require("tokenizer.ggml.token_type")?,
            merges: gguf.get::<&[String]>("tokenizer.ggml.merges")?.unwrap_or_default().to_vec(),
            bos: gguf.require("tokenizer.ggml.bos_token_id")?,
            eos,
            add_space_prefix: gguf.get("tokenizer.ggml.add_space_prefix")?.unwrap_or(false),
        })
    }
}

/// Constants of a family's tokenizers: byte-pair merges over characters with byte fallback.
#[derive(Debug)]
pub struct TokenizerSpec {
    /// Accepted values of `tokenizer.ggml.model`, each with the program that writes it.
    pub models: &'static [(&'static str, &'static str)],
    /// Value of `tokenizer.ggml.pre`, if the file has one.
    pub pre: &'static str,
    /// Spelling of the token that starts every sequence.
    pub bos: &'static str,
    /// Spelling of the token that ends a text.
    pub end_of_text: &'static str,
    /// Spelling of the token that starts a turn of a conversation.
    pub turn_start: &'static str,
    /// Spelling of the token that ends a turn of a conversation.
    pub turn_end: &'static str,
    /// Spellings of further tokens that end generation, if the vocabulary has them.
    pub end_names: &'static [&'static str],
    /// How a reply marks reasoning and function calls.
    pub reply: &'static ReplySyntax,
}

/// Why a tokenizer could not be built.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum TokenizerError {
    /// The tokenizer is not of the family's kind.
    #[error("tokenizer: {key} is {found:?}, expected {expected}; use another conversion of the model")]
    Unsupported {
        /// GGUF key.
        key: &'static str,
        /// Its value.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// Lists of different lengths.
    #[error("tokenizer.ggml.token_type has {types} entries for {tokens} tokens; the file is damaged")]
    TokenTypes {
        /// Number of types.
        types: usize,
        /// Number of tokens.
        tokens: usize,
    },
    /// A special token's id that is outside the vocabulary.
    #[error("{key} is {id}, but the vocabulary has {vocab} tokens; the file is damaged")]
    Id {
        /// GGUF key.
        key: &'static str,
        /// Its value.
        id: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// A merge that does not consist of two tokens, or whose result is not a token.
    #[error(
        "tokenizer.ggml.merges[{index}] is {found:?}, expected two tokens of the vocabulary that join to a third; \
         the file is damaged"
    )]
    Merge {
        /// Position in the list.
        index: usize,
        /// The merge as written.
        found: String,
    },
    /// The merge list as a whole is invalid.
    #[error("tokenizer.ggml.merges does not fit the vocabulary: {0}")]
    Merges(String),
    /// A token that the family requires is missing.
    #[error("the vocabulary has no token {0:?}; expected the vocabulary of the instruction-tuned model")]
    Missing(String),
}

/// Checks that the metadata fit the family.
pub(super) fn check(data: &TokenizerData, spec: &TokenizerSpec) -> Result<(), TokenizerError> {
    let unsupported = |key, found: &str, expected: String| {
        Err(TokenizerError::Unsupported { key, found: found.to_owned(), expected })
    };
    if !spec.models.iter().any(|(model, _)| *model == data.model) {
        let expected: Vec<String> =
            spec.models.iter().map(|(model, writer)| format!("{model:?} ({writer})")).collect();
        return unsupported("tokenizer.ggml.model", &data.model, expected.join(" or "));
    }
    if let Some(pre) = data.pre.as_deref().filter(|pre| *pre != spec.pre) {
        return unsupported("tokenizer.ggml.pre", pre, format!("{:?} or no such key", spec.pre));
    }
    if data.merges.is_empty() {
        return unsupported("tokenizer.ggml.merges", "", "a list of merges".into());
    }
    if data.add_space_prefix {
        return unsupported("tokenizer.ggml.add_space_prefix", "true", "false".into());
    }
    let vocab = data.tokens.len();
    if data.token_types.len() != vocab {
        return Err(TokenizerError::TokenTypes { types: data.token_types.len(), tokens: vocab });
    }
    let eos = data.eos.iter().map(|&id| ("tokenizer.ggml.eos_token_id", id));
    let bos = ("tokenizer.ggml.bos_token_id", data.bos);
    if let Some((key, id)) = eos.chain([bos]).find(|(_, id)| *id as usize >= vocab) {
        return Err(TokenizerError::Id { key, id, vocab });
    }
    match &data.tokens[data.bos as usize] {
        found if found == spec.bos => Ok(()),
        found => unsupported("tokenizer.ggml.bos_token_id", found, format!("the token {}", spec.bos)),
    }
}

/// SHA-256 of everything that determines the ids of a text.
pub(super) fn digest(data: &TokenizerData) -> [u8; 32] {
    let mut hash = Sha256::new();
    for list in [&data.tokens, &data.merges] {
        hash.update((list.len() as u64).to_le_bytes());
        for text in list {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
    }
    data.token_types.iter().for_each(|kind| hash.update(kind.to_le_bytes()));
    data.eos.iter().chain([&data.bos]).for_each(|id| hash.update(id.to_le_bytes()));
    hash.finalize().into()
}
