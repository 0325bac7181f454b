//! Differences between a checkpoint's run and the run that is to resume from it.

use serde::{Deserialize, Serialize};

use super::Checkpoint;
use crate::recipe::Recipe;
use crate::run::Identity;

/// Changes of settings with which a run was continued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Steps before the changes.
    pub step: usize,
    /// Each change: the key with its old and its new value.
    pub changes: Vec<String>,
}

/// Differences between a run and the run of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Settings that may change between two steps: how far the run goes, and how large its updates are.
    pub continuable: Vec<String>,
    /// Everything else: the adapter's shape, the base, the samples and their order.
    pub fixed: Vec<String>,
}

impl Differences {
    /// Whether the run can resume with the same results.
    pub fn is_empty(&self) -> bool {
        self.continuable.is_empty() && self.fixed.is_empty()
    }

    /// All differences, for a message.
    pub fn all(&self) -> String {
        [&self.fixed[..], &self.continuable[..]].concat().join("; ")
    }
}

impl Checkpoint {
    /// The differences between this run and one of `recipe` with `steps` steps over the base and samples in `identity`.
    pub fn differences(&self, recipe: &Recipe, identity: &Identity, steps: usize) -> Differences {
        let (continuable, fixed): (Vec<_>, Vec<_>) =
            recipe.changes_since(&self.recipe).into_iter().partition(|change| change.may_continue());
        let mut found = Differences {
            continuable: continuable.iter().map(ToString::to_string).collect(),
            fixed: fixed.iter().map(ToString::to_string).collect(),
        };
        // A changed seed, for instance, changes the validation split too; only the key is reported then.
        if found.fixed.is_empty() {
            found.fixed = identity.changes_since(&self.identity);
        }
        if found.is_empty() && steps != self.steps {
            found.fixed.push(format!("the run had {} steps and now has {steps}", self.steps));
        }
        found
    }
}
