//! Settings that follow from the samples and the base.

use super::SEED;
use super::hub::Hub;
use crate::data::batch::{Batching, Sample};
use crate::data::compare::{self, Supervision};
use crate::data::dataset::{self, Container, Notice, What};
use crate::recipe::ObjectiveName;
use crate::run::OpenBase;
use crate::run::pace::evaluation_tokens;
use crate::run::plan::advice::FEW_STEPS;
use crate::words;

/// Settings of a recipe, and the counts that they follow from.
pub struct Fit {
    /// The objective that the samples are for.
    pub objective: ObjectiveName,
    /// Number of samples, or of pairs.
    pub samples: usize,
    /// Number of samples, where a pair is two.
    sides: usize,
    /// Number of their tokens.
    pub tokens: usize,
    /// Number of tokens that are left once long samples are cut off or left out.
    used: usize,
    /// Tokens of the longest sample.
    pub longest: usize,
    /// Tokens per row.
    pub max_seq_len: usize,
    /// Number of samples that are longer than `max_seq_len`.
    pub overlong: usize,
    /// Rows per step.
    pub accumulation: usize,
    /// Passes over the samples.
    pub epochs: usize,
    /// Steps of a pass.
    epoch_steps: usize,
    /// Samples to hold out for validation: a fraction or a number.
    pub val_size: &'static str,
    /// Tokens to hold out for validation, about.
    held_out: usize,
    /// Peak learning rate.
    pub learning_rate: String,
    /// Whether the base is the built-in model.
    pub tiny: bool,
    /// The base's repository.
    pub(super) hub: Option<Hub>,
    context: usize,
}

/// Tokens per step to aim at.
const STEP_TOKENS: usize = 4096;
/// Minimum number of steps per run to aim at: about as many as teach a style.
const LEAST_STEPS: usize = 60;
/// Number of passes over the samples, at least and at most. More of them are needed if the samples are few.
const EPOCHS: [usize; 2] = [3, 8];
/// Minimum and maximum number of passes over pairs and ratings, which are learned by heart sooner.
const PREFERENCE_EPOCHS: [usize; 2] = [1, 3];
/// Number of times that samples are shown in all, where they are so few that a pass is a step or two.
const SHOWN: usize = 480;
/// Runs of fewer steps than this without validation samples evaluate at their ends only: their replies would take longer than their steps.
const BRIEF_RUN: usize = 100;
/// Row length to suggest, at least and at most: longer rows need more memory than small GPUs have.
const ROW: [usize; 2] = [128, 2048];
/// Row length to suggest at most if many samples are longer than that.
const LONGEST_ROW: usize = 8192;
/// Runs of more steps than this learn with a lower learning rate.
const SHORT_RUN: usize = 1000;
/// Peak learning rate for a base of [`USUAL_SIZE`] values or more, in axolotl and unsloth too.
const USUAL_RATE: f64 = 2e-4;
/// Number of values from which on a base takes [`USUAL_RATE`].
const USUAL_SIZE: f64 = 1.2e9;
/// Highest peak to propose: what a learning-rate test found for 135 million values.
const HIGHEST_RATE: f64 = 6e-4;
/// Part of a run that its evaluations may take.
const EVALUATIONS: f64 = 0.1;
/// Most evaluations to propose, besides that before the first step.
const MOST_EVALUATIONS: usize = 10;
/// Evaluations with which the best adapter is not only one of the ends.
const USEFUL_EVALUATIONS: usize = 4;
/// Number of prompts and length of their replies, from the best to the least.
const REPLIES: [[usize; 2]; 4] = [[3, 64], [3, 32], [2, 32], [1, 32]];

