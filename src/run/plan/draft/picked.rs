//! The samples that a recipe is drafted for.

use std::path::PathBuf;

use crate::data::dataset::{DatasetError, Problem};
use crate::recipe::{ObjectiveName, Recipe};
use crate::run::{Data, OpenBase, RunError};

/// Objectives that preferences are for.
const PREFERENCES: [ObjectiveName; 2] = [ObjectiveName::Dpo, ObjectiveName::Kto];

/// Samples of any kind and length.
pub struct Picked {
    /// The samples, all of them for training.
    pub data: Data,
    /// The objective that they are for.
    pub objective: ObjectiveName,
}

impl Picked {
    /// Reads `files` with the settings of `recipe`, whatever the samples' length: as prompts if its objective learns from rewards, and
    /// otherwise as examples, or as preferences of the kind that the first file of preferences has.
    pub fn read(recipe: &Recipe, files: Vec<PathBuf>, base: &OpenBase) -> Result<Picked, RunError> {
        let mut recipe = recipe.clone();
        recipe.data.train = files;
        recipe.data.sources.clear();
        recipe.data.valid.clear();
        recipe.data.val_size = 0.0;
        recipe.data.max_seq_len = Some(usize::MAX);
        if recipe.train.objective.name == ObjectiveName::Grpo {
            return Ok(Picked { data: Data::read(&recipe, base)?, objective: ObjectiveName::Grpo });
        }
        recipe.train.objective.name = ObjectiveName::Sft;
        let data = match Data::read(&recipe, base) {
            Err(RunError::Dataset(DatasetError { problem: Problem::Preference(_, name), .. })) => {
                let named = PREFERENCES.into_iter().find(|objective| objective.name() == name);
                recipe.train.objective.name = named.unwrap_or_default();
                Data::read(&recipe, base)?
            }
            result => result?,
        };
        Ok(Picked { data, objective: recipe.train.objective.name })
    }
}
