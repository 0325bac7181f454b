//! Samples as token ids with labels, packed into micro-batches and optimizer steps.

/// A label that carries no loss, as in transformers and PyTorch's `ignore_index`.
pub const IGNORE: i32 = -100;

/// One tokenized sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Token ids.
    pub ids: Vec<u32>,
    /// One label under each token: the id that position `t - 1` must predict, or [`IGNORE`]. `labels[0]` is never used.
    pub labels: Vec<i32>,
    /// Where it came from, for messages: `datasets/pirate.jsonl line 12`.
    pub origin: String,
}

impl Sample {
    /// How many positions carry loss.
    pub fn loss_tokens(&self) -> usize {
        self.labels.iter().skip(1).filter(|&&l| l != IGNORE).count()
    }
}

/// The tokens of one forward and backward pass: samples one after another, without padding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroBatch {
    /// Token ids, `[T]`.
    pub tokens: Vec<u32>,
    /// Position inside the own sample, `[T]`.
    pub positions: Vec<u32>,
    /// Row of the first token of the own sample, `[T]`.
    pub starts: Vec<u32>,
    /// One past the row of the last token of the own sample, `[T]`.
    pub ends: Vec<u32>,
    /// Rows whose next token carries loss, ascending, `[N]`.
    pub loss_rows: Vec<u32>,
    /// The id that each of those rows must predict, `[N]`.
    pub targets: Vec<u32>,
}

impl MicroBatch {
    /// Lays samples one after another.
    pub fn pack<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> MicroBatch {
        let mut batch = MicroBatch::default();
        for sample in samples {
            let start = batch.tokens.len() as u32;
            let end = start + sample.ids.len() as u32;
            batch.tokens.extend(&sample.ids);
            batch.positions.extend(0..end - start);
            batch.starts.resize(end as usize, start);
            batch.ends.resize(end as usize, end);
            for (t, &label) in sample.labels.iter().enumerate().skip(1).filter(|(_, l)| **l != IGNORE) {
                batch.loss_rows.push(start + t as u32 - 1);
                batch.targets.push(label as u32);
            }
        }
        batch
    }

    /// Tokens `T`.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it holds no token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// The micro-batches of one optimizer step. Its loss is the mean over `loss_tokens`, whatever the split.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What is run forward and backward before the optimizer moves.
    pub micro_batches: Vec<MicroBatch>,
    /// Loss-carrying positions in all of them.
    pub loss_tokens: usize,
}
