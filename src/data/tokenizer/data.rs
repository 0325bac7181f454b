//! Inputs of a tokenizer: the metadata of a GGUF file, and its family's constants.

use sha2::{Digest, Sha256};

use super::pre_tokenizer::PreTokenizer;
use super::{NORMAL, UNKNOWN};
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
    /// `tokenizer.ggml.token_type`, `[V]`; all NORMAL if absent. Ollama marks byte tokens NORMAL, so byte tokens are recognized
    /// by their spelling.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, best first: two tokens separated by a space.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.scores`, `[V]`; empty if absent.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.bos_token_id`, if present.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`, if present.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.eos_token_id` and `tokenizer.ggml.eos_token_ids`, and the ids that end a turn or a message
    /// (`eot_token_id`, `eom_token_id`).
    pub eos: Vec<u32>,
    /// `tokenizer.ggml.eos_token_id`, if present.
    pub eos_token: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`, if present.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`, if present.
    pub unknown: Option<u32>,
    /// `tokenizer.ggml.add_space_prefix`, if present.
    pub add_space_prefix: Option<bool>,
}

impl TokenizerData {
    /// Reads the metadata. Fails if a key is missing or has the wrong type.
    pub fn from_gguf(gguf: &Gguf) -> Result<TokenizerData, Error> {
        let mut eos: Vec<u32> = gguf.get("tokenizer.ggml.eos_token_ids")?.unwrap_or_default();
        let [last, eot, eom] = ["eos", "eot", "eom"].map(|name| format!("tokenizer.ggml.{name}_token_id"));
        let (last, eot, eom) = (gguf.get::<u32>(&last)?, gguf.get(&eot)?, gguf.get(&eom)?);
        eos.extend([last, eot, eom].into_iter().flatten());
        let tokens = gguf.require::<&[String]>("tokenizer.ggml.tokens")?.to_vec();
        let types = gguf.get("tokenizer.ggml.token_type")?;
        Ok(TokenizerData {
            model: gguf.require::<&str>("tokenizer.ggml.model")?.to_owned(),
            pre: gguf.get::<&str>("tokenizer.ggml.pre")?.map(str::to_owned),
            token_types: types.unwrap_or_else(|| vec![NORMAL; tokens.len()]),
            tokens,
            merges: gguf.get::<&[String]>("tokenizer.ggml.merges")?.unwrap_or_default().to_vec(),
            scores: gguf.get("tokenizer.ggml.scores")?.unwrap_or_default(),
            bos: gguf.get("tokenizer.ggml.bos_token_id")?,
            add_bos: gguf.get("tokenizer.ggml.add_bos_token")?,
            eos,
            eos_token: last,
            eot,
            unknown: gguf.get("tokenizer.ggml.unknown_token_id")?,
            add_space_prefix: gguf.get("tokenizer.ggml.add_space_prefix")?,
        })
    }
}

/// The rule by which a tokenizer merges symbols into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Byte-pair merges of characters within lines, with byte fallback. A space is `▁`. (Gemma 4.)
    Lines,
    /// Byte-pair merges of bytes within the words of a pre-tokenizer. (GPT-2, Llama 3, Qwen.)
    ByteLevel,
    /// SentencePiece: the pair whose token has the highest score merges first, with byte fallback. A space is `▁`. (Llama 2,
    /// Gemma 3.)
    Scores,
}

/// Constants of a family's tokenizers.
#[derive(Debug)]
pub struct TokenizerSpec {
    /// Accepted values of `tokenizer.ggml.model`: the kind of tokenizer, and the programs that write the value.
    pub models: &'static [(&'static str, Kind, &'static str)],
    /// Value of `tokenizer.ggml.pre` for [`Kind::Lines`], if the file has one.
    pub pre: &'static str,
    /// Spelling of the token that starts every sequence; empty if the file alone decides.
    pub bos: &'static str,
    /// Spellings of the token that ends a text, the first that the vocabulary has; without one, the token that ends a turn.
    pub end_of_text: &'static [&'static str],
    /// Spellings of the tokens that the model requires: those around the turns of its only chat layout.
    pub required: &'static [&'static str],
    /// Spellings of the token that ends a turn of a conversation, the first that the vocabulary has; without one, the file's
    /// `eot_token_id` or `eos_token_id`.
    pub turn_end: &'static [&'static str],
    /// Spellings of further tokens that are control tokens, whatever type the file gives them.
    pub control: &'static [&'static str],
    /// Spellings of further tokens that end generation, if the vocabulary has them.
    pub end_names: &'static [&'static str],
    /// Marks of reasoning and function calls in a reply.
    pub reply: &'static ReplySyntax,
}

/// The spellings that llama.cpp takes as the end of generation in any vocabulary, as far as the families here have them.
/// (src/llama-vocab.cpp, `special_eog_ids`.)
pub const END_NAMES: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "<|end_of_text|>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "<|fim_pad|>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<reponame>",
    "<|file_sep|>",
];

/// Why a tokenizer could not be built.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum TokenizerError {
    /// The tokenizer is not of the family's kind.
    #[error("tokenizer: {key} is {found}, expected {expected}; use another conversion of the model")]
    Unsupported {
        /// GGUF key.
        key: &'static str,
        /// Its value.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// Lists of different lengths.
    #[error("tokenizer.ggml.{list} has {found} entries for {tokens} tokens; the file is damaged")]
    Length {
        /// The list.
        list: &'static str,
        /// Its length.
        found: usize,
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
    /// The merge list as a whole is invalid.
    #[error("tokenizer.ggml.merges does not fit the vocabulary: {0}; use another conversion of the model")]
    Merges(String),
    /// A token that the family requires is missing.
    #[error("the vocabulary has no token {0:?}; expected the vocabulary of the instruction-tuned model")]
    Missing(String),
    /// No byte has a token.
    #[error(
        "no token of the vocabulary is a byte as GPT-2 spells it, expected up to 256 of them; use another conversion of the model"
    )]
    NoBytes,
    /// No token can end a turn.
    #[error(
        "the vocabulary has no token that ends a turn: tokenizer.ggml.eos_token_id is missing; use another conversion of the model"
    )]
    NoEnd,
}

