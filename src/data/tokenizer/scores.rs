//! SentencePiece tokenizers: of all neighbouring symbols, the pair whose token has the highest score merges first; of equal
//! scores, the leftmost. Characters without a token become byte tokens. (llama.cpp's `llm_tokenizer_spm`.)

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use super::data::{TokenizerData, unknown};
use super::{BYTE, CONTROL, UNKNOWN, byte_of};

/// No neighbour.
const NONE: usize = usize::MAX;

pub(super) struct Scores {
    /// Tokens that text can become: all except control, unknown and byte tokens.
    ids: HashMap<String, u32>,
    scores: Vec<f32>,
    byte_ids: [Option<u32>; 256],
    /// The token of characters that no other token spells; without one, they are left out.
    unknown: Option<u32>,
    /// Bytes without a token.
    missing: BTreeSet<u8>,
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
    pub fn new(data: &TokenizerData) -> Scores {
        let mut ids = HashMap::with_capacity(data.tokens.len());
        for ((id, token), kind) in (0u32..).zip(&data.tokens).zip(&data.token_types) {
            if !matches!(*kind, CONTROL | UNKNOWN | BYTE) && byte_of(token).is_none() {
                ids.entry(token.clone()).or_insert(id);
            }
        }
        let bytes: HashMap<u8, u32> =
            (0u32..).zip(&data.tokens).filter_map(|(id, token)| Some((byte_of(token)?, id))).collect();
        let byte_ids = std::array::from_fn(|byte| bytes.get(&(byte as u8)).copied());
        let missing = (0..=255).filter(|byte| !bytes.contains_key(byte)).collect();
        // Adding 0 makes -0 and 0 equal.
        let mut scores: Vec<f32> = data.scores.iter().map(|score| score + 0.0).collect();
        // Without scores, all are equal, as in llama.cpp.
        scores.resize(data.tokens.len(), 0.0);
        let space_prefix = data.add_space_prefix.unwrap_or(true);
        Scores { ids, scores, byte_ids, unknown: unknown(data), missing, space_prefix }
    }

    /// The bytes of `text` that no token spells.
    pub fn unwritable(&self, text: &str) -> BTreeSet<u8> {
        super::missing_bytes(text, &self.missing, |c| self.ids.contains_key(c))
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
        let mut unknown_before = false;
        for symbol in symbols.iter().filter(|symbol| symbol.start < symbol.end) {
            let piece = &text[symbol.start..symbol.end];
            let bytes = || piece.bytes().map(|byte| self.byte_ids[usize::from(byte)]).collect();
            let spelled: Option<Vec<u32>> = match self.ids.get(piece) {
                Some(id) => Some(vec![*id]),
                None => bytes(),
            };
            // Unknown characters in a row are one token, as in Hugging Face's tokenizers.
            let unknown = self.unknown.filter(|_| spelled.is_none() && !unknown_before);
            unknown_before = spelled.is_none();
            ids.extend(spelled.into_iter().flatten().chain(unknown));
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
