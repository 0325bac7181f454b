//! Warnings about runs that learn from rewards.

use crate::run::metrics::{History, StepMetrics};

/// Steps that are looked back on.
const STEPS: usize = 5;
/// Part of the completions that were cut, from which on a warning is due.
const CUT: f64 = 0.5;
/// Fall of the held-out reward below its best, from which on a warning is due.
const FALLEN: f64 = 0.05;

/// The advice where all rewards are equal.
pub const SPREAD: &str = "raise grpo.temperature or grpo.num_generations, or choose prompts that the model gets right now and then";

const EQUAL: &str = "the rewards of every prompt were equal";
const LONG: &str = "most completions were cut";
const APART: &str = "the reward rises in training, and falls on validation prompts";

/// Warnings that are due after the last step of `history`, each once in a run.
pub fn after_step(history: &History) -> Vec<String> {
    let steps: Vec<&StepMetrics> = history.steps().collect();
    let last = &steps[steps.len().saturating_sub(STEPS)..];
    let all = |name: &str, is: &dyn Fn(f64) -> bool| {
        last.len() == STEPS && last.iter().all(|step| step.rewards.get(name).is_some_and(|value| is(*value)))
    };
    let mut warnings = Vec::new();
    if all("frac_reward_zero_std", &|part| part >= 1.0) && !told(history, EQUAL) {
        warnings.push(format!("{EQUAL} in each of the last {STEPS} steps, so nothing is learnt: {SPREAD}"));
    }
    if all("completions/clipped_ratio", &|part| part > CUT) && !told(history, LONG) {
        warnings.push(format!(
            "{LONG} at grpo.max_completion_length in each of the last {STEPS} steps: raise it, or reward shorter ones"
        ));
    }
    warnings
}

/// A warning that is due after the last evaluation of `history`, once in a run: training finds rewards that do not count elsewhere.
pub fn after_evaluation(history: &History) -> Option<String> {
    let held_out: Vec<(usize, f64)> =
        history.evaluations().filter_map(|e| Some((e.step, e.reward()?))).collect();
    let &(now, last) = held_out.last()?;
    let &(best, highest) = held_out.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let mean = |from: usize, to: usize| {
        let steps = history.steps().filter(|step| step.step > from && step.step <= to);
        let rewards: Vec<f64> = steps.filter_map(|step| step.rewards.get("reward").copied()).collect();
        (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64)
    };
    let before = held_out.iter().rev().find(|(step, _)| *step < best).map_or(0, |(step, _)| *step);
    let rises = mean(best, now)? > mean(before, best)?;
    (rises && last < highest - FALLEN && !told(history, APART)).then(|| {
        format!(
            "{APART}: it was {highest:.3} there after step {best}, and is {last:.3}; the model may have found a way to please the rewards alone: \
             read rollouts.jsonl, and keep the best adapter with eval.keep_best"
        )
    })
}

fn told(history: &History, beginning: &str) -> bool {
    history.notices().any(|notice| notice.notice.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::run::metrics::{Evaluation, MetricsEvent, RunNotice};
    use crate::train::StepReport;

    fn step(number: usize, rewards: &[(&str, f64)]) -> MetricsEvent {
        let rewards = rewards.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let report = StepReport {
            loss: 0.0,
            accuracy: 1.0,
            grad_norm: 0.0,
            update_ratio: 0.0,
            preference: Default::default(),
            rewards,
        };
        MetricsEvent::Step(StepMetrics::taken(number, &report, 1e-4, 8))
    }

    fn evaluation(step: usize, reward: f64) -> MetricsEvent {
        let preference = BTreeMap::from([("eval_reward".to_owned(), reward)]);
        MetricsEvent::Evaluation(Evaluation { step, preference, ..Evaluation::default() })
    }

    #[test]
    fn equal_rewards_are_told_once() {
        let mut history = History::default();
        for number in 1..STEPS {
            history.push(step(number, &[("frac_reward_zero_std", 1.0)]));
            assert!(after_step(&history).is_empty());
        }
        history.push(step(STEPS, &[("frac_reward_zero_std", 1.0)]));
        let warnings = after_step(&history);
        assert!(warnings.len() == 1 && warnings[0].starts_with(EQUAL), "{warnings:?}");
        history.push(MetricsEvent::Notice(RunNotice { step: STEPS, notice: warnings[0].clone() }));
        assert!(after_step(&history).is_empty());
    }

    #[test]
    fn rewards_that_count_nowhere_else_are_told() {
        let mut history = History::default();
        for event in [evaluation(0, 0.2), step(1, &[("reward", 0.3)]), evaluation(1, 0.5)] {
            history.push(event);
        }
        history.push(step(2, &[("reward", 0.9)]));
        history.push(evaluation(2, 0.48));
        assert_eq!(after_evaluation(&history), None, "it has hardly fallen");
        history.push(step(3, &[("reward", 0.9)]));
        history.push(evaluation(3, 0.3));
        assert!(after_evaluation(&history).is_some_and(|text| text.starts_with(APART)));
    }
}
