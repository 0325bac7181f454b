//! The ranks of a run that neither print nor write: they get the state from rank 0, and take every step with it.

use anyhow::{Error, Result};
use rullama_train::adapter::lora::Adapter;
use rullama_train::recipe::Recipe;
use rullama_train::run::checkpoint::Checkpoint;
use rullama_train::run::{self, Asked, Host, Run, RunEvent};
use rullama_train::train::ranks::Ranks;

use super::TrainArgs;
use super::resume::{self, Found, Start};
use super::stop::Stop;

/// The host of a rank other than 0.
pub struct Follower {
    stop: Stop,
}

impl Follower {
    /// Listens for signals, which launchers pass on to every rank.
    pub fn new() -> Result<Follower> {
        Ok(Follower { stop: Stop::listen_quietly()? })
    }
}

impl Host for Follower {
    type Error = anyhow::Error;

    fn on_event(&mut self, _: &Run<'_>, _: RunEvent<'_>) -> Result<()> {
        Ok(())
    }

    async fn asked(&mut self, _: &Run<'_>) -> Asked {
        if self.stop.asked() { Asked::Stop } else { Asked::Nothing }
    }

    fn is_stopping(&self) -> bool {
        self.stop.asked()
    }
}

/// The number of shares of the run: that of the recipe, else that of the run that is resumed, else one for each process.
pub fn shares(ranks: &Ranks, recipe: &Recipe, args: &TrainArgs) -> Result<usize> {
    let earlier = match recipe.train.shares {
        None if ranks.is_first() => resume::shares(&recipe.output.dir, args),
        shares => shares,
    };
    let sent = ranks.broadcast(earlier.map_or(Vec::new(), |shares| shares.to_string().into_bytes()))?;
    let mut recipe = recipe.clone();
    recipe.train.shares = String::from_utf8_lossy(&sent).parse().ok();
    Ok(run::shares(&recipe, ranks.size())?)
}

/// Gives every rank what rank 0 has found in the output folder. `None` on the others where the run is over. Only rank 0 has a `found`.
pub fn share(ranks: &Ranks, found: Option<Found>, initial: &Adapter) -> Result<Option<Found>> {
    if ranks.size() == 1 {
        return Ok(found);
    }
    let sent = match &found {
        Some(Found::Start(start)) => {
            let checkpoint = start.checkpoint.as_ref().map(Checkpoint::to_bytes).unwrap_or_default();
            let changes = serde_json::to_vec(&start.changes)?;
            [&(changes.len() as u64).to_le_bytes()[..], &changes, &checkpoint].concat()
        }
        _ => Vec::new(),
    };
    let bytes = ranks.broadcast(sent)?;
    if ranks.is_first() || bytes.is_empty() {
        return Ok(found);
    }
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into()?) as usize;
    let (changes, checkpoint) = rest.split_at(length);
    let checkpoint = match checkpoint {
        [] => None,
        bytes => Some(Checkpoint::from_bytes(bytes, initial).map_err(Error::msg)?),
    };
    let start = Start { checkpoint, changes: serde_json::from_slice(changes)?, ..Start::default() };
    Ok(Some(Found::Start(start.into())))
}
