//! Samples as token ids with labels, and their way into micro-batches and optimizer steps.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

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

impl Step {
    /// Builds a step from its plan: indices into `samples`, one list a micro-batch.
    pub fn new(samples: &[Sample], micro_batches: &[Vec<usize>]) -> Step {
        let pack = |indices: &Vec<usize>| MicroBatch::pack(indices.iter().map(|&i| &samples[i]));
        let micro_batches: Vec<MicroBatch> = micro_batches.iter().map(pack).collect();
        let loss_tokens = micro_batches.iter().map(|batch| batch.targets.len()).sum();
        Step { micro_batches, loss_tokens }
    }
}

/// How samples are grouped. A micro-batch has `batch_size` rows; a row is one sample or, with packing, as many as
/// fit into `max_seq_len` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Rows in a micro-batch, at least 1.
    pub batch_size: usize,
    /// Micro-batches in a step, at least 1.
    pub gradient_accumulation_steps: usize,
    /// Tokens in a row, and the longest sample.
    pub max_seq_len: usize,
    /// Whether a row holds several samples.
    pub packing: bool,
    /// Whether the order changes each epoch; else it is the file's.
    pub shuffle: bool,
    /// Seed of the order.
    pub seed: u64,
}

/// The samples of one step, as indices: a list for each micro-batch.
pub type StepPlan = Vec<Vec<usize>>;

/// Why an epoch cannot be planned.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// A setting of zero.
    #[error("{0} is 0, expected at least 1")]
    Zero(&'static str),
    /// A sample that fits no row.
    #[error("sample {index} has {length} tokens, more than max_seq_len = {max_seq_len}")]
    TooLong {
        /// Its index, from 0.
        index: usize,
        /// Its tokens.
        length: usize,
        /// The limit.
        max_seq_len: usize,
    },
}

/// Rows that one round of packing fills: enough to waste little, few enough to keep the order random.
const PACKING_ROWS: usize = 256;

impl Batching {
    /// The steps of epoch `epoch` over samples of `lengths` tokens: each sample exactly once, the last step maybe
    /// smaller. The samples of a step depend on `batch_size · gradient_accumulation_steps` alone, not on the factors.
    pub fn plan_epoch(&self, lengths: &[usize], epoch: u64) -> Result<Vec<StepPlan>, BatchError> {
        if self.batch_size == 0 {
            return Err(BatchError::Zero("batch_size"));
        }
        if self.gradient_accumulation_steps == 0 {
            return Err(BatchError::Zero("gradient_accumulation_steps"));
        }
        let max_seq_len = self.max_seq_len;
        if let Some((index, &length)) = lengths.iter().enumerate().find(|(_, length)| **length > max_seq_len)
        {
            return Err(BatchError::TooLong { index, length, max_seq_len });
        }

        // Two draws an epoch: the order of the samples, then that of the rows they were packed into.
        let draw = |n: usize, which: u64| match self.shuffle {
            true => permutation(n, self.seed, epoch.wrapping_mul(2).wrapping_add(which)),
            false => (0..n).collect(),
        };
        let order = draw(lengths.len(), 0);
        let rows: Vec<Vec<usize>> = if self.packing {
            let mut rows = pack_rows(&order, lengths, max_seq_len);
            if !self.shuffle {
                rows.sort_by_key(|row| row.iter().min().copied());
            }
            draw(rows.len(), 1).into_iter().map(|row| rows[row].clone()).collect()
        } else {
            order.into_iter().map(|sample| vec![sample]).collect()
        };
        let step_rows = self.batch_size.saturating_mul(self.gradient_accumulation_steps);
        let steps = rows.chunks(step_rows);
        Ok(steps.map(|step| step.chunks(self.batch_size).map(<[_]>::concat).collect()).collect())
    }
}

/// `0..n` in an order that depends on `seed` and `stream` alone, the same on every platform and in every release.
pub fn permutation(n: usize, seed: u64, stream: u64) -> Vec<usize> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(stream);
    let mut order: Vec<usize> = (0..n).collect();
    // Fisher–Yates; the high half of the product is uniform below i + 1 up to 2⁻⁶⁴·n.
    for i in (1..n).rev() {
        let j = (u128::from(rng.next_u64()) * (i as u128 + 1)) >> 64;
        order.swap(i, j as usize);
    }
    order
}

/// Fills rows of `capacity` tokens with samples, best fit decreasing, over rounds of [`PACKING_ROWS`] rows taken
/// from `order` one after another.
fn pack_rows(order: &[usize], lengths: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let total: usize = order.iter().map(|&sample| lengths[sample]).sum();
    let rounds = (total / capacity.saturating_mul(PACKING_ROWS).max(1)).max(1);
    let round_tokens = total.div_ceil(rounds);

    let mut rows: Vec<Vec<usize>> = Vec::new();
    let mut rest = order;
    while !rest.is_empty() {
        let mut tokens = 0;
        let reached = rest.iter().position(|&sample| {
            tokens += lengths[sample];
            tokens >= round_tokens
        });
        let (round, tail) = rest.split_at(reached.map_or(rest.len(), |last| last + 1));
        rest = tail;

        let mut round = round.to_vec();
        round.sort_by_key(|&sample| Reverse(lengths[sample])); // stable: equal lengths keep the random order
        let mut by_space: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for sample in round {
            let length = lengths[sample];
            let tightest = by_space.range(length..).next().map(|(&space, _)| space);
            let row = tightest.and_then(|space| {
                let open = by_space.get_mut(&space)?;
                let row = open.pop();
                if open.is_empty() {
                    by_space.remove(&space);
                }
                row
            });
            let row = row.unwrap_or_else(|| {
                rows.push(Vec::new());
                rows.len() - 1
            });
            rows[row].push(sample);
            by_space.entry(tightest.unwrap_or(capacity) - length).or_default().push(row);
        }
    }
    rows
}
