//! Byte-pair merges over characters, with byte fallback, for Gemma 4.
//!
//! A space becomes `▁` (U+2581). As in llama.cpp's pre-tokenizer `[^\n]+|[\n]+`, a run of newlines is a separate piece, which
//! is looked up as a whole before any merge.
//!
//! Almost no token has a space after another character, so text is merged word by word. That gives the same ids as merging
//! whole lines, and words can be cached.

use std::collections::BTreeSet;

use tokenizers::Model;
use tokenizers::models::bpe::BPE;

use super::byte_token;
use super::data::{TokenizerData, TokenizerError, unknown};

/// Largest number of tokens that cross a space. With more, whole lines are merged.
const MOST_CROSSING: usize = 64;

pub(super) struct Lines {
    bpe: BPE,
    /// Tokens that cross a space, with the position of the space: only these can join two words. `None` if there are too many.
    crossing: Option<Vec<(String, usize)>>,
    /// Bytes without a token.
    missing: BTreeSet<u8>,
}

impl Lines {
    /// The tokenizer, and the number of merges that it leaves out.
    pub fn new(data: &TokenizerData) -> Result<(Lines, usize), TokenizerError> {
        let unknown = unknown(data).map(|id| data.tokens[id as usize].clone());
        let (bpe, left_out) = super::bpe(data, |builder| {
            let builder = builder.byte_fallback(true).fuse_unk(true);
            unknown.iter().fold(builder, |builder, token| builder.unk_token(token.clone()))
        })?;
        let missing = (0..=255).filter(|byte| bpe.token_to_id(&byte_token(*byte)).is_none()).collect();
        let crossing: Vec<(String, usize)> = data
            .tokens
            .iter()
            .flat_map(|token| word_starts(token).map(|at| (token.clone(), at)))
            .take(MOST_CROSSING + 1)
            .collect();
        let crossing = Some(crossing).filter(|crossing| crossing.len() <= MOST_CROSSING);
        Ok((Lines { bpe, crossing, missing }, left_out))
    }

    /// The bytes of `text` that no token spells.
    pub fn unwritable(&self, text: &str) -> BTreeSet<u8> {
        super::missing_bytes(text, &self.missing, |c| self.bpe.token_to_id(c).is_some())
    }

    /// Appends the ids of a text without control tokens.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
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

    /// Whether a token may span byte `at` of a line.
    fn crossed(&self, line: &str, at: usize) -> bool {
        let Some(crossing) = &self.crossing else { return true };
        let line = line.as_bytes();
        crossing.iter().any(|(token, k)| at >= *k && line[at - k..].starts_with(token.as_bytes()))
    }

    fn encode_word(&self, word: &str, ids: &mut Vec<u32>) {
        let tokens = self.bpe.tokenize(word);
        ids.extend(tokens.expect("the unknown token is in the vocabulary").iter().map(|token| token.id));
    }
}

/// Positions where `▁` follows another character.
fn word_starts(text: &str) -> impl Iterator<Item = usize> {
    text.match_indices('▁').map(|(at, _)| at).filter(move |&at| at > 0 && !text[..at].ends_with('▁'))
}
