//! Gemma 4's tokenizer, built from what a GGUF file carries.
//!
//! Byte-pair merges over characters with byte fallback; a space becomes `▁` (U+2581), nothing is put in front. As
//! in llama.cpp's `gemma4` pre-tokenizer (`[^\n]+|[\n]+`), a run of newlines is its own piece and is looked up
//! whole before any merge. Decoding gives back the text that was encoded, with one exception: a literal `▁` comes
//! back as a space, because the vocabulary cannot tell the two apart.
//!
//! Nearly no token of Gemma's holds a space behind another character, so text is merged word by word, which gives the
//! same ids as merging whole lines and lets words be remembered.

use std::borrow::Cow;

use sha2::{Digest, Sha256};
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};

use crate::base::{Error, Gguf};

/// GGUF's token type for control tokens (`LLAMA_TOKEN_TYPE_CONTROL`).
const CONTROL: i32 = 3;
/// GGUF's token type for tokens added by the user (`LLAMA_TOKEN_TYPE_USER_DEFINED`); Gemma 4's channel and tool tokens.
const USER_DEFINED: i32 = 4;
/// What llama.cpp also takes as end of generation in a Gemma 4 vocabulary, where present.
const END_NAMES: [&str; 3] = ["<eos>", "<turn|>", "<|tool_response>"];
/// Words that each thread remembers.
const REMEMBERED_WORDS: usize = 1 << 16;
/// With more tokens than this that reach over a space, lines are merged whole.
const MOST_CROSSING: usize = 64;

/// What a GGUF file says about its tokenizer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenizerData {
    /// `tokenizer.ggml.model`: `gemma4` as llama.cpp writes it, `llama` as Ollama does.
    pub model: String,
    /// `tokenizer.ggml.pre`, where present: `gemma4`.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, `[V]`.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`, `[V]`. Ollama marks byte tokens NORMAL, so bytes are found by their spelling.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, best first: two tokens with one space between.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: u32,
    /// `tokenizer.ggml.eos_token_id` and `tokenizer.ggml.eos_token_ids`.
    pub eos: Vec<u32>,
    /// `tokenizer.ggml.add_space_prefix`; false in every Gemma 4 file.
    pub add_space_prefix: bool,
}

impl TokenizerData {
    /// What the file says; an error where a key is missing or has another type.
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

/// Why a tokenizer could not be built.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum TokenizerError {
    /// Not a Gemma 4 tokenizer.
    #[error(
        "tokenizer: {key} is {found:?}, expected {expected}; only Gemma 4 vocabularies can be trained on"
    )]
    Unsupported {
        /// GGUF key.
        key: &'static str,
        /// Its value.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// Lists of different lengths.
    #[error("tokenizer.ggml.token_type has {types} entries for {tokens} tokens; the file is damaged")]
    TokenTypes {
        /// How many types.
        types: usize,
        /// How many tokens.
        tokens: usize,
    },
    /// A special id that is no token.
    #[error("{key} is {id}, but the vocabulary has {vocab} tokens; the file is damaged")]
    Id {
        /// GGUF key.
        key: &'static str,
        /// Its value.
        id: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// A merge that is not two tokens or does not make one.
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
    /// The merge list as a whole was refused.
    #[error("tokenizer.ggml.merges does not fit the vocabulary: {0}")]
    Merges(String),
    /// A token that Gemma 4 needs is missing.
    #[error("the vocabulary has no token {0:?}; expected a Gemma 4 instruction-tuned vocabulary")]
    Missing(String),
}

/// Whether the text of a control token becomes that token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Yes: for the template's own text.
    Parse,
    /// No: for text that a user wrote, which can never produce a control token.
    Plain,
}

/// Text to token ids and back.
pub struct Tokenizer {
    bpe: BPE,
    tokens: Vec<String>,
    /// Control tokens, longest first.
    specials: Vec<(String, u32)>,
    /// Whether a control token starts with this byte.
    special_starts: [bool; 256],
    /// Tokens that reach over a space, and where in them: only these can join two words. `None`: too many of them.
    crossing: Option<Vec<(String, usize)>>,
    byte_ids: [u32; 256],
    bos: u32,
    turn_start: u32,
    turn_end: u32,
    eos: Vec<u32>,
    digest: [u8; 32],
}

impl Tokenizer {
    /// Builds the tokenizer, or says which part of the data does not fit Gemma 4.
    pub fn new(data: TokenizerData) -> Result<Tokenizer, TokenizerError> {
        check(&data)?;
        let ids = || data.tokens.iter().zip(0u32..).map(|(token, id)| (token.clone(), id)).collect::<Vocab>();
        let (digest, (vocab, merges)) =
            rayon::join(|| digest(&data), || rayon::join(ids, || split_merges(&data.tokens, &data.merges)));
        let TokenizerData { tokens, token_types, bos, mut eos, .. } = data;
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, merges?)
            .byte_fallback(true)
            .cache_capacity(REMEMBERED_WORDS)
            .build()
            .map_err(|error| TokenizerError::Merges(error.to_string()))?;

