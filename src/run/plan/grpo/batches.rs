//! The steps of a run that learns from rewards.

use std::collections::BTreeMap;

use super::draw::{self, Drawn, draw};
use super::judge::{Scores, judge};
use super::kept::Kept;
use super::lengths::lengths;
use super::logps::logps;
use super::setup::{Setup, row, with_completion};
use crate::adapter::lora::Adapter;
use crate::data::batch::{Capacity, MicroBatch, Sample, Step};
use crate::data::rollout::Rollout;
use crate::run::plan::batches::{Batches, Evaluated, Hear, NextStep};
use crate::run::plan::phase::Phase;
use crate::run::plan::rollout_line::RolloutLine;
use crate::run::{OpenBase, PreparedRun};
use crate::talk::rollouts::Request;
use crate::talk::sampling::Sampling;
use crate::train::objective::advantages::Rewarded;
use crate::train::{TrainError, Trainer};

/// The steps of a run that learns from rewards: each is drawn and judged when its turn comes.
pub struct Learning<'a> {
    setup: &'a Setup,
    base: &'a OpenBase,
    prepared: &'a PreparedRun,
    initial: &'a Adapter,
    current: Option<Generation>,
}

/// The completions that some steps in a row train on.
struct Generation {
    /// Its number, from 0.
    index: usize,
    kept: Kept,
    step: Step,
    lines: Vec<RolloutLine>,
    /// Whether the lines were told.
    told: bool,
}

