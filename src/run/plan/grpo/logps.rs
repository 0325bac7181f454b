//! Log-probabilities of completions: the ranks divide the micro-batches, and all get every value.

use std::collections::BTreeMap;

use crate::adapter::lora::{Pair, Slot};
use crate::data::batch::MicroBatch;
use crate::train::ranks::micro_batches;
use crate::train::{TrainError, Trainer};

/// The log-probability of each loss token of `batches`, without dropout: under the current adapter, or under other values of it.
pub async fn logps(
    trainer: &Trainer<'_>,
    batches: &[MicroBatch],
    parameters: Option<&BTreeMap<Slot, Pair>>,
) -> Result<Vec<f32>, TrainError> {
    let ranks = trainer.ranks();
    let own = &batches[micro_batches(ranks.rank(), ranks.size(), batches.len())];
    let found = match parameters {
        None => trainer.logps(own).await?,
        Some(parameters) => trainer.logps_of(parameters, own).await?,
    };
    if ranks.size() == 1 {
        return Ok(found);
    }
    let all = ranks.gather(bytemuck::cast_slice(&found))?.concat();
    let (values, _) = all.as_chunks::<4>();
    Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect())
}
