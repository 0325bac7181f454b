//! Tokenized samples.

use std::sync::Arc;

use super::rollout::Row;

/// The label of a token without loss, as in transformers and PyTorch's `ignore_index`.
pub const IGNORE: i32 = -100;

/// One tokenized sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Token ids.
    pub ids: Vec<u32>,
    /// One label per token: the id that position `t - 1` must predict, or [`IGNORE`]. `labels[0]` is never used.
    pub labels: Vec<i32>,
    /// The sample's source, for messages: `datasets/pirate.jsonl line 12`.
    pub origin: String,
    /// The part that the sample plays in training.
    pub side: Side,
    /// The row that a teacher reads in its place, if it is another one: a prompt with a context, then the same loss tokens.
    pub taught: Option<Box<Sample>>,
    /// The record of a prompt that is to be completed, for rewards.
    pub row: Option<Arc<Row>>,
}

impl Sample {
    /// The row that a teacher reads.
    pub fn for_teacher(&self) -> &Sample {
        self.taught.as_deref().unwrap_or(self)
    }

    /// Number of loss tokens.
    pub fn loss_tokens(&self) -> usize {
        targets(&self.labels).count()
    }
}

/// The tokens to predict, in order. The first position is never predicted.
pub fn targets(labels: &[i32]) -> impl Iterator<Item = i32> {
    labels.iter().skip(1).copied().filter(|label| *label != IGNORE)
}

/// The part that a sample plays in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Side {
    /// An example to imitate.
    #[default]
    Example,
    /// The better answer of a pair. The worse one follows it.
    Chosen,
    /// The worse answer of a pair.
    Rejected,
    /// An answer that was rated good.
    Desirable,
    /// An answer that was rated bad.
    Undesirable,
}

impl Side {
    /// Whether the answer is a good one.
    pub fn is_good(self) -> bool {
        matches!(self, Side::Chosen | Side::Desirable)
    }

    /// Whether the answer is a bad one.
    pub fn is_bad(self) -> bool {
        matches!(self, Side::Rejected | Side::Undesirable)
    }

    /// The name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Side::Example => "example",
            Side::Chosen => "chosen",
            Side::Rejected => "rejected",
            Side::Desirable => "desirable",
            Side::Undesirable => "undesirable",
        }
    }
}
