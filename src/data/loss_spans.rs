//! A sample's text in pieces with and without loss, for people.

use super::batch::{IGNORE, Sample};
use super::tokenizer::Tokenizer;

/// Text of consecutive tokens that all have a loss, or all have none.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The tokens, decoded.
    pub text: String,
    /// Whether they are loss tokens.
    pub has_loss: bool,
}

/// The text of `sample`.
pub fn pieces(tokenizer: &Tokenizer, sample: &Sample) -> Vec<Piece> {
    let has_loss = |t: usize| t > 0 && sample.labels[t] != IGNORE;
    let (mut pieces, mut start) = (Vec::new(), 0);
    for t in 1..=sample.ids.len() {
        if t == sample.ids.len() || has_loss(t) != has_loss(start) {
            let text = tokenizer.decode(&sample.ids[start..t]);
            pieces.push(Piece { text, has_loss: has_loss(start) });
            start = t;
        }
    }
    pieces
}
