//! Encoding text to token ids.

use tokenizers::Model;

use super::{Special, Tokenizer};

impl Tokenizer {
    /// Token ids of `text`, without `<bos>`.
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

    /// The first control token in `text`, if any.
    pub fn find_special(&self, text: &str) -> Option<&str> {
        self.next_special(text).map(|(_, token, _)| token)
    }

    /// Whether a token of the whole text spans byte `at`. The two halves, encoded separately, then have different ids than the
    /// whole text.
    pub fn joins_at(&self, text: &str, at: usize) -> bool {
        let (left, right) = text.split_at(at);
        let (Some(before), Some(after)) = (left.chars().next_back(), right.chars().next()) else {
            return false;
        };
        let newline = before == '\n';
        if newline != (after == '\n') {
            return false; // a run of newlines is a separate piece
        }
        // The longest stretch without such a boundary contains every token that could span `at`.
        let edge = |c: char| (c == '\n') != newline;
        let start = left.rfind(edge).map_or(0, |at| at + left[at..].chars().next().map_or(0, char::len_utf8));
        let (left, right) = (&left[start..], &right[..right.find(edge).unwrap_or(right.len())]);
        let halves = [self.encode(left, Special::Parse), self.encode(right, Special::Parse)].concat();
        self.encode(&text[start..at + right.len()], Special::Parse) != halves
    }

    /// The leftmost control token in `text`, the longest one if several start there: its position, text and id.
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

    /// Whether a token may span byte `at` of a line.
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

/// Positions where `▁` follows another character.
pub(super) fn word_starts(text: &str) -> impl Iterator<Item = usize> {
    text.match_indices('▁').map(|(at, _)| at).filter(move |&at| at > 0 && !text[..at].ends_with('▁'))
}