/// Checks that the metadata fit the family, and returns the kind of tokenizer.
pub(super) fn check(data: &TokenizerData, spec: &TokenizerSpec) -> Result<Kind, TokenizerError> {
    let unsupported =
        |key, found: String, expected: String| Err(TokenizerError::Unsupported { key, found, expected });
    let Some((_, kind, _)) = spec.models.iter().find(|(model, ..)| *model == data.model) else {
        let expected: Vec<String> =
            spec.models.iter().map(|(model, _, writer)| format!("{model:?} ({writer})")).collect();
        return unsupported("tokenizer.ggml.model", format!("{:?}", data.model), expected.join(" or "));
    };
    match (kind, data.pre.as_deref()) {
        (Kind::Lines, Some(pre)) if pre != spec.pre => {
            let expected = format!("{:?} or no such key", spec.pre);
            return unsupported("tokenizer.ggml.pre", format!("{pre:?}"), expected);
        }
        (Kind::ByteLevel, Some(pre)) if PreTokenizer::named(pre).is_none() => {
            let expected = format!("one of {}", PreTokenizer::names().join(", "));
            return unsupported("tokenizer.ggml.pre", format!("{pre:?}"), expected);
        }
        _ => {}
    }
    if *kind != Kind::Scores && data.merges.is_empty() {
        return unsupported("tokenizer.ggml.merges", "\"\"".into(), "a list of merges".into());
    }
    lengths(data, *kind)?;
    let Some(bos) = data.bos else {
        return match data.add_bos {
            Some(true) => unsupported("tokenizer.ggml.bos_token_id", "missing".into(), "an id".into()),
            _ if !spec.bos.is_empty() => unsupported(
                "tokenizer.ggml.bos_token_id",
                "missing".into(),
                format!("the token {}", spec.bos),
            ),
            _ => Ok(*kind),
        };
    };
    match &data.tokens[bos as usize] {
        found if spec.bos.is_empty() || found == spec.bos => Ok(*kind),
        found => unsupported(
            "tokenizer.ggml.bos_token_id",
            format!("{found:?}"),
            format!("the token {}", spec.bos),
        ),
    }
}

/// Checks that every list fits the vocabulary, and every id.
fn lengths(data: &TokenizerData, kind: Kind) -> Result<(), TokenizerError> {
    let tokens = data.tokens.len();
    let scores = if kind == Kind::Scores && !data.scores.is_empty() { data.scores.len() } else { tokens };
    for (list, found) in [("token_type", data.token_types.len()), ("scores", scores)] {
        if found != tokens {
            return Err(TokenizerError::Length { list, found, tokens });
        }
    }
    let eos = data.eos.iter().map(|&id| ("tokenizer.ggml.eos_token_id", id));
    let bos = data.bos.map(|id| ("tokenizer.ggml.bos_token_id", id));
    match eos.chain(bos).find(|(_, id)| *id as usize >= tokens) {
        Some((key, id)) => Err(TokenizerError::Id { key, id, vocab: tokens }),
        None => Ok(()),
    }
}

/// Properties of the vocabulary that a user should know. `left_out`: number of merges that it cannot use.
pub(super) fn notices(data: &TokenizerData, kind: Kind, left_out: usize) -> Vec<String> {
    let mut notices = Vec::new();
    if left_out > 0 {
        notices.push(format!(
            "{left_out} of {} tokenizer.ggml.merges are not two tokens that join to a third, and are left out",
            data.merges.len()
        ));
    }
    if kind == Kind::ByteLevel && data.pre.is_none() {
        notices.push(
            "tokenizer.ggml.pre is missing, so texts are split as by \"default\", as in llama.cpp; a newer conversion of the model may \
             have other tokens"
                .into(),
        );
    }
    if kind == Kind::Scores && data.scores.is_empty() {
        notices.push(
            "tokenizer.ggml.scores is missing, so texts are merged from the left, as in llama.cpp".into(),
        );
    }
    notices
}

/// The token of characters that no other token spells.
pub(super) fn unknown(data: &TokenizerData) -> Option<u32> {
    let named = data.unknown.filter(|id| (*id as usize) < data.tokens.len());
    named.or_else(|| data.token_types.iter().position(|kind| *kind == UNKNOWN).map(|id| id as u32))
}

/// SHA-256 of everything that determines the ids of a text.
pub(super) fn digest(data: &TokenizerData, kind: Kind) -> [u8; 32] {
    let mut hash = Sha256::new();
    for list in [&data.tokens, &data.merges] {
        hash.update((list.len() as u64).to_le_bytes());
        for text in list {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
    }
    data.token_types.iter().for_each(|kind| hash.update(kind.to_le_bytes()));
    data.eos.iter().chain(&data.bos).for_each(|id| hash.update(id.to_le_bytes()));
    if kind != Kind::Lines {
        data.scores.iter().for_each(|score| hash.update(score.to_le_bytes()));
        hash.update(format!("{kind:?} {:?} {:?} {:?}", data.pre, data.add_bos, data.add_space_prefix));
    }
    hash.finalize().into()
}
