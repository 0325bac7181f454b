//! Tokenizers, built from the metadata of a GGUF file.
//!
//! A family's constants say which of the three kinds its files have ([`Kind`]): `lines`, `byte_level` or `scores`. Decoding
//! restores the encoded text, with two exceptions: where a space is `▁`, a literal `▁` becomes a space, because the vocabulary
//! cannot distinguish the two; and where the published tokenizer composes characters (NFC), they stay composed.

mod byte_level;
mod data;
mod encode;
mod lines;
mod pre_tokenizer;
mod scores;
mod specials;
mod stream;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};

pub use data::{END_NAMES, Kind, TokenizerData, TokenizerError, TokenizerSpec};
pub use stream::DecodeStream;

use byte_level::{ByteLevel, bytes_of};
use data::{check, digest};
use lines::Lines;
use pre_tokenizer::PreTokenizer;
use scores::Scores;
use specials::Specials;

/// GGUF's token type for ordinary tokens (`LLAMA_TOKEN_TYPE_NORMAL`).
const NORMAL: i32 = 1;
/// GGUF's token type for the unknown token (`LLAMA_TOKEN_TYPE_UNKNOWN`).
const UNKNOWN: i32 = 2;
/// GGUF's token type for control tokens (`LLAMA_TOKEN_TYPE_CONTROL`).
const CONTROL: i32 = 3;
/// GGUF's token type for tokens added by the user (`LLAMA_TOKEN_TYPE_USER_DEFINED`), such as channel and tool tokens.
const USER_DEFINED: i32 = 4;
/// GGUF's token type for byte tokens (`LLAMA_TOKEN_TYPE_BYTE`).
const BYTE: i32 = 6;
/// Number of words in each thread's cache.
const CACHED_WORDS: usize = 1 << 16;

/// Whether the text of a control token becomes that token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// The text becomes the token: for the template's own text.
    Parse,
    /// The text stays text: for text that a user wrote.
    Plain,
}

/// Merges the text between control tokens.
enum Merger {
    Lines(Box<Lines>),
    ByteLevel(Box<ByteLevel>),
    Scores(Box<Scores>),
}

/// Converts text to token ids and back.
pub struct Tokenizer {
    merger: Merger,
    tokens: Vec<String>,
    ids: HashMap<String, u32>,
    /// Tokens that a template's text contains: control tokens and added tokens.
    specials: Specials,
    /// Tokens that a message must not contain.
    control: Specials,
    /// Tokens that are parsed in every text.
    added: Specials,
    /// Whether the token is one of `specials`, `[V]`.
    is_special: Vec<bool>,
    spec: &'static TokenizerSpec,
    /// The file's first token of a sequence.
    bos: Option<u32>,
    adds_bos: bool,
    /// The file's `eos_token_id`.
    eos_token: Option<u32>,
    turn_end: u32,
    eos: Vec<u32>,
    digest: [u8; 32],
    notices: Vec<String>,
}

