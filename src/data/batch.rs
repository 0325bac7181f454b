//! Samples, grouped into micro-batches and optimizer steps.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub use super::micro_batch::MicroBatch;
pub use super::sample::{IGNORE, Sample, targets};
pub use super::step::{Compared, Comparison, Step};

/// Grouping of samples. A micro-batch has `batch_size` rows. A row is one sample or, with packing, as many samples as fit
/// into `max_seq_len` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Rows per micro-batch, at least 1.
    pub batch_size: usize,
    /// Micro-batches per step, at least 1.
    pub gradient_accumulation_steps: usize,
    /// Maximum tokens per row and per sample.
    pub max_seq_len: usize,
    /// Whether a row may hold several samples.
    pub packing: bool,
    /// Whether the order is shuffled every epoch. Otherwise it is the file's order.
    pub shuffle: bool,
    /// Seed of the order.
    pub seed: u64,
}

/// The samples of one step as indices, one list per micro-batch.
pub type StepPlan = Vec<Vec<usize>>;

/// The largest micro-batch and step that a trainer must have room for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capacity {
    /// Tokens in a micro-batch.
    pub tokens: usize,
    /// Tokens of its longest sample. It only affects which activations the memory plan keeps.
    pub longest: usize,
    /// Loss tokens in a micro-batch.
    pub loss_tokens: usize,
    /// Loss tokens in an optimizer step.
    pub step_loss_tokens: usize,
    /// Tokens of the longest prompt with its reply that an evaluation generates; 0 if none does.
    pub reply: usize,
    /// Bytes of a teacher's distribution of a loss token; 0 if there is no teacher.
    pub teacher: usize,
    /// Sequences that are generated at once.
    pub sequences: Together,
}

/// Sequences that are generated at once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Together {
    /// Their number; 0 if none are.
    pub count: usize,
    /// Tokens of the longest, with its prompt.
    pub context: usize,
    /// Whether training may take longer for the sake of more of them.
    pub comes_first: bool,
}

impl Capacity {
    /// Room for one token.
    pub const LEAST: Capacity = Capacity {
        tokens: 1,
        longest: 1,
        loss_tokens: 1,
        step_loss_tokens: 1,
        reply: 0,
        teacher: 0,
        sequences: Together { count: 0, context: 0, comes_first: false },
    };

    /// Grows to fit `step`.
    pub fn include(&mut self, step: &Step) {
        for batch in &step.micro_batches {
            self.tokens = self.tokens.max(batch.len());
            self.longest = self.longest.max(batch.longest());
            self.loss_tokens = self.loss_tokens.max(batch.loss_rows.len());
            let teacher = batch.teacher.as_ref().map_or(0, |rows| rows.row_bytes());
            self.teacher = self.teacher.max(teacher);
        }
        self.step_loss_tokens = self.step_loss_tokens.max(step.loss_tokens);
        for batch in step.comparison.iter().flat_map(|comparison| &comparison.mismatched) {
            self.include(&Step::of(batch.clone()));
        }
    }
}

/// Why an epoch cannot be planned.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// A setting that is zero.
    #[error("{0} is 0, expected at least 1")]
    Zero(&'static str),
    /// A sample that does not fit a row.
    #[error("sample {index} has {length} tokens, more than max_seq_len = {max_seq_len}")]
    TooLong {
        /// Index of the sample, from 0.
        index: usize,
        /// Number of tokens in the sample.
        length: usize,
        /// The limit.
        max_seq_len: usize,
    },
}

/// Number of rows that are packed at a time: enough to waste little, few enough to keep the order random.
const PACKING_ROWS: usize = 256;
/// Largest product of lengths, capacity and rows at which rows are filled one by one. That takes well under a second.
const MOST_PACKING_WORK: usize = 1 << 28;

impl Batching {
    /// The steps of epoch `epoch` for samples of `lengths` tokens. Each sample occurs exactly once; the last step may be
    /// smaller. The samples of a step depend only on the product `batch_size · gradient_accumulation_steps`, not on its
    /// factors.
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