impl Fit {
    /// Settings for `samples`, of which there is at least one.
    pub fn of(samples: &[Sample], objective: ObjectiveName, frozen: &OpenBase) -> Fit {
        let context = frozen.base.config().context_length;
        let mut lengths: Vec<usize> =
            samples.iter().flat_map(|sample| parts(sample, ROW[1].min(context))).collect();
        lengths.sort_unstable();
        let longest = lengths[lengths.len() - 1];
        let median = lengths[lengths.len() / 2];
        let most = if lengths[lengths.len() * 9 / 10] > ROW[1] { LONGEST_ROW } else { ROW[1] };
        let tokens = lengths.iter().sum::<usize>();
        let tiny = frozen.base.name() == "tiny";
        let [fewest, most_epochs] = if objective.is_sft() { EPOCHS } else { PREFERENCE_EPOCHS };
        // Rows that hold several samples are packed well, but a learning rate schedule needs a few dozen steps.
        let row = longest.max((8 * median).min(fewest * tokens / LEAST_STEPS));
        let max_seq_len = row.next_power_of_two().clamp(ROW[0], most).min(context);
        let most_accumulated = (fewest * tokens / (LEAST_STEPS * max_seq_len)).max(1);
        let accumulation = if tiny { 1 } else { (STEP_TOKENS / max_seq_len).clamp(1, most_accumulated) };
        let val_size = match lengths.len() {
            0..=9 => "0",
            10..=199 => "0.1",
            200..=9999 => "0.05",
            _ => "500",
        };
        let mut fit = Fit {
            objective,
            samples: if objective.is_sft() { lengths.len() } else { compare::units(samples).len() },
            sides: lengths.len(),
            tokens,
            used: tokens,
            longest,
            max_seq_len,
            overlong: lengths.len() - lengths.partition_point(|&length| length <= max_seq_len),
            accumulation,
            epochs: fewest,
            epoch_steps: 1,
            val_size,
            held_out: held_out(val_size, lengths.len(), tokens),
            learning_rate: if objective.is_sft() { "4e-3".into() } else { "2e-4".into() },
            tiny,
            hub: Hub::of(frozen.base.gguf()),
            context,
        };
        let cut = fit.mostly_too_long();
        let used = lengths.iter().filter(|&&length| cut || length <= max_seq_len);
        fit.used = used.map(|&length| length.min(max_seq_len)).sum();
        fit.epoch_steps = fit.steps_of_epoch(samples);
        let few = if objective.is_sft() { SHOWN / fit.samples.max(SHOWN / LEAST_STEPS) } else { FEW_STEPS };
        fit.epochs =
            LEAST_STEPS.div_ceil(fit.epoch_steps).clamp(fewest, most_epochs.max(few.min(LEAST_STEPS)));
        if !tiny && !objective.is_sft() {
            fit.learning_rate = "1e-5".into();
        } else if !tiny {
            let values =
                frozen.base.gguf().tensors().iter().map(|t| t.shape.iter().product::<usize>() as f64);
            let long = if fit.steps() <= SHORT_RUN { 1.0 } else { 0.5 };
            fit.learning_rate = format!("{:.0e}", long * rate_of(values.sum()));
        }
        fit
    }

    /// Number of steps of the run.
    pub fn steps(&self) -> usize {
        self.epochs * self.epoch_steps
    }

    /// Whether each sample is held out for validation, as training with the usual seed holds it out.
    pub(super) fn validation(&self, samples: &[Sample]) -> Vec<bool> {
        let val_size = self.val_size.parse::<f64>().unwrap_or(0.0);
        dataset::held_out(samples, val_size, SEED).unwrap_or_else(|_| vec![false; samples.len()])
    }

    /// Number of steps of the first epoch, planned as training plans it.
    fn steps_of_epoch(&self, samples: &[Sample]) -> usize {
        let held_out = self.validation(samples);
        let pairs = self.objective.supervision() == Supervision::Pairs;
        let row = if pairs { 2 * self.max_seq_len } else { self.max_seq_len };
        let cut = self.mostly_too_long();
        let of_unit = |unit: std::ops::Range<usize>| {
            let sides = samples[unit].iter().flat_map(|sample| parts(sample, self.max_seq_len));
            if pairs { vec![sides.sum()] } else { sides.collect::<Vec<usize>>() }
        };
        let train = compare::units(samples).into_iter().filter(|unit| !held_out[unit.start]);
        let lengths = train.flat_map(of_unit);
        let lengths =
            lengths.filter(|&length| cut || length <= row).map(|length| length.min(row)).collect::<Vec<_>>();
        let batching = Batching {
            batch_size: 1,
            gradient_accumulation_steps: self.accumulation,
            max_seq_len: row,
            packing: true,
            shuffle: true,
            seed: SEED,
        };
        batching.plan_epoch(&lengths, 0).map_or(1, |steps| steps.len()).max(1)
    }