impl Tokenizer {
    /// Builds the tokenizer. Fails if the data do not fit the family.
    pub fn new(mut data: TokenizerData, spec: &'static TokenizerSpec) -> Result<Tokenizer, TokenizerError> {
        // Longer than 60 lines: each table of the tokenizer follows from those before it.
        let kind = check(&data, spec)?;
        let mut notices = data::mend(&mut data, spec);
        let pre = PreTokenizer::named(data.pre.as_deref().unwrap_or("default"));
        let merger = || match kind {
            Kind::Lines => Lines::new(&data).map(|(lines, n)| (Merger::Lines(lines.into()), n)),
            Kind::ByteLevel => ByteLevel::new(&data, pre.expect("checked above"))
                .map(|(bytes, n)| (Merger::ByteLevel(bytes.into()), n)),
            Kind::Scores => Ok((Merger::Scores(Scores::new(&data).into()), 0)),
        };
        let by_text = || -> HashMap<String, u32> {
            (0u32..).zip(&data.tokens).map(|(id, t)| (t.clone(), id)).collect()
        };
        let (digest, (merger, ids)) = rayon::join(|| digest(&data, kind), || rayon::join(merger, by_text));
        let (merger, left_out) = merger?;
        notices.extend(data::notices(&data, spec, kind, left_out));
        if let Some(name) = spec.required.iter().find(|name| !ids.contains_key(**name)) {
            return Err(TokenizerError::Missing((*name).to_owned()));
        }
        let adds_bos = data.add_bos.unwrap_or(match kind {
            Kind::Lines | Kind::Scores => true,
            Kind::ByteLevel => pre.is_some_and(|pre| pre.adds_bos),
        });
        let turn_end = turn_end(&data, spec, &ids).ok_or(TokenizerError::NoEnd)?;
        let ends = spec.end_names.iter().filter_map(|name| ids.get(*name)).copied();
        let mut eos: Vec<u32> = data.eos.iter().copied().chain(ends).chain([turn_end]).collect();
        eos.sort_unstable();
        eos.dedup();

        // Some converters mark control tokens NORMAL. Qwen's `</s>` is NORMAL because it is text: HTML's strike-through.
        let names = spec.control.iter().chain(spec.required).chain(spec.turn_end);
        let named: HashSet<u32> = names
            .filter_map(|name| ids.get(*name))
            .chain(&data.eos)
            .chain(&data.bos)
            .chain([&turn_end])
            .copied()
            .collect();
        let is_named = |id: u32| named.contains(&id);
        let is_control = |id: u32, kind: i32| is_named(id) || kind == CONTROL;
        let is_added = |id: u32, kind: i32| kind == USER_DEFINED && !is_named(id);
        let of = |wanted: &dyn Fn(u32, i32) -> bool| {
            let all = (0u32..).zip(data.tokens.iter().zip(&data.token_types));
            // A file may spell the spaces of added tokens as in SentencePiece.
            let text =
                |token: &String| if kind == Kind::Scores { token.replace('▁', " ") } else { token.clone() };
            Specials::new(
                all.filter(|(id, (_, kind))| wanted(*id, **kind)).map(|(id, (token, _))| (text(token), id)),
            )
        };
        // Gemma 4's added tokens are its marks of reasoning and calls, which a message must not contain either.
        let apart = kind != Kind::Lines;
        let either = |id, kind| is_control(id, kind) || is_added(id, kind);
        let is_special = (0u32..).zip(&data.token_types).map(|(id, kind)| either(id, *kind)).collect();
        Ok(Tokenizer {
            specials: of(&either),
            control: if apart { of(&is_control) } else { of(&either) },
            added: of(&|id, kind| apart && is_added(id, kind)),
            is_special,
            merger,
            ids,
            spec,
            bos: data.bos,
            adds_bos: adds_bos && data.bos.is_some(),
            eos_token: data.eos_token,
            turn_end,
            eos,
            digest,
            notices,
            tokens: data.tokens,
        })
    }

    /// Decodes `ids`; control tokens are spelled out. Bytes that are not valid UTF-8, and ids outside the vocabulary, become
    /// U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id).into_owned()).collect();
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// The bytes of one token; several byte tokens may form one character.
    pub fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        let Some(token) = self.tokens.get(id as usize) else {
            return Cow::Borrowed("\u{FFFD}".as_bytes());
        };
        let spelled = Cow::Borrowed(token.as_bytes());
        if let Merger::ByteLevel(_) = self.merger {
            let merged = (!self.is_special(id)).then(|| bytes_of(token)).flatten();
            return merged.map_or(spelled, Cow::Owned);
        }
        match byte_of(token) {
            Some(byte) if self.ids.get(token) == Some(&id) => Cow::Owned(vec![byte]),
            _ if token.contains('▁') => Cow::Owned(token.replace('▁', " ").into_bytes()),
            _ => spelled,
        }
    }

    /// Id of the token that starts every sequence; `None` if sequences start with the text itself.
    pub fn bos(&self) -> Option<u32> {
        self.bos.filter(|_| self.adds_bos)
    }

    /// Spelling of the file's first token of a sequence, which templates call `bos_token`.
    pub fn bos_token(&self) -> Option<&str> {
        self.bos.map(|id| &*self.tokens[id as usize])
    }

    /// Spelling of the file's last token of a sequence, which templates call `eos_token`.
    pub fn eos_token(&self) -> Option<&str> {
        match self.merger {
            Merger::Lines(_) => Some(&*self.tokens[self.end_of_text() as usize]),
            _ => self.eos_token.map(|id| &*self.tokens[id as usize]),
        }
    }

    /// Id of the token that ends a turn.
    pub fn turn_end(&self) -> u32 {
        self.turn_end
    }

    /// Every id that ends generation, ascending: those that the file names, and those that llama.cpp adds for the family.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// Id of the token that ends a text; if the vocabulary has none, of the token that ends a turn.
    pub fn end_of_text(&self) -> u32 {
        self.spec.end_of_text.iter().find_map(|name| self.id(name)).unwrap_or(self.turn_end)
    }

    /// The constants of the family's tokenizers.
    pub fn spec(&self) -> &'static TokenizerSpec {
        self.spec
    }

    /// SHA-256 of everything that determines the ids of a text.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Properties of the vocabulary that other programs load too, and that a user should know.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The bytes of `text` that the vocabulary cannot write. They become its unknown token, or are left out if it has none.
    pub fn unwritable(&self, text: &str) -> BTreeSet<u8> {
        match &self.merger {
            Merger::Lines(lines) => lines.unwritable(text),
            Merger::ByteLevel(bytes) => bytes.unwritable(text),
            Merger::Scores(scores) => scores.unwritable(text),
        }
    }

    /// Vocabulary size `V`.
    pub fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    /// The id of a token by its exact spelling.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// Whether the token is a control token, or one that the vocabulary adds to merged ones.
    pub fn is_special(&self, id: u32) -> bool {
        self.is_special.get(id as usize).copied().unwrap_or(false)
    }
}

