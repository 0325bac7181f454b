//! The recipe that is proposed for picked samples, and what is said of it.

use super::{Fit, Names, Picked, Tries, folder, questions, summary, text};
use crate::recipe::{ObjectiveName, Recipe, SCHEMA_URL};
use crate::run::OpenBase;

/// A proposal for samples and a base.
pub struct Proposal {
    /// The recipe as TOML, with comments.
    pub recipe: String,
    /// Steps and learning rate of that recipe, with the reason.
    pub words: String,
    /// Warnings about the samples.
    pub warnings: Vec<String>,
}

impl Proposal {
    /// The proposal for `picked`, which has samples: the files `train`, read with the settings of `recipe`. With the objective "grpo" it has
    /// the rewards of `recipe`.
    pub fn of(picked: &Picked, recipe: &Recipe, train: &[&str], frozen: &OpenBase) -> Proposal {
        let Picked { data, objective } = picked;
        let output = folder(train);
        let base = frozen.base.name();
        let names = Names { base, train, output: &output, system: frozen.ollama_system.as_deref() };
        let header = |summary: String| {
            format!(
                "#:schema {SCHEMA_URL}\n# {summary}.\n#\n# recipes/chat.toml of rullama-train documents every key.\n"
            )
        };
        if *objective == ObjectiveName::Grpo {
            let tries = Tries::of(&data.train, frozen);
            let reader = data.notices.iter().map(ToString::to_string);
            return Proposal {
                recipe: header(tries.summary()) + &tries.text(&names, &recipe.rewards),
                words: tries.proposal(),
                warnings: tries.notices().into_iter().chain(reader).collect(),
            };
        }
        let fit = Fit::of(&data.train, *objective, frozen);
        let prompts = questions(&data.train, &fit, frozen);
        Proposal {
            recipe: header(summary(&fit)) + &text(&fit, &names, &prompts),
            words: fit.proposal(),
            warnings: fit.warnings(base, &data.notices),
        }
    }
}