impl<'a> Learning<'a> {
    /// The steps of `prepared`. `initial` is the adapter that training starts from, the reference.
    pub fn new(
        setup: &'a Setup,
        base: &'a OpenBase,
        prepared: &'a PreparedRun,
        initial: &'a Adapter,
    ) -> Learning<'a> {
        Learning { setup, base, prepared, initial, current: None }
    }

    /// The completions of the first prompt of the first step, with their rewards. None if the user asked to stop.
    pub async fn first_group(
        &mut self,
        trainer: &Trainer<'_>,
        hear: Hear<'_>,
    ) -> Result<Vec<RolloutLine>, TrainError> {
        let first = self.prepared.steps.plans[0].iter().flatten().copied().take(1).collect();
        Ok(self.generate(0, first, trainer, hear).await?.map(|drawn| drawn.lines).unwrap_or_default())
    }

    async fn decide(
        &mut self,
        index: usize,
        trainer: &Trainer<'_>,
        hear: Hear<'_>,
    ) -> Result<Option<Step>, TrainError> {
        let iterations = self.setup.keys.num_iterations;
        let (generation, iteration) = (index / iterations, index % iterations);
        if self.current.as_ref().is_none_or(|current| current.index != generation) {
            let prompts = self.prepared.steps.plans[index - iteration].iter().flatten().copied().collect();
            let drawn = self.generate(generation, prompts, trainer, hear).await?;
            let Some(drawn) = drawn else { return Ok(None) };
            self.current = Some(drawn);
        }
        let current = self.current.as_mut().expect("drawn above");
        current.told = iteration > 0;
        let mut step = current.step.clone();
        if iteration > 0 {
            deal(&mut step.rollouts, &current.kept.old(), |rollout, old| rollout.old = old);
        }
        Ok(Some(step))
    }

    /// Draws and judges completions of `prompts` for generation `index`. `None` if the user asked to stop.
    async fn generate(
        &self,
        index: usize,
        prompts: Vec<usize>,
        trainer: &Trainer<'_>,
        hear: Hear<'_>,
    ) -> Result<Option<Generation>, TrainError> {
        let keys = &self.setup.keys;
        let samples = &self.prepared.data.train;
        let requests: Vec<Request> = (prompts.iter())
            .flat_map(|&prompt| (0..keys.num_generations).map(move |number| (prompt, number)))
            .map(|(prompt, number)| self.request(&samples[prompt], Some((index, prompt, number))))
            .collect();
        let all = (&requests[..], keys.num_generations);
        let Some(drawn) = draw(trainer, self.base, self.initial, all, hear).await? else { return Ok(None) };
        if !hear(Phase::Rewards, 0, drawn.len()) && trainer.ranks().size() == 1 {
            return Ok(None);
        }
        let each =
            prompts.iter().flat_map(|&prompt| std::iter::repeat_n(&samples[prompt], keys.num_generations));
        let each: Vec<&Sample> = each.collect();
        let scores = judge(self.setup, self.base, trainer.ranks(), &each, &drawn)?;
        let (names, weights) = self.rewards();
        let rewarded = Rewarded::of(&scores, &weights, keys.num_generations, keys.scale_rewards);
        let mut metrics = rewarded.metrics(&names, &scores);
        metrics.extend(lengths(&drawn));
        let mut kept = Kept::new(index, prompts, drawn, &rewarded.advantages, metrics);
        let mut step = self.step(&kept);
        if keys.beta != 0.0 {
            kept.set_reference(&logps(trainer, &step.micro_batches, Some(&self.initial.pairs)).await?);
            deal(&mut step.rollouts, &kept.reference(), |rollout, reference| rollout.reference = reference);
        }
        if keys.num_iterations > 1 {
            kept.set_old(&logps(trainer, &step.micro_batches, None).await?);
        }
        let lines =
            self.lines(index * keys.num_iterations + 1, (&each, &kept.drawn), (&names, &scores), &rewarded);
        Ok(Some(Generation { index, kept, step, lines, told: false }))
    }

    fn rewards(&self) -> (Vec<String>, Vec<f64>) {
        let rewards = self.setup.rewards.lock().expect("lock is not poisoned");
        (rewards.names(), rewards.weights())
    }

    /// A completion of `sample` to be drawn; the likeliest one where it has no number.
    fn request(&self, sample: &Sample, number: Option<(usize, usize, usize)>) -> Request {
        let keys = &self.setup.keys;
        let sampling = match number {
            None => Sampling::GREEDY,
            Some((step, prompt, number)) => Sampling {
                temperature: keys.temperature,
                top_k: keys.top_k,
                top_p: keys.top_p,
                seed: draw::seed(self.setup.seed, step, prompt, number),
                ..Sampling::GREEDY
            },
        };
        Request { prompt: sample.ids.clone(), sampling, max_new_tokens: keys.max_completion_length }
    }

    /// The micro-batches of completions that were drawn.
    fn step(&self, kept: &Kept) -> Step {
        let samples = &self.prepared.data.train;
        let each = kept.drawn.iter().enumerate().map(|(i, drawn)| {
            let prompt = &samples[kept.prompts[i / self.setup.keys.num_generations]];
            with_completion(&prompt.ids, &drawn.ids, &prompt.origin)
        });
        let each: Vec<Sample> = each.collect();
        let micro_batches: Vec<MicroBatch> =
            each.chunks(self.setup.batch_size).map(MicroBatch::pack).collect();
        let loss_tokens = micro_batches.iter().map(|batch| batch.targets.len()).sum();
        let masks = self.setup.keys.mask_truncated_completions;
        let rollouts = kept.drawn.iter().zip(kept.advantages()).map(|(drawn, advantage)| Rollout {
            advantage,
            counts: drawn.finished || !masks,
            sampled: drawn.logprobs(),
            ..Rollout::default()
        });
        let mut rollouts: Vec<Rollout> = rollouts.collect();
        deal(&mut rollouts, &kept.reference(), |rollout, reference| rollout.reference = reference);
        Step { rollouts, micro_batches, loss_tokens, ..Step::default() }
    }

    fn lines(
        &self,
        step: usize,
        (prompts, drawn): (&[&Sample], &[Drawn]),
        (names, scores): (&[String], &Scores),
        rewarded: &Rewarded,
    ) -> Vec<RolloutLine> {
        let line = |(i, drawn): (usize, &Drawn)| RolloutLine {
            step,
            sample: prompts[i].origin.clone(),
            prompt: row(prompts[i]).prompt.clone(),
            completion: drawn.text(self.base),
            tokens: drawn.ids.len(),
            finished: drawn.finished,
            rewards: names.iter().cloned().zip(scores.iter().map(|scores| scores[i].into())).collect(),
            reward: rewarded.rewards[i],
            advantage: rewarded.advantages[i],
        };
        drawn.iter().enumerate().map(line).collect()
    }

    /// The rewards of the likeliest completion of every validation prompt.
    async fn examine(
        &self,
        trainer: &Trainer<'_>,
        hear: Hear<'_>,
    ) -> Result<Option<BTreeMap<String, f64>>, TrainError> {
        let samples: Vec<&Sample> = self.prepared.data.validation.iter().collect();
        if samples.is_empty() {
            return Ok(Some(BTreeMap::new()));
        }
        let requests: Vec<Request> = samples.iter().map(|sample| self.request(sample, None)).collect();
        // They are no part of a step.
        let mut hear = |_: Phase, done: usize, of: usize| hear(Phase::Validation, done, of);
        let Some(drawn) = draw(trainer, self.base, self.initial, (&requests, 1), &mut hear).await? else {
            return Ok(None);
        };
        let scores = judge(self.setup, self.base, trainer.ranks(), &samples, &drawn)?;
        let (names, weights) = self.rewards();
        let rewarded = Rewarded::of(&scores, &weights, drawn.len(), self.setup.keys.scale_rewards);
        let mut metrics = rewarded.metrics(&names, &scores);
        metrics.remove("frac_reward_zero_std");
        metrics.extend(lengths(&drawn));
        Ok(Some(metrics.into_iter().map(|(name, value)| (format!("eval_{name}"), value)).collect()))
    }
}

