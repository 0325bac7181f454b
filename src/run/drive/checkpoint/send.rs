//! A checkpoint as bytes, for the processes of a run that do not see its folder.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Changed, Checkpoint};
use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::gpu::Choices;
use crate::recipe::{Recipe, Syntax};
use crate::run::Identity;

/// Everything but the matrices.
#[derive(Serialize, Deserialize)]
struct Rest {
    step: usize,
    steps: usize,
    recipe: serde_json::Value,
    identity: Identity,
    updates: u64,
    /// The step of the best evaluation, and whether its adapter is sent.
    best: Option<(usize, bool)>,
    changed: Vec<Changed>,
    choices: Choices,
    metrics: String,
    timing: String,
    completions: Option<String>,
}

impl Checkpoint {
    /// The checkpoint for [`Checkpoint::from_bytes`] in another process of the same run.
    pub fn to_bytes(&self) -> Vec<u8> {
        let rest = Rest {
            step: self.step,
            steps: self.steps,
            recipe: serde_json::to_value(&self.recipe).expect("a recipe is tables of plain values"),
            identity: self.identity.clone(),
            updates: self.updates,
            best: self.best.as_ref().map(|(step, pairs)| (*step, pairs.is_some())),
            changed: self.changed.clone(),
            choices: self.choices.clone(),
            metrics: self.metrics.clone(),
            timing: self.timing.clone(),
            completions: self.completions.clone(),
        };
        let rest = serde_json::to_vec(&rest).expect("plain values under text keys");
        let mut bytes = (rest.len() as u64).to_le_bytes().to_vec();
        bytes.extend(rest);
        let best = self.best.as_ref().and_then(|(_, pairs)| pairs.as_ref());
        for pairs in [&self.adapter.pairs, &self.first, &self.second].into_iter().chain(best) {
            for pair in pairs.values() {
                bytes.extend_from_slice(bytemuck::cast_slice(&pair.a));
                bytes.extend_from_slice(bytemuck::cast_slice(&pair.b));
            }
        }
        bytes
    }

    /// The checkpoint that [`Checkpoint::to_bytes`] wrote, of a run whose adapters have the shape of `initial`.
    pub fn from_bytes(bytes: &[u8], initial: &Adapter) -> Result<Checkpoint, String> {
        let short = || "another process sent a checkpoint that is too short".to_string();
        let (length, bytes) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
        let length = u64::from_le_bytes(*length) as usize;
        let (rest, mut bytes) = bytes.split_at_checked(length).ok_or_else(short)?;
        let rest: Rest = serde_json::from_slice(rest).map_err(|e| e.to_string())?;
        let recipe = Recipe::parse(&rest.recipe.to_string(), Syntax::Json, super::STATE, &[("", ""); 0])
            .map_err(|e| e.to_string())?;
        let mut matrix = |like: &[f32]| -> Result<Vec<f32>, String> {
            let (own, others) = bytes.split_at_checked(4 * like.len()).ok_or_else(short)?;
            bytes = others;
            Ok(bytemuck::pod_collect_to_vec(own))
        };
        let mut pairs = || -> Result<BTreeMap<Slot, Pair>, String> {
            let pair =
                |(slot, like): (&Slot, &Pair)| Ok((*slot, Pair { a: matrix(&like.a)?, b: matrix(&like.b)? }));
            initial.pairs.iter().map(pair).collect()
        };
        Ok(Checkpoint {
            adapter: Adapter { pairs: pairs()?, ..initial.clone() },
            first: pairs()?,
            second: pairs()?,
            best: match rest.best {
                Some((step, true)) => Some((step, Some(pairs()?))),
                best => best.map(|(step, _)| (step, None)),
            },
            step: rest.step,
            steps: rest.steps,
            recipe,
            identity: rest.identity,
            updates: rest.updates,
            changed: rest.changed,
            choices: rest.choices,
            metrics: rest.metrics,
            timing: rest.timing,
            completions: rest.completions,
        })
    }
}
