//! Random input: bases without a download, tokens and adapters.

use std::sync::Arc;

use anyhow::{Result, bail};
use pollster::block_on;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::base::config::Config;
use rullama_train::base::{Base, Module};
use rullama_train::data::batch::{Compared, Comparison, IGNORE, Sample, Step};
use rullama_train::data::compare::Side;
use rullama_train::data::teacher::TeacherRows;
use rullama_train::families::Shape;
use rullama_train::run::{self, distill};
use rullama_train::train::objective::{Objective, Preference};

use super::BenchArgs;

/// Opens a base. A published size has random weights.
pub fn open_base(name: &str) -> Result<Base> {
    Ok(match Shape::named(name) {
        Some(shape) => block_on(shape.base())?,
        None => {
            crate::cli::pull::base(name)?;
            Base::open(name)?
        }
    })
}

/// Tokens of the teacher per loss token, as recipes have unless they set another number.
const TAUGHT: usize = 64;

/// An adapter as training initialises it, with alpha twice the rank.
pub fn adapter(config: &Config, modules: &[Module], rank: usize) -> Adapter {
    Adapter::init(&slots(config, modules), rank, 2.0 * rank as f64, false, 0)
}

/// A step of `micro_batches` micro-batches of random tokens. The last tokens of each sequence of `sequence` are loss tokens.
pub fn step(args: &BenchArgs, sequence: usize, micro_batches: usize, vocab: usize) -> Result<Step> {
    let mut step = batches(args.batch, sequence, args.loss_share, micro_batches, vocab)?;
    match run::objective_of(&args.objective()) {
        Objective::CrossEntropy | Objective::Grpo(_) => {}
        Objective::Preference(preference) => step.comparison = Some(comparison(&step, &preference)),
        Objective::Distill(_) => {
            let (top, whole) = distill::room::kept(TAUGHT, vocab, vocab);
            let teacher = Arc::new(TeacherRows::unknown(top, whole));
            step.micro_batches.iter_mut().for_each(|batch| batch.teacher = Some(teacher.clone()));
        }
    }
    Ok(step)
}

/// Comparisons of neighbouring sequences, with a reference of 0.
fn comparison(step: &Step, preference: &Preference) -> Comparison {
    let (sides, per_unit) = match preference.is_rated() {
        true => ([Side::Desirable, Side::Undesirable], 1),
        false => ([Side::Chosen, Side::Rejected], 2),
    };
    let count: usize = step.micro_batches.iter().map(|batch| batch.samples()).sum();
    Comparison {
        samples: (0..count).map(|i| Compared { side: sides[i % 2], reference: 0.0 }).collect(),
        units: count / per_unit,
        good_tokens: step.loss_tokens / 2,
        mismatched: if preference.needs_mismatched() { step.micro_batches.clone() } else { Vec::new() },
        mismatched_reference: 0.0,
    }
}

/// A step of `micro_batches` times `batch` sequences of random tokens. The last `loss_share` percent of each are loss tokens.
pub fn batches(
    batch: usize,
    sequence: usize,
    loss_share: u8,
    micro_batches: usize,
    vocab: usize,
) -> Result<Step> {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut sample = || {
        let ids: Vec<u32> = (0..sequence).map(|_| rng.random_range(0..vocab as u32)).collect();
        // As in a chat, where the answer comes last.
        let first = sequence - sequence * usize::from(loss_share) / 100;
        let label = |(i, &id): (usize, &u32)| if i < first { IGNORE } else { id as i32 };
        Sample {
            labels: ids.iter().enumerate().map(label).collect(),
            ids,
            origin: "random".into(),
            ..Sample::default()
        }
    };
    let samples: Vec<Sample> = (0..batch * micro_batches).map(|_| sample()).collect();
    let plan: Vec<Vec<usize>> = (0..micro_batches).map(|i| (i * batch..(i + 1) * batch).collect()).collect();
    let step = Step::new(&samples, &plan);
    if step.loss_tokens == 0 {
        bail!(
            "--loss-share {loss_share} leaves no loss token in a sequence of {sequence} tokens; raise one of the two"
        );
    }
    Ok(step)
}