impl Batches for Learning<'_> {
    fn steps(&self) -> usize {
        self.prepared.steps.plans.len()
    }

    fn next<'s>(&'s mut self, index: usize, trainer: &'s Trainer<'_>, hear: Hear<'s>) -> NextStep<'s> {
        Box::pin(self.decide(index, trainer, hear))
    }

    fn known(&self, _: usize) -> Option<Step> {
        None
    }

    fn bound(&self) -> Capacity {
        let mut capacity = Capacity::LEAST;
        self.setup.include(&mut capacity);
        capacity
    }

    fn largest(&self) -> Vec<MicroBatch> {
        vec![self.setup.largest()]
    }

    fn state(&self, index: usize) -> Option<String> {
        let iterations = self.setup.keys.num_iterations;
        let current = self.current.as_ref().filter(|current| current.index == index / iterations)?;
        (!index.is_multiple_of(iterations)).then(|| current.kept.to_text())
    }

    fn restore(&mut self, state: &str) -> Result<(), String> {
        let (samples, generations) = (self.prepared.data.train.len(), self.setup.keys.num_generations);
        let kept = Kept::from_text(state, samples, generations)?;
        let step = self.step(&kept);
        self.current = Some(Generation { index: kept.index, kept, step, lines: Vec::new(), told: true });
        Ok(())
    }

    fn evaluate<'s>(&'s mut self, trainer: &'s Trainer<'_>, hear: Hear<'s>) -> Evaluated<'s> {
        Box::pin(self.examine(trainer, hear))
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        self.current.as_ref().map(|current| current.kept.metrics()).unwrap_or_default()
    }

    fn lines(&self) -> &[RolloutLine] {
        match &self.current {
            Some(current) if !current.told => &current.lines,
            _ => &[],
        }
    }
}

/// Gives each completion its part of `values`, one for each token. Does nothing where there are none.
fn deal(rollouts: &mut [Rollout], values: &[f32], give: impl Fn(&mut Rollout, Vec<f32>)) {
    let mut rest = values;
    for rollout in rollouts.iter_mut().filter(|_| !values.is_empty()) {
        let (own, others) = rest.split_at(rollout.tokens());
        rest = others;
        give(rollout, own.to_vec());
    }
}
