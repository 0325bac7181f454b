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
    /// `tokenizer.ggml.token_type`, `[V]`; empty if absent. Ollama marks byte tokens NORMAL, so byte tokens are recognized by
    /// their spelling.
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
        Ok(TokenizerData {
            model: gguf.require::<&str>("tokenizer.ggml.model")?.to_owned(),
            pre: gguf.get::<&str>("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: gguf.require::<&[String]>("tokenizer.ggml.tokens")?.to_vec(),
            token_types: gguf.get("tokenizer.ggml.token_type")?.unwrap_or_default(),
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
    /// A list that is shorter than the vocabulary.
    #[error(
        "tokenizer.ggml.{list} has {found} entries for {tokens} tokens; use another conversion of the model"
    )]
    Length {
        /// The list.
        list: &'static str,
        /// Its length.
        found: usize,
        /// Number of tokens.
        tokens: usize,
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
        (Kind::ByteLevel, Some(pre)) if PreTokenizer::named(pre).is_none() => {
            return unsupported("tokenizer.ggml.pre", format!("{pre:?}"), PreTokenizer::expected_for(pre));
        }
        _ => {}
    }
    if *kind != Kind::Scores && data.merges.is_empty() {
        return unsupported("tokenizer.ggml.merges", "\"\"".into(), "a list of merges".into());
    }
    let tokens = data.tokens.len();
    // Only tokenizers by scores read them.
    let scores = if *kind == Kind::Scores { data.scores.len() } else { tokens };
    let lists = [("token_type", data.token_types.len()), ("scores", scores)];
    if let Some((list, found)) = lists.into_iter().find(|(_, found)| (1..tokens).contains(found)) {
        return Err(TokenizerError::Length { list, found, tokens });
    }
    let own = !spec.bos.is_empty() && data.tokens.iter().any(|token| token == spec.bos);
    match data.bos {
        None if data.add_bos == Some(true) && !own => {
            unsupported("tokenizer.ggml.bos_token_id", "missing".into(), "an id".into())
        }
        _ => Ok(*kind),
    }
}

/// Leaves out ids outside the vocabulary and the ends of lists that are longer than it, as llama.cpp does, and makes all tokens
/// NORMAL if the file has no types. Returns notices of all this.
pub(super) fn mend(data: &mut TokenizerData, spec: &TokenizerSpec) -> Vec<String> {
    let (tokens, mut notices) = (data.tokens.len(), Vec::new());
    let mut longer = |list: &str, found: usize| {
        if found > tokens {
            notices.push(format!(
                "tokenizer.ggml.{list} has {found} entries for {tokens} tokens; the last {} are left out, as in llama.cpp",
                found - tokens
            ));
        }
    };
    longer("token_type", data.token_types.len());
    longer("scores", data.scores.len());
    data.token_types.truncate(tokens);
    data.scores.truncate(tokens);
    if data.token_types.is_empty() {
        notices.push(
            "tokenizer.ggml.token_type is missing, so only the tokens that the file or the family names as starts and ends of turns and \
             texts are control tokens; a newer conversion of the model may have more"
                .into(),
        );
        data.token_types = vec![NORMAL; tokens];
    }
    let mut known = |key: &str, id: u32| {
        let inside = (id as usize) < tokens;
        if !inside {
            notices.push(format!(
                "tokenizer.ggml.{key} is {id}, but the vocabulary has {tokens} tokens; it is left out, as in llama.cpp"
            ));
        }
        inside
    };
    data.eos.retain(|id| known("eos_token_id", *id));
    data.bos = data.bos.filter(|id| known("bos_token_id", *id));
    for id in [&mut data.eos_token, &mut data.eot, &mut data.unknown] {
        *id = id.filter(|id| (*id as usize) < tokens);
    }
    notices.extend(begin(data, spec));
    notices
}

/// Finds the token that starts a sequence if the file names none, and the family has one. The notice of that, or of another token.
fn begin(data: &mut TokenizerData, spec: &TokenizerSpec) -> Option<String> {
    let usual = spec.bos;
    let own = data.tokens.iter().position(|token| token == usual).filter(|_| !usual.is_empty());
    let Some(bos) = data.bos else {
        data.bos = own.map(|id| id as u32);
        return own.map(|_| {
            format!("tokenizer.ggml.bos_token_id is missing; sequences start with {usual}, as in models of this family")
        });
    };
    let found = &data.tokens[bos as usize];
    (!usual.is_empty() && found != usual).then(|| {
        format!(
            "tokenizer.ggml.bos_token_id is {found:?}, where models of this family have {usual}; sequences start with {found:?}, as in \
             llama.cpp"
        )
    })
}

/// Properties of the vocabulary that a user should know. `left_out`: number of merges that it cannot use.
pub(super) fn notices(
    data: &TokenizerData,
    spec: &TokenizerSpec,
    kind: Kind,
    left_out: usize,
) -> Vec<String> {
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
    if let (Kind::Lines, Some(pre)) = (kind, data.pre.as_deref().filter(|pre| *pre != spec.pre)) {
        notices.push(format!(
            "tokenizer.ggml.pre is {pre:?}, but tokenizer.ggml.model alone says how texts are split, as in llama.cpp"
        ));
    }
    if kind != Kind::Scores && data.add_space_prefix == Some(true) {
        notices.push(
            "tokenizer.ggml.add_space_prefix is true, but this kind of tokenizer puts no space in front of a text, as in llama.cpp"
                .into(),
        );
    }
    let broken = data.tokens.iter().filter(|token| token.contains('\u{FFFD}')).count();
    if broken > 1 {
        notices.push(format!("{broken} tokens of the vocabulary are not UTF-8; no text becomes one of them"));
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
