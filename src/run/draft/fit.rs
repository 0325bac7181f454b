//! Settings that follow from the samples and the base.

use crate::data::batch::Sample;
use crate::data::compare::{self, Supervision};
use crate::data::dataset::Container;
use crate::recipe::ObjectiveName;
use crate::run::OpenBase;
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
    /// Samples to hold out for validation: a fraction or a number.
    pub val_size: &'static str,
    /// Peak learning rate.
    pub learning_rate: &'static str,
    /// Whether the base is the built-in model.
    pub tiny: bool,
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
/// Row length to suggest, at least and at most: longer rows need more memory than small GPUs have.
const ROW: [usize; 2] = [128, 2048];
/// Row length to suggest at most if many samples are longer than that.
const LONGEST_ROW: usize = 8192;
/// Runs of more steps than this learn with a lower learning rate.
const SHORT_RUN: usize = 1000;

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
        let epochs = (LEAST_STEPS * accumulation * max_seq_len).div_ceil(tokens).clamp(fewest, most_epochs);
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
            epochs,
            val_size,
            learning_rate: if objective.is_sft() { "4e-3" } else { "2e-4" },
            tiny,
            context,
        };
        let cut = fit.mostly_too_long();
        let used = lengths.iter().filter(|&&length| cut || length <= max_seq_len);
        fit.used = used.map(|&length| length.min(max_seq_len)).sum();
        if !tiny && !objective.is_sft() {
            fit.learning_rate = "1e-5";
        } else if !tiny {
            fit.learning_rate = if fit.steps() <= SHORT_RUN { "2e-4" } else { "1e-4" };
        }
        fit
    }

    /// Estimated number of steps of the run.
    pub fn steps(&self) -> usize {
        (self.epochs * self.used).div_ceil(self.accumulation * self.max_seq_len).max(1)
    }

    /// The proposed number of steps and learning rate, with the reason.
    pub fn proposal(&self) -> String {
        let steps = words::counted(self.steps(), "step");
        let passes = words::counted(self.epochs, "epoch");
        let samples = self.counted();
        let rate = self.learning_rate;
        let reason = match self {
            fit if !fit.objective.is_sft() => "preferences take a lower rate than examples",
            Fit { tiny: true, .. } => "a base this small takes a high rate",
            fit if fit.steps() > SHORT_RUN => "a long run needs no higher rate",
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

    /// Warnings about the samples.
    pub fn notices(&self, base: &str) -> Vec<String> {
        let mut notices = Vec::new();
        if !self.objective.is_sft() {
            notices.push(
                "preferences come after examples: train an adapter on examples first, and name it in lora.init_from".into(),
            );
        }
        if self.samples < 10 {
            notices.push(format!(
                "{} are few: expect the model to repeat them word by word; a style takes about 50, a task some hundreds",
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
