//! Splits samples into training and validation.

use super::error::{DatasetError, Problem};
use crate::data::batch::{Sample, permutation};
use crate::data::compare::units;

/// The random stream of the split; epochs use other streams.
const STREAM: u64 = u64::MAX;

/// Training and validation samples, each in their original order.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// Samples to train on.
    pub train: Vec<Sample>,
    /// Samples to validate on.
    pub validation: Vec<Sample>,
    /// Indices of the training samples, ascending.
    pub kept: Vec<usize>,
}

/// Moves a random part of the samples to validation. `val_size`: a fraction below 1 (rounded to at least one sample), or a
/// count. A pair counts as one and stays together. The same samples, size and seed give the same split on every machine. Both sides get at least one sample.
pub fn split(samples: Vec<Sample>, val_size: f64, seed: u64) -> Result<Split, DatasetError> {
    let held_out = held_out(&samples, val_size, seed)?;
    let kept = (0..samples.len()).filter(|&index| !held_out[index]).collect();
    let mut split = Split { train: Vec::new(), validation: Vec::new(), kept };
    for (sample, held_out) in samples.into_iter().zip(held_out) {
        if held_out { split.validation.push(sample) } else { split.train.push(sample) }
    }
    Ok(split)
}

/// Whether [`split`] moves each sample to validation.
pub fn held_out(samples: &[Sample], val_size: f64, seed: u64) -> Result<Vec<bool>, DatasetError> {
    let units = units(samples);
    let n = units.len();
    let wanted = if val_size < 1.0 { (val_size * n as f64).round().max(1.0) } else { val_size };
    // Written so that NaN fails too.
    if !(val_size > 0.0 && wanted.fract() == 0.0 && wanted < n as f64) {
        return Err(Problem::ValSize { val_size, samples: n }.at("data.train"));
    }
    let mut held_out = vec![false; samples.len()];
    for unit in permutation(n, seed, STREAM).into_iter().take(wanted as usize) {
        held_out[units[unit].clone()].fill(true);
    }
    Ok(held_out)
}