        let id_of =
            |token: &str| bpe.token_to_id(token).ok_or_else(|| TokenizerError::Missing(token.to_owned()));
        let mut byte_ids = [0; 256];
        for (byte, id) in byte_ids.iter_mut().enumerate() {
            *id = id_of(&format!("<0x{byte:02X}>"))?;
        }
        let (turn_start, turn_end) = (id_of("<|turn>")?, id_of("<turn|>")?);
        eos.extend(END_NAMES.iter().filter_map(|name| bpe.token_to_id(name)));
        eos.sort_unstable();
        eos.dedup();

        let mut specials: Vec<(String, u32)> = (0u32..)
            .zip(tokens.iter().zip(&token_types))
            .filter(|(id, (token, kind))| {
                // Some converters mark `<eos>` NORMAL; llama.cpp makes every end token a control token, too.
                let named = [bos, turn_start].contains(id) || eos.contains(id);
                !token.is_empty() && (named || matches!(**kind, CONTROL | USER_DEFINED))
            })
            .map(|(id, (token, _))| (token.clone(), id))
            .collect();
        specials.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then(a.1.cmp(&b.1)));
        let mut special_starts = [false; 256];
        specials.iter().for_each(|(token, _)| special_starts[usize::from(token.as_bytes()[0])] = true);
        let crossing: Vec<(String, usize)> = tokens
            .iter()
            .flat_map(|token| word_starts(token).map(|at| (token.clone(), at)))
            .take(MOST_CROSSING + 1)
            .collect();
        let crossing = Some(crossing).filter(|crossing| crossing.len() <= MOST_CROSSING);
        Ok(Tokenizer {
            bpe,
            tokens,
            specials,
            special_starts,
            crossing,
            byte_ids,
            bos,
            turn_start,
            turn_end,
            eos,
            digest,
        })
    }

    /// Builds the tokenizer of a model file; the error names the file.
    pub fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, Error> {
        let data = TokenizerData::from_gguf(gguf)?;
        Tokenizer::new(data)
            .map_err(|error| Error::Metadata { file: gguf.file().to_owned(), problem: error.to_string() })
    }

    /// Token ids of `text`. No `<bos>` is added.
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text;
        if special == Special::Parse {
            while let Some((at, token, id)) = self.next_special(rest) {
                self.encode_plain(&rest[..at], &mut ids);
                ids.push(id);
                rest = &rest[at + token.len()..];
            }
        }
        self.encode_plain(rest, &mut ids);
        ids
    }

    /// The first control token whose text occurs in `text`, if any.
    pub fn find_special(&self, text: &str) -> Option<&str> {
        self.next_special(text).map(|(_, token, _)| token)
    }

    /// Whether some token of the whole text covers both sides of byte `at`: then the halves, encoded each for itself,
    /// have other ids than the text.
    pub fn joins_at(&self, text: &str, at: usize) -> bool {
        let (left, right) = text.split_at(at);
        let (Some(before), Some(after)) = (left.chars().next_back(), right.chars().next()) else {
            return false;
        };
        let newline = before == '\n';
        if newline != (after == '\n') {
            return false; // pieces of their own
        }
        // The longest stretch without such an edge holds every token that could cover both sides.
        let edge = |c: char| (c == '\n') != newline;
        let start = left.rfind(edge).map_or(0, |at| at + left[at..].chars().next().map_or(0, char::len_utf8));
        let (left, right) = (&left[start..], &right[..right.find(edge).unwrap_or(right.len())]);
        let halves = [self.encode(left, Special::Parse), self.encode(right, Special::Parse)].concat();
        self.encode(&text[start..at + right.len()], Special::Parse) != halves
    }

    /// The text of `ids`, control tokens spelled out. Bytes that are not UTF-8, and ids outside the vocabulary,
    /// become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id).into_owned()).collect();
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// The bytes that one token stands for; a character may be spread over several byte tokens.
    pub fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        let Some(token) = self.tokens.get(id as usize) else {
            return Cow::Borrowed("\u{FFFD}".as_bytes());
        };
        if let Some(byte) = byte_of(token).filter(|&byte| self.byte_ids[byte as usize] == id) {
            Cow::Owned(vec![byte])
        } else if token.contains('▁') {
            Cow::Owned(token.replace('▁', " ").into_bytes())
        } else {
            Cow::Borrowed(token.as_bytes())
        }
    }

    /// The id of `<bos>`, which starts every sequence.
    pub fn bos(&self) -> u32 {
        self.bos
    }

    /// The id of `<|turn>`.
    pub fn turn_start(&self) -> u32 {
        self.turn_start
    }

    /// The id of `<turn|>`, which ends a turn.
    pub fn turn_end(&self) -> u32 {
        self.turn_end
    }

    /// Every id that ends generation, ascending: those the file names, and `<eos>`, `<turn|>` and
    /// `<|tool_response>` as in llama.cpp.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// SHA-256 of everything that decides which ids a text has.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Vocabulary size `V`.
    pub fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    /// The id of a token by its exact spelling.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.bpe.token_to_id(token)
    }

    /// Leftmost, then longest.
    fn next_special(&self, text: &str) -> Option<(usize, &str, u32)> {
        let bytes = text.as_bytes();
        let starts = bytes.iter().enumerate().filter(|(_, byte)| self.special_starts[usize::from(**byte)]);
        starts.map(|(at, _)| at).find_map(|at| {
            self.specials
                .iter()
                .find(|(token, _)| bytes[at..].starts_with(token.as_bytes()))
                .map(|(token, id)| (at, token.as_str(), *id))
        })
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let newlines = first == '\n';
            let end = rest.find(|c| (c == '\n') != newlines).unwrap_or(rest.len());
            let (piece, tail) = rest.split_at(end);
            rest = tail;
            if let Some(id) = self.bpe.token_to_id(piece).filter(|_| newlines) {
                ids.push(id);
                continue;
            }
            let line = piece.replace(' ', "▁");
            let mut start = 0;
            for at in word_starts(&line).filter(|&at| !self.crossed(&line, at)) {
                self.encode_word(&line[start..at], ids);
                start = at;
            }
            self.encode_word(&line[start..], ids);
        }
    }

    /// Whether some token may cover both sides of byte `at` of a line.
    fn crossed(&self, line: &str, at: usize) -> bool {
        let Some(crossing) = &self.crossing else { return true };
        let line = line.as_bytes();
        crossing.iter().any(|(token, k)| at >= *k && line[at - k..].starts_with(token.as_bytes()))
    }

    fn encode_word(&self, word: &str, ids: &mut Vec<u32>) {
        let tokens = self.bpe.tokenize(word);
        ids.extend(tokens.expect("every byte has a token").iter().map(|token| token.id));
    }
}

