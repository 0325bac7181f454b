//! A completion to be made, its events, and the completion: tokens and their log-probabilities.

use crate::talk::reply::Finish;
use crate::talk::sampling::Sampling;

/// A completion to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The tokens before it.
    pub prompt: Vec<u32>,
    /// Choice of tokens. Completions of one prompt differ by their seeds.
    pub sampling: Sampling,
    /// Maximum number of tokens.
    pub max_new_tokens: usize,
}

/// A completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The tokens. Where the model ended it, the last one is the end token.
    pub ids: Vec<u32>,
    /// Natural logarithm of the probability of each token: that of the softmax over the logits divided by the temperature, before
    /// penalties and cuts. Without a temperature, that of the plain softmax.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub finish: Finish,
}

/// Events while completions are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A token was chosen.
    Token {
        /// Index of the request.
        of: usize,
        /// The token.
        id: u32,
    },
    /// The request with this index has its completion.
    Done(usize),
}
