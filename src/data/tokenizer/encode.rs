//! Encoding text to token ids.

use super::{Merger, Special, Tokenizer};

impl Tokenizer {
    /// Token ids of `text`, without the token that starts a sequence.
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut ids = Vec::new();
        self.append(text, special, &mut ids);
        ids
    }

    /// Appends the ids of `text` to the ids of the text before it.
    pub fn append(&self, text: &str, special: Special, ids: &mut Vec<u32>) {
        let mut begins = ids.last().is_none_or(|&id| self.is_special(id));
        let specials = if special == Special::Parse { &self.specials } else { &self.added };
        let mut rest = text;
        while let Some((at, token, id)) = specials.next(rest) {
            self.encode_plain(&rest[..at], begins, ids);
            ids.push(id);
            rest = &rest[at + token.len()..];
            begins = true;
        }
        self.encode_plain(rest, begins, ids);
    }

    /// The first control token in `text`, if any.
    pub fn find_special(&self, text: &str) -> Option<&str> {
        self.specials.next(text).map(|(_, token, _)| token)
    }

    /// The first token in `text` that only a template may write, if any. A vocabulary's further added tokens, such as `<think>`,
    /// are tokens wherever they stand: every program parses them in any text.
    pub fn find_control(&self, text: &str) -> Option<&str> {
        self.control.next(text).map(|(_, token, _)| token)
    }

    /// Whether a token of the whole text spans byte `at`. The two halves, encoded one after the other, then have different ids
    /// than the whole text.
    pub fn joins_at(&self, text: &str, at: usize) -> bool {
        let (left, right) = text.split_at(at);
        if left.is_empty() || right.is_empty() {
            return false;
        }
        // The longest stretch that contains every token that could span `at`.
        let (start, end) = match &self.merger {
            Merger::Lines(_) => {
                let newline = left.ends_with('\n');
                if newline != right.starts_with('\n') {
                    return false; // a run of newlines is a separate piece
                }
                let edge = |c: char| (c == '\n') != newline;
                let start =
                    left.rfind(edge).map_or(0, |at| at + left[at..].chars().next().map_or(0, char::len_utf8));
                (start, at + right.find(edge).unwrap_or(right.len()))
            }
            Merger::ByteLevel(_) | Merger::Scores(_) => match self.between_specials(text, at) {
                Some(stretch) => stretch,
                None => return true,
            },
        };
        if [start, end].contains(&at) {
            return false;
        }
        let mut halves = self.encode(&text[start..at], Special::Parse);
        self.append(&text[at..end], Special::Parse, &mut halves);
        self.encode(&text[start..end], Special::Parse) != halves
    }

    /// The stretch of `text` around byte `at` without control tokens; `None` if a control token spans `at`.
    fn between_specials(&self, text: &str, at: usize) -> Option<(usize, usize)> {
        let mut start = 0;
        while let Some((found, token, _)) = self.specials.next(&text[start..]) {
            let (from, to) = (start + found, start + found + token.len());
            match () {
                () if to <= at => start = to,
                () if from >= at => return Some((start, from)),
                () => return None,
            }
        }
        Some((start, text.len()))
    }

    fn encode_plain(&self, text: &str, begins: bool, ids: &mut Vec<u32>) {
        match &self.merger {
            Merger::Lines(lines) => lines.encode(text, ids),
            Merger::ByteLevel(bytes) => bytes.encode(text, ids),
            Merger::Scores(scores) => scores.encode(text, begins, ids),
        }
    }
}
