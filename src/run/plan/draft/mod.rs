//! A recipe that fits a base and samples.

mod fit;
mod hub;
mod picked;
mod proposal;
mod tries;

use std::collections::BTreeSet;

pub use fit::Fit;
use hub::Hub;
pub use picked::Picked;
pub use proposal::Proposal;
use tries::Tries;

use super::OpenBase;
use crate::data::batch::{IGNORE, Sample};
use crate::recipe::{ObjectiveName, toml_string};
use crate::words::counted;

/// Names that a recipe contains.
pub struct Names<'a> {
    /// The base.
    pub base: &'a str,
    /// The files of samples.
    pub train: &'a [&'a str],
    /// The output folder.
    pub output: &'a str,
    /// The system message that conversations have in use, if Ollama adds one.
    pub system: Option<&'a str>,
}

/// The output folder of a run on these files, named after the first one: `runs/pirate`.
pub fn folder(files: &[&str]) -> String {
    let name = files.first().and_then(|file| file.rsplit(['/', '\\']).next()).unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    let kept = |c: char| if c.is_alphanumeric() || "-_".contains(c) { c } else { '-' };
    let stem: String = stem.chars().map(kept).take(40).collect();
    format!("runs/{}", if stem.is_empty() { "mine" } else { &stem })
}

/// The samples and the run in one line.
pub fn summary(fit: &Fit) -> String {
    let [samples, tokens] = [fit.counted(), counted(fit.tokens, "token")];
    let [longest, steps] = [counted(fit.longest, "token"), counted(fit.steps(), "step")];
    format!("{samples} with {tokens}, the longest with {longest}; {steps}")
}

/// The recipe as TOML, with comments. `prompts` are answered at every evaluation.
pub fn text(fit: &Fit, names: &Names, prompts: &[String]) -> String {
    sections(names, prompts, settings(fit, prompts.len()), fit.hub.clone())
}

