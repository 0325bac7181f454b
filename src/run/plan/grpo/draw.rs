//! Drawing completions: the ranks divide the prompts, and all get every completion.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::adapter::lora::Adapter;
use crate::model::decode::{Lengths, Workspace};
use crate::run::OpenBase;
use crate::run::plan::batches::Hear;
use crate::run::plan::phase::Phase;
use crate::talk::generate::{CHUNK, GenerateError};
use crate::talk::reply::Finish;
use crate::talk::rollouts::{Batch, Event, Request};
use crate::train::ranks::micro_batches;
use crate::train::{TrainError, Trainer};

/// A completion as it was drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    /// The tokens, with the end token where the model ended it.
    pub ids: Vec<u32>,
    /// The bits of their log-probabilities, which text would round.
    logprobs: Vec<u32>,
    /// Whether the model ended it.
    pub finished: bool,
}

impl Drawn {
    /// The log-probability of each token.
    pub fn logprobs(&self) -> Vec<f32> {
        self.logprobs.iter().map(|bits| f32::from_bits(*bits)).collect()
    }

    /// The text, without the end token.
    pub fn text(&self, base: &OpenBase) -> String {
        let end = usize::from(self.finished);
        base.tokenizer.decode(&self.ids[..self.ids.len() - end])
    }
}

/// The seed of a completion's random stream. Equal arguments give equal streams, and others give unrelated ones.
pub fn seed(seed: u64, step: usize, prompt: usize, number: usize) -> u64 {
    let mut hash = Sha256::new();
    hash.update(b"completion");
    [seed, step as u64, prompt as u64, number as u64].iter().for_each(|n| hash.update(n.to_le_bytes()));
    let digest = hash.finalize();
    u64::from_le_bytes(digest[..8].try_into().expect("eight bytes"))
}

/// Completes all `requests`, of which `group` that follow one another have the same prompt. A completion depends on its request and the
/// adapter alone. `None` if the user asked to stop.
pub async fn draw(
    trainer: &Trainer<'_>,
    base: &OpenBase,
    initial: &Adapter,
    (requests, group): (&[Request], usize),
    hear: Hear<'_>,
) -> Result<Option<Vec<Drawn>>, TrainError> {
    let ranks = trainer.ranks();
    let groups = micro_batches(ranks.rank(), ranks.size(), requests.len().div_ceil(group));
    let own = &requests[groups.start * group..(groups.end * group).min(requests.len())];
    let drawn = draw_own(trainer, base, initial, own, hear).await?;
    let stopped = ranks.largest(drawn.is_none().into())? > 0;
    let Some(drawn) = drawn.filter(|_| !stopped) else { return Ok(None) };
    if ranks.size() == 1 {
        return Ok(Some(drawn));
    }
    let all = ranks.gather(&serde_json::to_vec(&drawn).expect("lists of numbers"))?;
    let parse = |bytes: &Vec<u8>| -> Vec<Drawn> {
        serde_json::from_slice(bytes).expect("what another rank has written")
    };
    Ok(Some(all.iter().flat_map(parse).collect()))
}

async fn draw_own(
    trainer: &Trainer<'_>,
    base: &OpenBase,
    initial: &Adapter,
    requests: &[Request],
    hear: Hear<'_>,
) -> Result<Option<Vec<Drawn>>, TrainError> {
    if requests.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let adapter = Adapter { pairs: trainer.adapter().await?, ..initial.clone() };
    let lengths = Lengths { context: trainer.capacity().sequences.context, chunk: CHUNK };
    let count = trainer.plan().sequences.min(requests.len());
    let (gpu, model) = (trainer.gpu(), trainer.model());
    let workspace = Workspace::for_sequences(gpu, model, lengths, adapter.rank, count).await?;
    let mut batch = Batch::new(&workspace, &base.tokenizer, Some(&adapter))?;
    let (mut done, mut stopped) = (0, !hear(Phase::Completions, 0, requests.len()));
    let flow = |stopped: bool| if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let completions = batch.complete(requests, |event| {
        done += usize::from(matches!(event, Event::Done(_)));
        stopped = stopped || !hear(Phase::Completions, done, requests.len());
        flow(stopped)
    });
    let completions = completions.await.map_err(failed)?;
    let drawn = completions.into_iter().map(|completion| Drawn {
        ids: completion.ids,
        logprobs: completion.logprobs.iter().map(|logprob| logprob.to_bits()).collect(),
        finished: completion.finish == Finish::Stop,
    });
    Ok((!stopped).then(|| drawn.collect()))
}

fn failed(error: GenerateError) -> TrainError {
    match error {
        GenerateError::Gpu(error) => error.into(),
        error => TrainError::Rewards(format!("a completion cannot be drawn: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::seed;

    #[test]
    fn every_argument_of_a_seed_counts() {
        let mut seeds =
            vec![seed(0, 0, 0, 0), seed(1, 0, 0, 0), seed(0, 1, 0, 0), seed(0, 0, 1, 0), seed(0, 0, 0, 1)];
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 5);
    }
}