/// Where `▁` follows another character.
fn word_starts(text: &str) -> impl Iterator<Item = usize> {
    text.match_indices('▁').map(|(at, _)| at).filter(move |&at| at > 0 && !text[..at].ends_with('▁'))
}

fn digest(data: &TokenizerData) -> [u8; 32] {
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

/// Turns a stream of ids into text, holding back the bytes of a character until it is complete.
#[derive(Clone, Debug, Default)]
pub struct DecodeStream {
    pending: Vec<u8>,
}

impl DecodeStream {
    /// The text that `id` completes; empty in the middle of a character.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        self.pending.extend_from_slice(&tokenizer.token_bytes(id));
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(rest) => {
                    text.push_str(rest);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.pending[..valid]));
                    // No length: the end may still become a character. A length: these bytes never will.
                    let bad = error.error_len();
                    self.pending.drain(..valid + bad.unwrap_or(0));
                    if bad.is_none() {
                        return text;
                    }
                    text.push('\u{FFFD}');
                }
            }
        }
    }

    /// What is left at the end: U+FFFD for a character that was never completed.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// Refuses what is not Gemma 4's kind of tokenizer.
fn check(data: &TokenizerData) -> Result<(), TokenizerError> {
    let unsupported = |key, found: &str, expected| {
        Err(TokenizerError::Unsupported { key, found: found.to_owned(), expected })
    };
    if !matches!(data.model.as_str(), "gemma4" | "llama") {
        let expected = "\"gemma4\" (llama.cpp) or \"llama\" with merges (Ollama)";
        return unsupported("tokenizer.ggml.model", &data.model, expected);
    }
    if let Some(pre) = data.pre.as_deref().filter(|pre| *pre != "gemma4") {
        return unsupported("tokenizer.ggml.pre", pre, "\"gemma4\" or no such key");
    }
    if data.merges.is_empty() {
        return unsupported("tokenizer.ggml.merges", "", "a list of merges");
    }
    if data.add_space_prefix {
        return unsupported("tokenizer.ggml.add_space_prefix", "true", "false");
    }
    let vocab = data.tokens.len();
    if data.token_types.len() != vocab {
        return Err(TokenizerError::TokenTypes { types: data.token_types.len(), tokens: vocab });
    }
    let eos = data.eos.iter().map(|&id| ("tokenizer.ggml.eos_token_id", id));
    match eos.chain([("tokenizer.ggml.bos_token_id", data.bos)]).find(|(_, id)| *id as usize >= vocab) {
        Some((key, id)) => return Err(TokenizerError::Id { key, id, vocab }),
        None if data.tokens[data.bos as usize] == "<bos>" => {}
        None => {
            return unsupported(
                "tokenizer.ggml.bos_token_id",
                &data.tokens[data.bos as usize],
                "the token <bos>",
            );
        }
    }
    Ok(())
}

/// Merges as pairs. A pair longer than every token would overrun the buffer that the `tokenizers` crate joins it in.
fn split_merges(tokens: &[String], merges: &[String]) -> Result<Vec<(String, String)>, TokenizerError> {
    let longest = tokens.iter().map(String::len).max().unwrap_or(0);
    let split = |(index, merge): (usize, &String)| match merge.split_once(' ') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() && a.len() + b.len() <= longest => {
            Ok((a.to_owned(), b.to_owned()))
        }
        _ => Err(TokenizerError::Merge { index, found: merge.clone() }),
    };
    merges.iter().enumerate().map(split).collect()
}

/// The byte that a token spelled `<0xHH>` stands for.
fn byte_of(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}
