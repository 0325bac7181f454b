//! How long a run takes: its steps, and the evaluations with replies among them.

use std::fmt;

use serde::Serialize;

use super::PreparedRun;
use crate::words::{self, counted};

/// Number of evaluations after the first `done` of `steps` steps, one every `every` steps and one after the last. That after step `done` itself
/// does not count.
pub fn evaluations_after(done: usize, every: usize, steps: usize) -> usize {
    let until = |step: usize| step.checked_div(every).unwrap_or(0);
    match done < steps {
        true => 1 + until(steps - 1) - until(done),
        false => 0,
    }
}

/// The work of a run, from which its time follows once the speed of the device is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Work {
    /// Tokens of all steps; where completions are drawn, as if each were as long as it may be.
    pub tokens: usize,
    /// Evaluations, with that before the first step and that after the last.
    pub evaluations: usize,
    /// Tokens of training that take about as long as one evaluation.
    pub evaluation_tokens: usize,
}

impl Work {
    /// The work of a run that evaluates every `every` steps, with replies of up to `reply` tokens.
    pub fn of(prepared: &PreparedRun, every: usize, reply: usize) -> Work {
        let (steps, samples) = (&prepared.steps, &prepared.data.train);
        let total = steps.plans.len();
        let validation = &prepared.data.validation;
        let evaluations = 1 + evaluations_after(0, every, total);
        let replies = prepared.replies();
        let Some(setup) = &prepared.grpo else {
            let validation = validation.iter().map(|sample| sample.ids.len()).sum();
            return Work {
                tokens: (0..total).map(|index| steps.tokens(samples, index)).sum(),
                evaluations,
                evaluation_tokens: evaluation_tokens(validation, replies, reply),
            };
        };
        let keys = &setup.keys;
        let prompts = steps.plans.iter().flatten().flatten();
        let group =
            |&prompt: &usize| keys.num_generations * (samples[prompt].ids.len() + keys.max_completion_length);
        Work {
            tokens: prompts.map(group).sum(),
            evaluations,
            evaluation_tokens: evaluation_tokens(0, validation.len(), keys.max_completion_length)
                + evaluation_tokens(0, replies, reply),
        }
    }
}

/// Tokens of training that take as long as one of a reply: 4 on a processor, 30 and more on a GPU, which trains many tokens at once.
const REPLY_TOKEN: usize = 16;
/// Tokens of training that take as long as forward passes over this many: the backward pass takes twice as long as the forward pass.
const FORWARD: usize = 3;

/// Tokens of training that take about as long as an evaluation.
pub fn evaluation_tokens(validation: usize, replies: usize, reply: usize) -> usize {
    validation / FORWARD + replies * reply * REPLY_TOKEN
}

/// The time that steps and evaluations take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Steps, and how long they take in seconds.
    pub steps: (usize, f64),
    /// Evaluations, and how long they take in seconds, where that is known.
    pub evaluations: (usize, Option<f64>),
    /// Whether an evaluation has replies.
    pub replies: bool,
}

impl Pace {
    /// Seconds of all that is known.
    pub fn seconds(&self) -> f64 {
        self.steps.1 + self.evaluations.1.unwrap_or(0.0)
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (steps, seconds) = self.steps;
        write!(f, "about {} for {}", estimate(seconds), counted(steps, "step"))?;
        let (count, seconds) = self.evaluations;
        let replies = if self.replies { " with replies" } else { "" };
        let evaluations = format!("{}{replies}", counted(count, "evaluation"));
        match seconds {
            _ if count == 0 => Ok(()),
            Some(seconds) => write!(f, ", and {} for {evaluations}", estimate(seconds)),
            None => write!(f, ", without {evaluations}"),
        }
    }
}

/// A rounded duration: `45 s`, `13 min`, `3 h 05 min`.
fn estimate(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.0} s"),
        s if s < 3600.0 => format!("{:.0} min", (s / 60.0).ceil()),
        s => words::duration(s, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_are_counted_as_the_loop_takes_them() {
        for (every, steps) in [(0, 72), (7, 72), (72, 72), (100, 72), (1, 3), (24, 72)] {
            for done in 0..=steps {
                let due = |step: &usize| *step == steps || (every > 0 && step.is_multiple_of(every));
                let expected = (done + 1..=steps).filter(due).count();
                assert_eq!(
                    evaluations_after(done, every, steps),
                    expected,
                    "{done} of {steps}, every {every}"
                );
            }
        }
    }

    #[test]
    fn the_estimate_counts_evaluations() {
        let pace = Pace { steps: (72, 1650.0), evaluations: (11, Some(810.0)), replies: true };
        assert_eq!(pace.to_string(), "about 28 min for 72 steps, and 14 min for 11 evaluations with replies");
        let pace = Pace { evaluations: (1, None), replies: false, ..pace };
        assert_eq!(pace.to_string(), "about 28 min for 72 steps, without 1 evaluation");
        let pace = Pace { steps: (1, 4.0), evaluations: (0, None), replies: false };
        assert_eq!(pace.to_string(), "about 4 s for 1 step");
    }
}
