//! Rewards of a completion's tokens: their number, and repetition.

use std::collections::HashSet;

use super::{Completion, Judge, RewardError, Values};
use crate::recipe::LengthReward;

/// The reward `length`.
pub(super) struct Length(pub LengthReward);

impl Judge for Length {
    fn score(&mut self, completions: &[Completion<'_>]) -> Result<Values, RewardError> {
        Ok(completions.iter().map(|completion| Some(length(&self.0, completion.ids.len()))).collect())
    }
}

/// The reward of `tokens` tokens.
fn length(form: &LengthReward, tokens: usize) -> f64 {
    match *form {
        LengthReward::Overlong { max_completion_len, soft_punish_cache } => {
            let free = max_completion_len.saturating_sub(soft_punish_cache);
            if tokens <= free {
                0.0
            } else if tokens <= max_completion_len {
                (free as f64 - tokens as f64) / soft_punish_cache as f64
            } else {
                -1.0
            }
        }
        LengthReward::Target { target_len } => {
            let distance = tokens.abs_diff(target_len) as f64 / target_len.max(1) as f64;
            (1.0 - distance).max(0.0)
        }
    }
}

/// The reward `repetition`.
pub(super) struct Repetition {
    pub ngram_size: usize,
    pub max_penalty: f64,
}

impl Judge for Repetition {
    fn score(&mut self, completions: &[Completion<'_>]) -> Result<Values, RewardError> {
        let value =
            |completion: &Completion<'_>| Some(self.max_penalty * repeated(completion.ids, self.ngram_size));
        Ok(completions.iter().map(value).collect())
    }
}

/// The share of n-grams that occurred before; 0 where there are none.
fn repeated(ids: &[u32], size: usize) -> f64 {
    let total = (ids.len() + 1).saturating_sub(size.max(1));
    if total == 0 {
        return 0.0;
    }
    let unique: HashSet<&[u32]> = ids.windows(size.max(1)).collect();
    1.0 - unique.len() as f64 / total as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of TRL 0.27's `get_soft_overlong_punishment(100, 20)`.
    #[test]
    fn long_completions_cost_what_they_cost_in_trl() {
        let form = LengthReward::Overlong { max_completion_len: 100, soft_punish_cache: 20 };
        for (tokens, expected) in [
            (0, 0.0),
            (50, 0.0),
            (80, 0.0),
            (81, -0.05),
            (90, -0.5),
            (100, -1.0),
            (101, -1.0),
            (usize::MAX, -1.0),
        ] {
            assert_eq!(length(&form, tokens), expected, "{tokens}");
        }
        let sharp = LengthReward::Overlong { max_completion_len: 100, soft_punish_cache: 0 };
        assert_eq!([100, 101].map(|tokens| length(&sharp, tokens)), [0.0, -1.0]);
        let whole = LengthReward::Overlong { max_completion_len: 4, soft_punish_cache: 4 };
        assert_eq!([0, 1, 4].map(|tokens| length(&whole, tokens)), [0.0, -0.25, -1.0]);
    }

    #[test]
    fn a_target_is_best() {
        let form = LengthReward::Target { target_len: 10 };
        for (tokens, expected) in [(0, 0.0), (5, 0.5), (10, 1.0), (15, 0.5), (20, 0.0), (usize::MAX, 0.0)] {
            assert_eq!(length(&form, tokens), expected, "{tokens}");
        }
    }

    /// Values of TRL 0.27's `get_repetition_penalty_reward(3, -1.0)`.
    #[test]
    fn repetition_costs_what_it_costs_in_trl() {
        let cases: [(&[u32], f64); 7] = [
            (&[], 0.0),
            (&[1, 2], 0.0),
            (&[1, 2, 3], 0.0),
            (&[1, 2, 3, 4, 5], 0.0),
            (&[7, 7, 7, 7], 0.5),
            (&[1, 2, 3, 1, 2, 3], 0.25),
            (&[7; 102], 0.99),
        ];
        for (ids, expected) in cases {
            assert!((repeated(ids, 3) - expected).abs() < 1e-12, "{ids:?}: {}", repeated(ids, 3));
        }
        assert_eq!(repeated(&[1, 1], usize::MAX), 0.0);
        assert_eq!(repeated(&[5, 5, 6], 1), 1.0 - 2.0 / 3.0);
    }
}