/// A recipe of these names, prompts and settings, section by section.
fn sections(
    names: &Names,
    prompts: &[String],
    settings: Vec<(&'static str, String, String)>,
    hub: Option<Hub>,
) -> String {
    let list = |texts: Vec<String>| format!("[{}]", texts.join(", "));
    let train = match names.train {
        [only] => toml_string(only),
        several => list(several.iter().map(|name| toml_string(name)).collect()),
    };
    let prompts = list(prompts.iter().map(|prompt| toml_string(prompt)).collect());
    let mut lines =
        vec![("model.base", toml_string(names.base), String::new()), ("data.train", train, String::new())];
    let ollama = "Ollama puts it in front of every conversation with this base";
    lines.extend(names.system.map(|system| ("data.system", toml_string(system), ollama.to_owned())));
    lines.extend(settings);
    lines.extend([
        ("eval.samples", prompts, "prompts that are answered at every evaluation".into()),
        ("output.dir", toml_string(names.output), String::new()),
        ("output.export", "[\"peft\"]".into(), "or \"gguf-lora\" (llama.cpp, LM Studio), \"mlx\", …".into()),
    ]);
    lines.extend(hub.map(Hub::line));
    let mut text = String::new();
    for section in ["model", "lora", "data", "train", "grpo", "eval", "output"] {
        if !lines.iter().any(|(key, ..)| key.starts_with(section)) {
            continue;
        }
        text += &format!("\n[{section}]\n");
        for (key, value, comment) in &lines {
            let Some(key) = key.strip_prefix(section).and_then(|key| key.strip_prefix('.')) else {
                continue;
            };
            let line = format!("{key} = {value}");
            text +=
                &if comment.is_empty() { format!("{line}\n") } else { format!("{line:<35} # {comment}\n") };
        }
    }
    text
}

/// Keys with their values and comments that follow from the samples and the number of prompts.
fn settings(fit: &Fit, prompts: usize) -> Vec<(&'static str, String, String)> {
    let (overlong, overlong_comment) = match fit.overlong {
        0 => ("error", "no sample is longer; \"drop\" or \"truncate\" would accept longer ones".to_string()),
        n if fit.mostly_too_long() => (
            "truncate",
            format!("cuts off the ends of longer ones ({}); \"drop\" would skip them", counted(n, "sample")),
        ),
        n => (
            "drop",
            format!("skips longer ones ({}); \"truncate\" would cut off their ends", counted(n, "sample")),
        ),
    };
    let rate_comment = match fit.tiny {
        _ if !fit.objective.is_sft() => "a tenth of the rate for examples, or lower",
        true => "high, as suits a model as small as tiny",
        false => "a usual value; rullama-train check RECIPE --lr tries rates on these samples",
    };
    let loss_comment =
        "which tokens are loss tokens; or \"answers\" (no reasoning), \"last_assistant\", \"all\"";
    let [eval_steps, max_new_tokens] = fit.evaluation(prompts).map(|value| value.to_string());
    let eval_comment = match &*eval_steps {
        "0" => "evaluates before and after only: more would take too large a part of this run",
        _ if fit.val_size == "0" => "steps between evaluations, a tenth of the run's time at most",
        _ => "steps between evaluations, a tenth of the run's time at most; the best adapter is kept",
    };
    let mut settings = vec![
        ("lora.rank", "16".into(), "higher: more capacity, memory and time".into()),
        (
            "data.val_size",
            fit.val_size.into(),
            "held out for validation: a fraction, or a number of samples".into(),
        ),
        (
            "data.max_seq_len",
            fit.max_seq_len.to_string(),
            "maximum tokens per row; samples are packed into rows".into(),
        ),
        ("data.overlong", toml_string(overlong), overlong_comment),
        (
            "train.epochs",
            fit.epochs.to_string(),
            format!("passes over the samples: {} in all", counted(fit.steps(), "step")),
        ),
        ("train.gradient_accumulation_steps", fit.accumulation.to_string(), "rows per step".into()),
        ("train.learning_rate", fit.learning_rate.clone(), rate_comment.into()),
        ("eval.steps", eval_steps, eval_comment.into()),
        ("eval.max_new_tokens", max_new_tokens, "longest reply, in tokens".into()),
    ];
    if fit.objective.is_sft() {
        settings.insert(2, ("data.train_on", toml_string("assistant"), loss_comment.into()));
    } else {
        let name = toml_string(fit.objective.name());
        settings.push(("train.objective", name, "docs/preference.md describes the objectives".into()));
        settings.push((
            "train.beta",
            "0.1".into(),
            "higher: stays closer to the adapter at the start".into(),
        ));
    }
    if fit.objective == ObjectiveName::Dpo {
        let comment = "keeps the chosen answers likely, not only likelier than the rejected ones";
        settings.push(("train.sft_weight", "0.5".into(), comment.into()));
    }
    settings
}

/// Longest question to suggest as a prompt, in characters.
const LONGEST_QUESTION: usize = 200;

/// Default of `train.seed`, with which the validation samples are drawn.
const SEED: u64 = 42;

/// Prompts to suggest: the first questions of the validation samples, or of all samples if they are not split.
pub fn questions(samples: &[Sample], fit: &Fit, frozen: &OpenBase) -> Vec<String> {
    let held_out = fit.validation(samples);
    let is_split = held_out.contains(&true);
    let mut known = BTreeSet::new();
    let asked = samples.iter().zip(held_out).filter(|(_, held_out)| !is_split || *held_out);
    let questions = asked.filter_map(|(sample, _)| question(sample, frozen));
    questions.filter(|question| known.insert(question.clone())).take(fit.prompts()).collect()
}

/// The question of a sample with one turn: its text before the first loss token, without what the chat template puts around.
fn question(sample: &Sample, frozen: &OpenBase) -> Option<String> {
    let first = sample.labels.iter().skip(1).position(|&label| label != IGNORE)? + 1;
    let text = frozen.tokenizer.decode(&sample.ids[..first]);
    let around = frozen.tokenizer.decode(&frozen.prompt("§").ok()?);
    let (before, after) = around.split_once('§')?;
    let question = text.strip_prefix(before)?.strip_suffix(after)?.trim();
    let one_turn = !question.contains(after.trim());
    (one_turn && !question.is_empty() && question.chars().count() <= LONGEST_QUESTION)
        .then(|| question.to_owned())
}

#[cfg(test)]
mod tests {
    use super::folder;

    #[test]
    fn runs_are_named_after_their_samples() {
        let of = |file| folder(&[file, "other.jsonl"]);
        assert_eq!(
            ["datasets/pirate.jsonl", "Meine FAQ.csv", ".csv"].map(of),
            ["runs/pirate", "runs/Meine-FAQ", "runs/mine"]
        );
        assert_eq!(folder(&[]), "runs/mine");
    }
}
