//! Samples that are compared rather than imitated: pairs of a better and a worse answer, and answers that are rated.

use std::ops::Range;

pub use super::sample::Side;
use super::sample::{IGNORE, Sample};

/// Kinds of records that a dataset can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supervision {
    /// Examples to imitate.
    #[default]
    Examples,
    /// Pairs of a better and a worse answer.
    Pairs,
    /// Rated answers. A pair is a good and a bad one.
    Ratings,
    /// Prompts to complete.
    Prompts,
}

/// The samples that belong together, as ranges of indices: the two sides of a pair, or a single sample.
pub fn units(samples: &[Sample]) -> Vec<Range<usize>> {
    let mut units: Vec<Range<usize>> = Vec::with_capacity(samples.len());
    for (index, sample) in samples.iter().enumerate() {
        match units.last_mut() {
            Some(unit) if sample.side == Side::Rejected => unit.end = index + 1,
            _ => units.push(index..index + 1),
        }
    }
    units
}

/// Each sample's prompt with the answer of another sample, from which KTO estimates how far the model has moved.
///
/// As in TRL (`KTOTrainer._prepare_dataset`), answers move on by one within blocks of `block` samples. An answer to the same
/// prompt is passed over if the block has others. A result longer than `longest` is cut, and is empty if nothing of the answer
/// is left.
pub fn mismatched(samples: &[Sample], block: usize, longest: usize) -> Vec<Sample> {
    let blocks = samples.chunks(block.max(2));
    blocks.flat_map(|block| (0..block.len()).map(|index| mismatch(block, index, longest))).collect()
}

fn mismatch(block: &[Sample], index: usize, longest: usize) -> Sample {
    let sample = &block[index];
    let prompt = prompt(sample);
    let before = (1..block.len()).map(|distance| &block[(index + block.len() - distance) % block.len()]);
    let last = &block[(index + block.len() - 1) % block.len()];
    let other = before.into_iter().find(|other| self::prompt(other) != prompt).unwrap_or(last);
    let answer = self::prompt(other).len()..other.ids.len();
    let mut ids = [prompt, &other.ids[answer.clone()]].concat();
    let mut labels = vec![IGNORE; prompt.len()];
    labels.extend(&other.labels[answer]);
    ids.truncate(longest);
    labels.truncate(longest);
    if labels.iter().skip(1).all(|label| *label == IGNORE) {
        (ids, labels) = (Vec::new(), Vec::new());
    }
    Sample { ids, labels, origin: sample.origin.clone(), side: sample.side, taught: None, row: None }
}

/// The tokens before the answer.
pub fn prompt(sample: &Sample) -> &[u32] {
    let answer = sample.labels.iter().skip(1).position(|label| *label != IGNORE);
    &sample.ids[..answer.map_or(sample.ids.len(), |answer| answer + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(prompt: u32, answer: u32, side: Side) -> Sample {
        let (ids, labels) = (vec![1, prompt, answer], vec![IGNORE, IGNORE, answer as i32]);
        Sample { ids, labels, origin: String::new(), side, taught: None, row: None }
    }

    #[test]
    fn a_rejected_answer_belongs_to_the_chosen_one_before_it() {
        let of = |sides: &[Side]| units(&sides.iter().map(|&side| sample(2, 3, side)).collect::<Vec<_>>());
        assert_eq!(of(&[Side::Chosen, Side::Rejected, Side::Chosen, Side::Rejected]), [0..2, 2..4]);
        assert_eq!(of(&[Side::Desirable, Side::Undesirable, Side::Example]), [0..1, 1..2, 2..3]);
    }

    #[test]
    fn answers_move_on_by_one_within_a_block() {
        let samples: Vec<Sample> = (0..5).map(|n| sample(10 + n, 20 + n, Side::Desirable)).collect();
        let ids = |block, longest| {
            let found = mismatched(&samples, block, longest).into_iter();
            found.map(|sample| sample.ids).collect::<Vec<_>>()
        };
        assert_eq!(ids(4, 9), [[1, 10, 23], [1, 11, 20], [1, 12, 21], [1, 13, 22], [1, 14, 24]]);
        assert_eq!(ids(4, 2), [[]; 5] as [[u32; 0]; 5], "nothing of the answer is left");
        let same =
            [sample(7, 1, Side::Desirable), sample(7, 2, Side::Undesirable), sample(8, 3, Side::Desirable)];
        let found: Vec<u32> = mismatched(&same, 3, 9).iter().map(|sample| sample.ids[2]).collect();
        assert_eq!(found, [3, 3, 2]);
    }
}
