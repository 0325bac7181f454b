//! The keys of `[train]` that choose what training minimises.

use serde::{Deserialize, Serialize};

use super::error::RecipeError;
use super::fields::Section;
use super::{Data, DataFormat, TrainOn};
use crate::data::compare::Supervision;

/// The objective of training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectiveName {
    /// The mean cross entropy of examples.
    #[default]
    Sft,
    /// Direct preference optimization, from pairs.
    Dpo,
    /// Kahneman-Tversky optimization, from rated answers.
    Kto,
    /// Odds ratio preference optimization, from pairs.
    Orpo,
    /// Simple preference optimization, from pairs.
    Simpo,
    /// A divergence from a second model, the teacher.
    Distill,
    /// Group relative policy optimization, from rewards of drawn completions.
    Grpo,
}

impl ObjectiveName {
    /// The name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            ObjectiveName::Sft => "sft",
            ObjectiveName::Dpo => "dpo",
            ObjectiveName::Kto => "kto",
            ObjectiveName::Orpo => "orpo",
            ObjectiveName::Simpo => "simpo",
            ObjectiveName::Distill => "distill",
            ObjectiveName::Grpo => "grpo",
        }
    }

    /// Whether it imitates examples.
    pub fn is_sft(&self) -> bool {
        *self == ObjectiveName::Sft
    }

    /// Whether its samples are examples.
    pub fn takes_examples(self) -> bool {
        self.supervision() == Supervision::Examples
    }

    /// Kind of its samples.
    pub fn supervision(self) -> Supervision {
        match self {
            ObjectiveName::Sft | ObjectiveName::Distill => Supervision::Examples,
            ObjectiveName::Kto => Supervision::Ratings,
            ObjectiveName::Dpo | ObjectiveName::Orpo | ObjectiveName::Simpo => Supervision::Pairs,
            ObjectiveName::Grpo => Supervision::Prompts,
        }
    }
}

/// The form of the loss of `dpo` or `kto`, under TRL's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// The loss of the DPO paper.
    Sigmoid,
    /// A squared loss that does not push a margin beyond its target.
    Ipo,
    /// Raises chosen and lowers rejected answers, each on its own.
    ApoZero,
    /// The loss of the KTO paper.
    Kto,
    /// `apo_zero` for rated answers.
    ApoZeroUnpaired,
}

impl LossType {
    fn objective(self) -> ObjectiveName {
        match self {
            LossType::Sigmoid | LossType::Ipo | LossType::ApoZero => ObjectiveName::Dpo,
            LossType::Kto | LossType::ApoZeroUnpaired => ObjectiveName::Kto,
        }
    }
}

/// The objective and its settings. A setting that the objective does not have is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ObjectiveKeys {
    /// The objective of training.
    #[serde(rename = "objective", skip_serializing_if = "ObjectiveName::is_sft")]
    pub name: ObjectiveName,
    /// The form of the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_type: Option<LossType>,
    /// Factor of a difference in log-probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta: Option<f64>,
    /// Part of the pairs that is assumed to be swapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_smoothing: Option<f64>,
    /// Weight of the cross entropy of the chosen answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sft_weight: Option<f64>,
    /// Target margin of SimPO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simpo_gamma: Option<f64>,
    /// Weight of desirable answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desirable_weight: Option<f64>,
    /// Weight of undesirable answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undesirable_weight: Option<f64>,
}

/// Reads the keys. Fails for a key that the objective does not have.
pub(super) fn keys(section: &Section) -> Result<ObjectiveKeys, RecipeError> {
    use ObjectiveName::{Dpo, Kto, Orpo, Simpo};
    let name = section.choice("objective", ObjectiveName::Sft)?;
    let only = |key: &str, of: &[ObjectiveName]| match section.has(key) && !of.contains(&name) {
        true => {
            let names = of.iter().map(|name| format!("\"{}\"", name.name())).collect::<Vec<_>>().join(", ");
            let text = format!(
                "the objective \"{}\" does not have it, only {names}; remove it, or set train.objective",
                name.name()
            );
            Err(section.conflict(key, &text))
        }
        false => Ok(of.contains(&name)),
    };
    let default = if name == Kto { LossType::Kto } else { LossType::Sigmoid };
    let loss_type = section.choice("loss_type", default)?;
    if only("loss_type", &[Dpo, Kto])? && loss_type.objective() != name {
        let text = format!("it is a loss of the objective \"{}\"", loss_type.objective().name());
        return Err(section.conflict("loss_type", &text));
    }
    let label_smoothing = section
        .number("label_smoothing", 0.0, "a number from 0 to below 0.5", |x| (0.0..0.5).contains(&x))?;
    let robust = only("label_smoothing", &[Dpo])? && loss_type == LossType::Sigmoid;
    if section.has("label_smoothing") && !robust {
        let text = "only the loss_type \"sigmoid\" has it; remove one of the two";
        return Err(section.conflict("label_smoothing", text));
    }
    let beta = section.positive("beta", if name == Simpo { 2.0 } else { 0.1 })?;
    let sft_weight = section.not_negative("sft_weight", 0.0)?;
    let gamma = section.not_negative("simpo_gamma", 0.5)?;
    let weights =
        [section.not_negative("desirable_weight", 1.0)?, section.not_negative("undesirable_weight", 1.0)?];
    Ok(ObjectiveKeys {
        name,
        loss_type: [Dpo, Kto].contains(&name).then_some(loss_type),
        beta: only("beta", &[Dpo, Kto, Orpo, Simpo])?.then_some(beta),
        label_smoothing: robust.then_some(label_smoothing),
        sft_weight: only("sft_weight", &[Dpo, Simpo])?.then_some(sft_weight),
        simpo_gamma: only("simpo_gamma", &[Simpo])?.then_some(gamma),
        desirable_weight: only("desirable_weight", &[Kto])?.then_some(weights[0]),
        undesirable_weight: only("undesirable_weight", &[Kto])?.then_some(weights[1]),
    })
}

/// Fails if the settings of the samples do not fit the objective.
pub(super) fn check(section: &Section, data: &Data, name: ObjectiveName) -> Result<(), RecipeError> {
    let fits = |format: DataFormat| match (name.supervision(), format) {
        (_, DataFormat::Auto) => true,
        (Supervision::Examples, format) => DataFormat::SHAPES.contains(&format),
        (Supervision::Prompts, format) => format == DataFormat::Prompt,
        (Supervision::Pairs, format) => format == DataFormat::Preference,
        (Supervision::Ratings, format) => [DataFormat::Preference, DataFormat::Rated].contains(&format),
    };
    let formats = data.sources.iter().map(|source| source.format).chain([data.format]);
    if let Some(format) = formats.into_iter().find(|format| !fits(*format)) {
        let text = format!(
            "\"{}\" does not fit train.objective = \"{}\"; remove it, or set train.objective",
            format.name(),
            name.name()
        );
        return Err(section.conflict(if section.has("format") { "format" } else { "sources" }, &text));
    }
    let all = data.sources.iter().map(|source| source.train_on).chain([data.train_on]);
    if !name.takes_examples() && all.into_iter().any(|train_on| train_on == TrainOn::All) {
        let text = "\"all\" does not fit an objective that imitates no examples; remove it";
        return Err(section.conflict(if section.has("train_on") { "train_on" } else { "sources" }, text));
    }
    Ok(())
}