    /// Whether the run is too short for evaluations between its ends, and has nothing to choose the best adapter by.
    fn is_brief(&self) -> bool {
        self.held_out == 0 && self.steps() < BRIEF_RUN
    }

    /// Number of prompts to suggest, and the most tokens of their replies, with which evaluations are frequent enough.
    fn replies(&self) -> [usize; 2] {
        if self.is_brief() {
            return REPLIES[1];
        }
        let frequent =
            |[prompts, tokens]: &&[usize; 2]| self.evaluations(*prompts, *tokens) >= USEFUL_EVALUATIONS;
        *REPLIES.iter().find(frequent).unwrap_or(&REPLIES[REPLIES.len() - 1])
    }

    /// Number of prompts to suggest.
    pub fn prompts(&self) -> usize {
        self.replies()[0]
    }

    /// Steps between evaluations, 0 for none between the ends, and the most tokens of a reply, for this number of prompts. Evaluations take a
    /// tenth of the run at most.
    pub fn evaluation(&self, prompts: usize) -> [usize; 2] {
        let lengths = [REPLIES[0][1], REPLIES[1][1]];
        let frequent = |tokens: &usize| self.evaluations(prompts, *tokens) >= USEFUL_EVALUATIONS;
        let tokens = lengths.into_iter().find(frequent).unwrap_or(lengths[1]);
        if self.is_brief() || (prompts == 0 && self.held_out == 0) {
            return [0, tokens];
        }
        match self.evaluations(prompts, tokens).min(MOST_EVALUATIONS + 1) {
            0..=2 => [0, tokens],
            // One of them is before the first step.
            count => [self.steps().div_ceil(count - 1), tokens],
        }
    }

    /// Number of evaluations with this many prompts and tokens of replies that fit into their part of the run.
    fn evaluations(&self, prompts: usize, tokens: usize) -> usize {
        let run = (self.epochs * self.used) as f64;
        let one = evaluation_tokens(self.held_out, prompts, tokens).max(1);
        (EVALUATIONS * run / one as f64) as usize
    }

    /// The proposed number of steps and learning rate, with the reason.
    pub fn proposal(&self) -> String {
        let steps = words::counted(self.steps(), "step");
        let passes = words::counted(self.epochs, "epoch");
        let samples = self.counted();
        let rate = &self.learning_rate;
        let reason = match self {
            fit if !fit.objective.is_sft() => "preferences take a lower rate than examples",
            Fit { tiny: true, .. } => "a base this small takes a high rate",
            fit if fit.steps() > SHORT_RUN => "a long run needs no higher rate",
            fit if fit.learning_rate != format!("{USUAL_RATE:e}") => {
                "a style takes about 60 steps, and small bases a higher rate than 2e-4; halve it if the validation loss rises"
            }
            _ => "a style takes about 60 steps at 2e-4; halve the rate if the validation loss rises",
        };
        format!("{steps} ({passes} of {samples}) at a learning rate of {rate}: {reason}")
    }

    /// The number of samples or pairs, with the word.
    pub fn counted(&self) -> String {
        let word = if self.objective.supervision() == Supervision::Pairs { "pair" } else { "sample" };
        words::counted(self.samples, word)
    }

    /// Whether more than half of the samples are too long.
    pub fn mostly_too_long(&self) -> bool {
        2 * self.overlong > self.sides
    }

    /// [`Fit::notices`], then those of the samples' reader. Only one of them is about the number of samples.
    pub fn warnings(&self, base: &str, reader: &[Notice]) -> Vec<String> {
        let counted = reader.iter().any(|notice| matches!(notice.what, What::Few(_)));
        let own = self.notices(base, counted).into_iter();
        own.chain(reader.iter().map(ToString::to_string)).collect()
    }

