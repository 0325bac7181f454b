//! `[distill]`: learning from a second model.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::RecipeError;
use super::fields::Section;
use super::objective::ObjectiveName;
use crate::data::dataset::{CONTEXT, PROMPT};

/// The distance between the teacher's distribution and the student's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DivergenceName {
    /// KL(teacher ‖ student).
    #[default]
    ForwardKl,
    /// KL(student ‖ teacher).
    ReverseKl,
    /// The generalized Jensen-Shannon divergence.
    Jsd,
}

/// `[distill]`: the teacher, and the loss that it gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distill {
    /// The teacher, named as `model.base` names a base, or [`SELF`].
    pub teacher: String,
    /// The user's message that shows the teacher a sample's context, with the places of both texts.
    pub teacher_prompt_template: String,
    /// Tokens of the teacher that are kept for each loss token; 0: all.
    pub top_k: usize,
    /// Both models' logits are divided by it.
    pub temperature: f64,
    /// Weight of the divergence.
    pub weight: f64,
    /// Weight of the cross entropy of the samples.
    pub sft_weight: f64,
    /// The divergence.
    pub divergence: DivergenceName,
    /// Part of the teacher in the mixture of `jsd`; 0 is the forward KL, and 1 the reverse KL, as in TRL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta: Option<f64>,
    /// The file of the teacher's log-probabilities, if it is not in the output folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

/// The teacher that is the base itself, without the adapter.
pub const SELF: &str = "self";

/// TRL's default.
const TEMPLATE: &str = "{prompt}\n\n{context}";

const KEYS: [&str; 9] = [
    "teacher",
    "teacher_prompt_template",
    "top_k",
    "temperature",
    "weight",
    "sft_weight",
    "divergence",
    "beta",
    "file",
];

/// Reads the section; `None` where the objective is another one. Fails if it has keys then.
pub(super) fn read(section: &Section, objective: ObjectiveName) -> Result<Option<Distill>, RecipeError> {
    let harmless = section.harmless();
    // Every key is looked up, whatever the objective: the schema lists them.
    let teacher = harmless.text("teacher")?;
    let template = section.text("teacher_prompt_template")?.unwrap_or_else(|| TEMPLATE.to_owned());
    let top_k = section.count("top_k", 64, 0)?;
    let temperature = section.positive("temperature", 1.0)?;
    let weight = section.not_negative("weight", 1.0)?;
    let sft_weight = section.not_negative("sft_weight", 0.0)?;
    let divergence = section.choice("divergence", DivergenceName::ForwardKl)?;
    let beta = section.fraction("beta", 0.5)?;
    let file = harmless.text("file")?.map(PathBuf::from);
    if objective != ObjectiveName::Distill {
        let Some(key) = KEYS.iter().find(|key| section.has(key)) else { return Ok(None) };
        let text = format!(
            "the objective \"{}\" has no teacher; remove [distill], or set train.objective = \"distill\"",
            objective.name()
        );
        return Err(section.conflict(key, &text));
    }
    if section.has("beta") && divergence != DivergenceName::Jsd {
        return Err(section.conflict("beta", "only the divergence \"jsd\" has it; remove one of the two"));
    }
    if weight == 0.0 {
        let text =
            "without it nothing is learnt from the teacher; raise it, or set train.objective = \"sft\"";
        return Err(section.conflict("weight", text));
    }
    if [PROMPT, CONTEXT].iter().any(|place| template.matches(place).count() != 1) {
        let text = format!("expected {PROMPT} and {CONTEXT} in it, each once");
        return Err(section.conflict("teacher_prompt_template", &text));
    }
    let expected = "the model to learn from, named as model.base names a base, or \"self\"";
    Ok(Some(Distill {
        teacher: teacher.ok_or_else(|| section.missing("teacher", expected))?,
        teacher_prompt_template: template,
        top_k,
        temperature,
        weight,
        sft_weight,
        divergence,
        beta: (divergence == DivergenceName::Jsd).then_some(beta),
        file,
    }))
}
