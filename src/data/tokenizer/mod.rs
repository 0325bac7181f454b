//! Tokenizers: byte-pair merges over characters with byte fallback, built from the metadata of a GGUF file.
//!
//! A space becomes `▁` (U+2581); no prefix is added to a text. As in llama.cpp's pre-tokenizer `[^\n]+|[\n]+`, a run of
//! newlines is a separate piece, which is looked up as a whole before any merge. Decoding restores the encoded text, with one
//! exception: a literal `▁` becomes a space, because the vocabulary cannot distinguish the two.
//!
//! Almost no token has a space after another character, so text is merged word by word. That gives the same ids as merging
//! whole lines, and words can be cached.

mod data;
mod encode;
mod stream;

use std::borrow::Cow;

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};

pub use data::{TokenizerData, TokenizerError, TokenizerSpec};
pub use stream::DecodeStream;

use data::{check, digest};
use encode::word_starts;

/// GGUF's token type for control tokens (`LLAMA_TOKEN_TYPE_CONTROL`).
const CONTROL: i32 = 3;
/// GGUF's token type for tokens added by the user (`LLAMA_TOKEN_TYPE_USER_DEFINED`), such as channel and tool tokens.
const USER_DEFINED: i32 = 4;
/// Number of words in each thread's cache.
const CACHED_WORDS: usize = 1 << 16;
/// Largest number of tokens that cross a space. With more, whole lines are merged.
const MOST_CROSSING: usize = 64;

/// Whether the text of a control token becomes that token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// The text becomes the token: for the template's own text.
    Parse,
    /// The text stays text: for text that a user wrote.
    Plain,
}

/// Converts text to token ids and back.
pub struct Tokenizer {
    bpe: BPE,
    tokens: Vec<String>,
    /// Control tokens, longest first.
    specials: Vec<(String, u32)>,
    /// Whether a control token starts with this byte.
    special_starts: [bool; 256],
    /// Tokens that cross a space, with the position of the space: only these can join two words. `None` if there are too many.
    crossing: Option<Vec<(String, usize)>>,
    byte_ids: [u32; 256],
    spec: &'static TokenizerSpec,
    bos: u32,
    turn_start: u32,
    turn_end: u32,
    eos: Vec<u32>,
    digest: [u8; 32],
}

impl Tokenizer {
    /// Builds the tokenizer. Fails if the data are damaged or do not fit the family.
    pub fn new(data: TokenizerData, spec: &'static TokenizerSpec) -> Result<Tokenizer, TokenizerError> {
        check(&data, spec)?;
        let ids = || data.tokens.iter().zip(0u32..).map(|(token, id)| (token.clone(), id)).collect::<Vocab>();
        let (digest, (vocab, merges)) =
            rayon::join(|| digest(&data), || rayon::join(ids, || split_merges(&data.tokens, &data.merges)));
        let TokenizerData { tokens, token_types, bos, mut eos, .. } = data;
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, merges?)
            .byte_fallback(true)
            .cache_capacity(CACHED_WORDS)
            .build()
            .map_err(|error| TokenizerError::Merges(error.to_string()))?;

        let id_of =
            |token: &str| bpe.token_to_id(token).ok_or_else(|| TokenizerError::Missing(token.to_owned()));
        let mut byte_ids = [0; 256];
        for (byte, id) in byte_ids.iter_mut().enumerate() {
            *id = id_of(&format!("<0x{byte:02X}>"))?;
        }
        let (turn_start, turn_end) = (id_of(spec.turn_start)?, id_of(spec.turn_end)?);
        eos.extend(spec.end_names.iter().filter_map(|name| bpe.token_to_id(name)));
        eos.sort_unstable();
        eos.dedup();

        let mut specials: Vec<(String, u32)> = (0u32..)
            .zip(tokens.iter().zip(&token_types))
            .filter(|(id, (token, kind))| {
                // Some converters mark `<eos>` NORMAL. llama.cpp also makes every end token a control token.
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
            spec,
            bos,
            turn_start,
            turn_end,
            eos,
            digest,
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
        if let Some(byte) = byte_of(token).filter(|&byte| self.byte_ids[byte as usize] == id) {
            Cow::Owned(vec![byte])
        } else if token.contains('▁') {
            Cow::Owned(token.replace('▁', " ").into_bytes())
        } else {
            Cow::Borrowed(token.as_bytes())
        }
    }

    /// Id of the token that starts every sequence.
    pub fn bos(&self) -> u32 {
        self.bos
    }

    /// Id of the token that starts a turn.
    pub fn turn_start(&self) -> u32 {
        self.turn_start
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
        self.id(self.spec.end_of_text).unwrap_or(self.turn_end)
    }

    /// The constants of the family's tokenizers.
    pub fn spec(&self) -> &'static TokenizerSpec {
        self.spec
    }

    /// SHA-256 of everything that determines the ids of a text.
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
}

/// Splits merges into pairs. Fails for a pair longer than every token, which would overrun the `tokenizers` crate's buffer.
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

/// The byte that a token spelled `<0xHH>` represents.
fn byte_of(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}
