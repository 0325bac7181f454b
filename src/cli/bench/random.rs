//! Random input: bases without a download, tokens and adapters.

use anyhow::{Result, bail};
use pollster::block_on;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::base::config::Config;
use rullama_train::base::{Base, Module};
use rullama_train::data::batch::{IGNORE, Sample, Step};
use rullama_train::families::Shape;

/// Opens a base. A published size has random weights.
pub fn open_base(name: &str) -> Result<Base> {
    Ok(match Shape::named(name) {
        Some(shape) => block_on(shape.base())?,
        None => Base::open(name)?,
    })
}

/// An adapter as training initialises it, with alpha twice the rank.
pub fn adapter(config: &Config, modules: &[Module], rank: usize) -> Adapter {
    Adapter::init(&slots(config, modules), rank, 2.0 * rank as f64, false, 0)
}

/// A step of `batch` sequences of random tokens. The last `loss_share` percent of each are loss tokens.
pub fn step(batch: usize, sequence: usize, loss_share: u8, vocab: usize) -> Result<Step> {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut sample = || {
        let ids: Vec<u32> = (0..sequence).map(|_| rng.random_range(0..vocab as u32)).collect();
        // As in a chat, where the answer comes last.
        let first = sequence - sequence * usize::from(loss_share) / 100;
        let label = |(i, &id): (usize, &u32)| if i < first { IGNORE } else { id as i32 };
        Sample { labels: ids.iter().enumerate().map(label).collect(), ids, origin: "random".into() }
    };
    let samples: Vec<Sample> = (0..batch).map(|_| sample()).collect();
    let step = Step::new(&samples, &[(0..batch).collect()]);
    if step.loss_tokens == 0 {
        bail!(
            "--loss-share {loss_share} leaves no loss token in a sequence of {sequence} tokens; raise one of the two"
        );
    }
    Ok(step)
}