/// The token that ends a turn. An instruction-tuned model's file names it; a base model's file names the end of a text.
fn turn_end(data: &TokenizerData, spec: &TokenizerSpec, ids: &HashMap<String, u32>) -> Option<u32> {
    let ends_text = |id: &u32| spec.end_of_text.contains(&&*data.tokens[*id as usize]);
    let named = || spec.turn_end.iter().find_map(|name| ids.get(*name)).copied();
    data.eot.or(data.eos_token.filter(|id| !ends_text(id))).or_else(named).or(data.eos_token)
}

/// A byte-pair encoder with the vocabulary and merges of a file, and the number of merges that it leaves out: those that are not two
/// tokens which join to a third.
fn bpe(
    data: &TokenizerData,
    with: impl Fn(BpeBuilder) -> BpeBuilder,
) -> Result<(BPE, usize), TokenizerError> {
    let ids = || (0u32..).zip(&data.tokens).map(|(id, token)| (token.clone(), id)).collect::<Vocab>();
    let build = |merges: Vec<(String, String)>| {
        with(BPE::builder().vocab_and_merges(ids(), merges).cache_capacity(CACHED_WORDS)).build()
    };
    let merges = split_merges(&data.tokens, &data.merges);
    if merges.len() == data.merges.len()
        && let Ok(bpe) = build(merges.clone())
    {
        return Ok((bpe, 0));
    }
    let known: HashSet<&str> = data.tokens.iter().map(String::as_str).collect();
    let fits = |(a, b): &(String, String)| {
        known.contains(&**a) && known.contains(&**b) && known.contains(&*[&**a, b].concat())
    };
    let merges: Vec<(String, String)> = merges.into_iter().filter(fits).collect();
    let left_out = data.merges.len() - merges.len();
    if merges.is_empty() {
        return Err(TokenizerError::Merges("none joins two of its tokens to a third".into()));
    }
    let bpe = build(merges).map_err(|error| TokenizerError::Merges(error.to_string()))?;
    Ok((bpe, left_out))
}

/// Splits merges into pairs. Leaves out those longer than every token, which would overrun the `tokenizers` crate's buffer.
fn split_merges(tokens: &[String], merges: &[String]) -> Vec<(String, String)> {
    let longest = tokens.iter().map(String::len).max().unwrap_or(0);
    let split = |merge: &String| match merge.split_once(' ') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() && a.len() + b.len() <= longest => {
            Some((a.to_owned(), b.to_owned()))
        }
        _ => None,
    };
    merges.iter().filter_map(split).collect()
}

/// The bytes among `missing` of those characters that have no token of their own.
fn missing_bytes(text: &str, missing: &BTreeSet<u8>, is_token: impl Fn(&str) -> bool) -> BTreeSet<u8> {
    if missing.is_empty() {
        return BTreeSet::new();
    }
    let mut spelled = [0; 4];
    let unknown = text.chars().filter(|c| *c != ' ' && !is_token(c.encode_utf8(&mut spelled)));
    let bytes: BTreeSet<u8> = unknown.flat_map(|c| c.to_string().into_bytes()).collect();
    bytes.intersection(missing).copied().collect()
}

/// The spelling of a byte token.
fn byte_token(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

/// The byte that a token spelled `<0xHH>` represents.
fn byte_of(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}
