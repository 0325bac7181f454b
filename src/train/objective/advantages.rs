//! From the rewards of a step's completions to their advantages.
//!
//! Must match TRL 1.16: `GRPOTrainer._generate_and_score_completions` (trl/trainer/grpo_trainer.py).

use std::collections::BTreeMap;

/// Added to a standard deviation that divides.
const EPSILON: f64 = 1e-4;
/// Standard deviations up to this are 0, as in `torch.isclose`.
const CLOSE: f64 = 1e-8;

/// The standard deviation that divides differences from the mean of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRewards {
    /// That of the group.
    #[default]
    Group,
    /// That of all completions of the step.
    Batch,
    /// None.
    None,
}

/// The rewards of a step's completions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rewarded {
    /// The weighted sum of each completion; `None` where no reward judges it.
    pub rewards: Vec<Option<f64>>,
    /// The advantage of each completion; 0 where no reward judges it.
    pub advantages: Vec<f64>,
    /// Part of the completions whose standard deviation is 0.
    pub zero_std: f64,
}

impl Rewarded {
    /// Weighs `scores`, `[reward][completion]`, of groups of `generations` completions that follow one another.
    pub fn of(
        scores: &[Vec<Option<f64>>],
        weights: &[f64],
        generations: usize,
        scale: ScaleRewards,
    ) -> Rewarded {
        let rewards = totals(scores, weights);
        let of_all = deviation(&rewards);
        let (mut advantages, mut zero) = (Vec::with_capacity(rewards.len()), 0);
        for group in rewards.chunks(generations.max(1)) {
            let mean = mean(group);
            let deviation = if scale == ScaleRewards::Batch { of_all } else { deviation(group) };
            for reward in group {
                zero += usize::from(deviation.is_some_and(|deviation| deviation <= CLOSE));
                let difference = reward.zip(mean).map(|(reward, mean)| reward - mean);
                let advantage = match scale {
                    ScaleRewards::None => difference,
                    _ => difference.zip(deviation).map(|(difference, by)| difference / (by + EPSILON)),
                };
                advantages.push(advantage.unwrap_or(0.0));
            }
        }
        let zero_std = zero as f64 / rewards.len().max(1) as f64;
        Rewarded { rewards, advantages, zero_std }
    }

    /// The measurements that TRL reports, with those of each reward.
    pub fn metrics(&self, names: &[String], scores: &[Vec<Option<f64>>]) -> BTreeMap<String, f64> {
        let mut metrics = BTreeMap::from([("frac_reward_zero_std".to_owned(), self.zero_std)]);
        let mut add = |name: String, value: Option<f64>| metrics.extend(value.map(|value| (name, value)));
        add("reward".into(), mean(&self.rewards));
        add("reward_std".into(), deviation(&self.rewards));
        for (name, scores) in names.iter().zip(scores) {
            add(format!("rewards/{name}/mean"), mean(scores));
            add(format!("rewards/{name}/std"), deviation(scores));
        }
        metrics
    }
}

/// Sums the scores of each completion, `[reward][completion]`, times the weights; those that are `None` count as 0. `None` where no reward
/// applies.
pub fn totals(scores: &[Vec<Option<f64>>], weights: &[f64]) -> Vec<Option<f64>> {
    let count = scores.first().map_or(0, Vec::len);
    let total = |i: usize| {
        let own = scores.iter().zip(weights).filter_map(|(all, weight)| Some(all[i]? * weight));
        own.reduce(|sum, score| sum + score)
    };
    (0..count).map(total).collect()
}

/// The mean of the values that are there.
pub fn mean(values: &[Option<f64>]) -> Option<f64> {
    let count = values.iter().flatten().count();
    (count > 0).then(|| values.iter().flatten().sum::<f64>() / count as f64)
}

/// The standard deviation of the values that are there, with Bessel's correction; `None` for fewer than two.
fn deviation(values: &[Option<f64>]) -> Option<f64> {
    let (count, mean) = (values.iter().flatten().count(), mean(values)?);
    let squares: f64 = values.iter().flatten().map(|value| (value - mean) * (value - mean)).sum();
    (count > 1).then(|| (squares / (count - 1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_equal_rewards_has_no_advantages() {
        let scores = [vec![Some(1.0), Some(1.0), Some(0.0), Some(1.0)]];
        let found = Rewarded::of(&scores, &[2.0], 2, ScaleRewards::Group);
        assert_eq!((found.rewards[0], found.zero_std), (Some(2.0), 0.5));
        assert_eq!(found.advantages[..2], [0.0, 0.0]);
        let expected = 1.0 / (2f64.sqrt() + EPSILON);
        assert!((found.advantages[3] - expected).abs() < 1e-12, "{:?}", found.advantages);
        assert_eq!(found.advantages[2], -found.advantages[3]);
    }

    #[test]
    fn completions_that_no_reward_judges_are_left_out() {
        let scores = [vec![Some(1.0), None, Some(3.0), None], vec![None, None, Some(1.0), Some(4.0)]];
        let found = Rewarded::of(&scores, &[1.0, 0.5], 4, ScaleRewards::None);
        assert_eq!(found.rewards, [Some(1.0), None, Some(3.5), Some(2.0)]);
        let mean = 6.5 / 3.0;
        assert_eq!(found.advantages, [1.0 - mean, 0.0, 3.5 - mean, 2.0 - mean]);
    }
}
