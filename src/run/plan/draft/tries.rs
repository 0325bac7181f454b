//! A recipe for learning from rewards that fits prompts and the base.

use super::hub::Hub;
use super::{LONGEST_QUESTION, Names, SEED};
use crate::data::batch::Sample;
use crate::data::dataset;
use crate::recipe::{Reward, toml_string};
use crate::run::OpenBase;
use crate::words::counted;

/// Steps to propose: the tiny base takes 20 to 60, and larger ones show whether they learn.
const STEPS: usize = 60;
/// Completions of a prompt.
const GENERATIONS: usize = 8;
/// Prompts of a step.
const PROMPTS: usize = 4;
/// Steps between evaluations, each of which completes every validation prompt.
const EVALUATE: usize = 20;
/// Number of prompts to answer before and after.
const QUESTIONS: usize = 3;
/// Most tokens of a row to propose: longer ones need more memory than small GPUs have.
const LONGEST_ROW: usize = 2048;

/// Settings of a recipe, and the prompts that they follow from.
pub struct Tries {
    /// Number of prompts.
    prompts: usize,
    /// Tokens of the longest prompt.
    longest: usize,
    /// Number of prompts that have no room for a completion.
    overlong: usize,
    /// Tokens of a prompt and its completion.
    max_seq_len: usize,
    /// Most tokens of a completion.
    completion: usize,
    /// Prompts to hold out for validation: a fraction or a number.
    val_size: &'static str,
    /// Whether the base is the built-in model.
    tiny: bool,
    /// Prompts to answer before and after.
    questions: Vec<String>,
    hub: Option<Hub>,
}

impl Tries {
    /// Settings for `prompts`, of which there is at least one.
    pub fn of(prompts: &[Sample], frozen: &OpenBase) -> Tries {
        let tiny = frozen.base.name() == "tiny";
        let completion = if tiny { 16 } else { 128 };
        let context = frozen.base.config().context_length;
        let lengths = || prompts.iter().map(|prompt| prompt.ids.len());
        let longest = lengths().max().unwrap_or_default();
        let max_seq_len = (longest + completion).next_power_of_two().min(LONGEST_ROW).min(context);
        let val_size = match prompts.len() {
            0..=9 => "0",
            10..=199 => "0.1",
            _ => "20",
        };
        Tries {
            prompts: prompts.len(),
            longest,
            overlong: lengths().filter(|length| length + completion > max_seq_len).count(),
            max_seq_len,
            completion,
            val_size,
            tiny,
            questions: questions(prompts, val_size),
            hub: Hub::of(frozen.base.gguf()),
        }
    }

    /// The prompts and the run in one line.
    pub fn summary(&self) -> String {
        let [prompts, longest] = [counted(self.prompts, "prompt"), counted(self.longest, "token")];
        format!("{prompts}, the longest with {longest}; {}", steps())
    }

    /// The proposed number of steps and learning rate, with the reason.
    pub fn proposal(&self) -> String {
        let reason = match self.tiny {
            true => "a base this small takes a high rate",
            false => "lower it if the reward falls",
        };
        format!("{} at a learning rate of {}: {reason}", steps(), self.rate())
    }

    /// Warnings about the prompts.
    pub fn notices(&self) -> Vec<String> {
        let Tries { overlong, prompts, max_seq_len, completion, .. } = self;
        let notice = format!(
            "{overlong} of {prompts} prompts with {completion} more tokens are longer than {max_seq_len} tokens, and will be left out"
        );
        (*overlong > 0).then_some(notice).into_iter().collect()
    }

    fn rate(&self) -> &'static str {
        if self.tiny { "2e-3" } else { "5e-5" }
    }

    /// The recipe as TOML, with comments.
    pub fn text(&self, names: &Names, rewards: &[Reward]) -> String {
        let text = super::sections(names, &self.questions, self.settings(), self.hub.clone());
        rewards.iter().fold(text, |text, reward| {
            let keys = toml::to_string(reward).expect("a table of plain values");
            text + "\n[[rewards]]\n" + &keys
        })
    }

    /// Keys with their values and comments.
    fn settings(&self) -> Vec<(&'static str, String, String)> {
        let overlong = if self.overlong > 0 { "drop" } else { "error" };
        let (batch, accumulation) =
            if self.tiny { (GENERATIONS * PROMPTS, 1) } else { (GENERATIONS, PROMPTS) };
        let temperature = match self.tiny {
            true => ("1.5", "this base is sure of itself: at 1 it would try little"),
            false => ("1.0", "higher: tries more"),
        };
        let every = if self.val_size == "0" { "0" } else { &EVALUATE.to_string() };
        let lines = [
            ("lora.rank", "16", "higher: more capacity, memory and time"),
            (
                "data.val_size",
                self.val_size,
                "prompts held out, whose rewards are measured: a fraction or a number",
            ),
            (
                "data.max_seq_len",
                &self.max_seq_len.to_string(),
                "maximum tokens of a prompt with its completion",
            ),
            (
                "data.overlong",
                &toml_string(overlong),
                "longer ones: \"drop\" leaves them out, \"error\" refuses them",
            ),
            ("train.objective", &toml_string("grpo"), "learns from rewards: docs/grpo.md"),
            ("train.batch_size", &batch.to_string(), "completions of a forward and backward pass"),
            ("train.gradient_accumulation_steps", &accumulation.to_string(), "passes per step"),
            ("train.max_steps", &STEPS.to_string(), "each draws completions of 4 prompts"),
            ("train.learning_rate", self.rate(), "lower it if the reward falls"),
            ("grpo.num_generations", &GENERATIONS.to_string(), "completions of a prompt, which are compared"),
            ("grpo.max_completion_length", &self.completion.to_string(), "longer ones are cut"),
            ("grpo.temperature", temperature.0, temperature.1),
            ("eval.steps", every, "steps between evaluations; the best adapter is kept"),
            ("eval.max_new_tokens", &self.completion.to_string(), "longest reply, in tokens"),
        ];
        lines.map(|(key, value, comment)| (key, value.to_owned(), comment.to_owned())).to_vec()
    }
}

fn steps() -> String {
    format!("{}, each with {GENERATIONS} completions of {PROMPTS} prompts", counted(STEPS, "step"))
}

/// Prompts to suggest for `eval.samples`: the first of those that are held out, or of all.
fn questions(prompts: &[Sample], val_size: &str) -> Vec<String> {
    let held_out = dataset::held_out(prompts, val_size.parse().unwrap_or(0.0), SEED);
    let held_out = held_out.unwrap_or_else(|_| vec![true; prompts.len()]);
    let text = |prompt: &Sample| Some(prompt.row.as_ref()?.prompt.as_str()?.trim().to_owned());
    let found = prompts.iter().zip(held_out).filter(|(_, held_out)| *held_out);
    let mut found: Vec<String> = found.filter_map(|(prompt, _)| text(prompt)).collect();
    found.retain(|text| !text.is_empty() && text.chars().count() <= LONGEST_QUESTION);
    found.dedup();
    found.truncate(QUESTIONS);
    found
}