    /// Warnings about the samples. `counted`: whether the reader of the samples has warned of their number.
    pub fn notices(&self, base: &str, counted: bool) -> Vec<String> {
        let mut notices = Vec::new();
        if !self.objective.is_sft() {
            notices.push(
                "preferences come after examples: train an adapter on examples first, and name it in lora.init_from".into(),
            );
        }
        if self.samples < 10 && !counted {
            notices.push(format!(
                "only {}: expect the model to repeat them word by word; a style takes about 50, a task some hundreds",
                self.counted()
            ));
        }
        if self.overlong > 0 {
            let Fit { overlong, sides: samples, max_seq_len, .. } = self;
            let limit = match self.max_seq_len == self.context {
                true => format!("{max_seq_len} tokens, which is all that {base} takes"),
                false => format!("{max_seq_len} tokens (a higher data.max_seq_len needs more memory)"),
            };
            let treatment = if self.mostly_too_long() { "cut off there" } else { "left out" };
            notices.push(format!(
                "{overlong} of {samples} samples are longer than {limit}, and will be {treatment}"
            ));
        }
        notices
    }
}

/// Tokens of the samples that `val_size` holds out, about.
fn held_out(val_size: &str, samples: usize, tokens: usize) -> usize {
    let size: f64 = val_size.parse().unwrap_or(0.0);
    let part = if size < 1.0 { size } else { size / samples as f64 };
    (part.min(1.0) * tokens as f64) as usize
}

/// The peak learning rate for a base of this many values: as the square root of its size falls, from what was measured for 135 million to
/// the usual one.
fn rate_of(values: f64) -> f64 {
    (USUAL_RATE * (USUAL_SIZE / values.max(1.0)).sqrt()).clamp(USUAL_RATE, HIGHEST_RATE)
}

/// Length of a sample in tokens, or the lengths of the parts that a file of plain text will be cut into.
fn parts(sample: &Sample, most: usize) -> Vec<usize> {
    let length = sample.ids.len();
    let unit = sample.origin.rsplit(' ').nth(1);
    if unit != Some(Container::Text.unit()) {
        return vec![length];
    }
    let count = length.div_ceil(most);
    vec![length.div_ceil(count); count]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings for this many tokens in samples of 100, in steps of 512.
    fn fit(used: usize, epochs: usize) -> Fit {
        Fit {
            objective: ObjectiveName::Sft,
            samples: used / 100,
            sides: used / 100,
            tokens: used,
            used,
            longest: 100,
            max_seq_len: 512,
            overlong: 0,
            accumulation: 1,
            epochs,
            epoch_steps: used.div_ceil(512),
            val_size: "0.1",
            held_out: held_out("0.1", used / 100, used),
            learning_rate: "2e-4".into(),
            tiny: false,
            hub: None,
            context: 2048,
        }
    }

    #[test]
    fn small_bases_take_a_higher_rate() {
        let of = |millions: f64| format!("{:.0e}", rate_of(1e6 * millions));
        assert_eq!([135.0, 360.0, 600.0, 1200.0, 8000.0].map(of), ["6e-4", "4e-4", "3e-4", "2e-4", "2e-4"]);
        assert_eq!(of(30.0), "6e-4");
    }

    #[test]
    fn evaluations_take_a_tenth_of_the_run() {
        for (used, epochs) in [(2_000, 8), (9_100, 4), (100_000, 3), (10_000_000, 3)] {
            let fit = fit(used, epochs);
            let prompts = fit.prompts();
            let [every, tokens] = fit.evaluation(prompts);
            let count = 2 + (fit.steps() - 1).checked_div(every).unwrap_or(0);
            let cost = count * evaluation_tokens(fit.held_out, prompts, tokens);
            assert!(
                every == 0 || 10 * cost <= epochs * used,
                "{used}: {count} of {prompts} × {tokens} tokens"
            );
        }
        assert_eq!((fit(100_000_000, 3).prompts(), fit(100_000_000, 3).evaluation(3)[1]), (3, 64));
        assert_eq!(fit(500, 8).evaluation(1)[0], 0, "no evaluation between the ends of a short run");
        let few = Fit { held_out: 0, val_size: "0", ..fit(100, 60) };
        assert_eq!(
            (few.steps(), few.evaluation(3), few.prompts()),
            (60, [0, 32], 3),
            "replies at the ends only"
        );
        assert_eq!(
            Fit { held_out: 0, ..fit(100_000, 3) }.evaluation(0)[0],
            0,
            "there is nothing to evaluate"
        );
        assert_eq!((held_out("500", 10_000, 1_000_000), held_out("0", 9, 900)), (50_000, 0));
    }
}