        // Two draws per epoch: the order of the samples, and the order of the packed rows.
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

/// The samples of epoch `epoch`, as ascending indices: sample `i` occurs `weights[i]` times. If a weight has a fractional part,
/// each epoch takes that fraction of its samples, in turn, from an order drawn once from `seed`, so that all of them occur
/// equally often. With weights of 1, every sample occurs once.
pub fn draw(weights: &[f64], seed: u64, epoch: u64) -> Vec<usize> {
    let mut counts: Vec<usize> = weights.iter().map(|weight| *weight as usize).collect();
    let mut fractions: Vec<f64> = weights.iter().copied().filter(|w| w.fract() > 0.0).collect();
    fractions.sort_by(f64::total_cmp);
    fractions.dedup();
    for (group, weight) in fractions.into_iter().enumerate() {
        let members: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] == weight).collect();
        let n = members.len();
        let order = permutation(n, seed, MIXTURE - group as u64);
        // The end of the running sum over all earlier epochs, so that rounding errors cancel out.
        let end = |epochs: u64| (weight.fract() * n as f64 * epochs as f64).round() as usize;
        for position in end(epoch)..end(epoch + 1) {
            counts[members[order[position % n]]] += 1;
        }
    }
    let repeat = |(index, &count): (usize, &usize)| std::iter::repeat_n(index, count);
    counts.iter().enumerate().flat_map(repeat).collect()
}

/// The random stream of mixtures. Epochs use the streams from 0 on, the split uses the last one.
const MIXTURE: u64 = u64::MAX - 1;

/// A permutation of `0..n` that depends only on `seed` and `stream`. It is the same on every platform and in every release.
pub fn permutation(n: usize, seed: u64, stream: u64) -> Vec<usize> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(stream);
    let mut order: Vec<usize> = (0..n).collect();
    // Fisher–Yates. The high half of the product is uniform below i + 1, up to 2⁻⁶⁴·n.
    for i in (1..n).rev() {
        let j = (u128::from(rng.next_u64()) * (i as u128 + 1)) >> 64;
        order.swap(i, j as usize);
    }
    order
}

/// Packs samples into rows of `capacity` tokens, in rounds of [`PACKING_ROWS`] rows taken from `order` in turn: best fit
/// decreasing, or, if that wastes too much, row by row as full as possible.
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
        let best = best_fit(&round, lengths, capacity);
        let least = tokens.div_ceil(capacity.max(1));
        let wasteful = best.len() * 100 > least * 101;
        let full = if wasteful { fullest(&round, lengths, capacity) } else { None };
        rows.extend(full.filter(|full| full.len() < best.len()).unwrap_or(best));
    }
    rows
}

/// Best fit decreasing: each sample, longest first, goes into the row that it leaves the least room in.
fn best_fit(round: &[usize], lengths: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut rows: Vec<Vec<usize>> = Vec::new();
    let mut by_space: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &sample in round {
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
    rows
}

/// Row by row: the longest remaining sample, and the other samples that fill the row best (Gupta & Ho 1999, minimum bin slack).
/// This pays off if lengths are similar, so that best fit leaves a gap in every row; there are then few distinct lengths.
/// Returns `None` if there are so many that it would take long.
fn fullest(round: &[usize], lengths: &[usize], capacity: usize) -> Option<Vec<Vec<usize>>> {
    let mut left: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    round.iter().rev().for_each(|&sample| left.entry(lengths[sample]).or_default().push(sample));
    let tokens: usize = round.iter().map(|&sample| lengths[sample]).sum();
    let rows = tokens / capacity.max(1) + 1;
    if left.contains_key(&0) || left.len().saturating_mul(capacity).saturating_mul(rows) > MOST_PACKING_WORK {
        return None;
    }
    let mut rows = Vec::new();
    while let Some((&longest, _)) = left.last_key_value() {
        let mut row = vec![take(&mut left, longest)?];
        for length in fill(&left, capacity - longest) {
            row.push(take(&mut left, length)?);
        }
        rows.push(row);
    }
    Some(rows)
}

/// The lengths among `left` whose sum is closest to `space` without exceeding it.
fn fill(left: &BTreeMap<usize, Vec<usize>>, space: usize) -> Vec<usize> {
    // For each sum: the last length in it, and its count.
    let mut last: Vec<Option<(usize, usize)>> = vec![None; space + 1];
    last[0] = Some((0, 0));
    for (&length, samples) in left.range(..=space).rev() {
        for sum in length..=space {
            let count = match (last[sum], last[sum - length]) {
                (None, Some((same, count))) if same == length => count,
                (None, Some(_)) => 0,
                _ => continue,
            };
            if count < samples.len() {
                last[sum] = Some((length, count + 1));
            }
        }
        if last[space].is_some() {
            break;
        }
    }
    let mut sum = (0..=space).rev().find(|&sum| last[sum].is_some()).unwrap_or(0);
    let mut lengths = Vec::new();
    while let Some((length, _)) = last[sum].filter(|_| sum > 0) {
        lengths.push(length);
        sum -= length;
    }
    lengths
}

fn take(left: &mut BTreeMap<usize, Vec<usize>>, length: usize) -> Option<usize> {
    let samples = left.get_mut(&length)?;
    let sample = samples.pop();
    if samples.is_empty() {
        left.remove(&length);
    }
    sample
}
