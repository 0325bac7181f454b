//! SentencePiece tokenizers: of all neighbouring symbols, the pair whose token has the highest score merges first; of equal
//! scores, the leftmost. Characters without a token become byte tokens. (llama.cpp's `llm_tokenizer_spm`.)

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::data::{TokenizerData, TokenizerError};
use super::{BYTE, CONTROL, UNKNOWN, byte_of, byte_token};

/// No neighbour.
const NONE: usize = usize::MAX;

pub(super) struct Scores {
    /// Tokens that text can become: all except control, unknown and byte tokens.
    ids: HashMap<String, u32>,
    scores: Vec<f32>,
    byte_ids: [u32; 256],
    /// Whether a text at the start, or behind a control token, gets a space in front.
    pub space_prefix: bool,
}

/// A span of the text, and its neighbours.
struct Symbol {
    start: usize,
    end: usize,
    before: usize,
    after: usize,
}

/// A score in the order of numbers.
#[derive(PartialEq)]
struct Score(f32);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Score) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Pairs that may merge: score, left symbol, right symbol, length of both.
type Queue = BinaryHeap<(Score, Reverse<usize>, usize, usize)>;

impl Scores {
    pub fn new(data: &TokenizerData) -> Result<Scores, TokenizerError> {
        let mut ids = HashMap::with_capacity(data.tokens.len());
        for ((id, token), kind) in (0u32..).zip(&data.tokens).zip(&data.token_types) {
            if !matches!(*kind, CONTROL | UNKNOWN | BYTE) && byte_of(token).is_none() {
                ids.entry(token.clone()).or_insert(id);
            }
        }
        let bytes: HashMap<u8, u32> =
            (0u32..).zip(&data.tokens).filter_map(|(id, token)| Some((byte_of(token)?, id))).collect();
        let mut byte_ids = [0; 256];
        for byte in 0..=255u8 {
            let id = bytes.get(&byte).ok_or_else(|| TokenizerError::Missing(byte_token(byte)))?;
            byte_ids[usize::from(byte)] = *id;
        }
        // Adding 0 makes -0 and 0 equal.
        let scores = data.scores.iter().map(|score| score + 0.0).collect();
        Ok(Scores { ids, scores, byte_ids, space_prefix: data.add_space_prefix.unwrap_or(true) })
    }

    /// Appends the ids of a text without control tokens. `begins`: it is at the start, or behind a control token.
    pub fn encode(&self, text: &str, begins: bool, ids: &mut Vec<u32>) {
        let prefix = if self.space_prefix && begins && !text.is_empty() { "▁" } else { "" };
        let text = [prefix, &text.replace(' ', "▁")].concat();
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                end: start + c.len_utf8(),
                before: i.wrapping_sub(1),
                after: i + 1,
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.after = NONE;
        }
        self.merge(&text, &mut symbols);
        for symbol in symbols.iter().filter(|symbol| symbol.start < symbol.end) {
            let piece = &text[symbol.start..symbol.end];
            match self.ids.get(piece) {
                Some(id) => ids.push(*id),
                None => ids.extend(piece.bytes().map(|byte| self.byte_ids[usize::from(byte)])),
            }
        }
    }

    fn merge(&self, text: &str, symbols: &mut [Symbol]) {
        let mut queue = Queue::new();
        for left in 1..symbols.len() {
            self.propose(text, symbols, left - 1, left, &mut queue);
        }
        while let Some((_, Reverse(left), right, length)) = queue.pop() {
            let whole = symbols[left].start..symbols[right].end;
            // A symbol that has merged since is empty or longer.
            let gone = [left, right].iter().any(|&i| symbols[i].start == symbols[i].end);
            if gone || whole.len() != length {
                continue;
            }
            let after = symbols[right].after;
            symbols[right].start = symbols[right].end;
            symbols[left].end = whole.end;
            symbols[left].after = after;
            if after != NONE {
                symbols[after].before = left;
                self.propose(text, symbols, left, after, &mut queue);
            }
            let before = symbols[left].before;
            if before != NONE {
                self.propose(text, symbols, before, left, &mut queue);
            }
        }
    }

    /// Queues the pair if it is a token.
    fn propose(&self, text: &str, symbols: &[Symbol], left: usize, right: usize, queue: &mut Queue) {
        let pair = &text[symbols[left].start..symbols[right].end];
        if let Some(id) = self.ids.get(pair) {
            let score = Score(self.scores[*id as usize]);
            queue.push((score, Reverse(left), right, pair.len()));
        }
    }
}
