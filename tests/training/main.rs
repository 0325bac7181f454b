//! The loop as a whole: recorded losses, determinism, dropout, what stops a run, what an exported adapter computes.

#[path = "../common/golden.rs"]
mod golden;
#[path = "../common/gpu.rs"]
mod gpu;
#[path = "../common/pieces.rs"]
mod pieces;

mod chat;
mod decode;
mod dropout;
mod exported;
mod library;
mod limits;
mod offload;
mod run;
mod shapes;
mod splits;

use std::collections::BTreeMap;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::adapter::lora::{Adapter, Pair, Slot};
use rullama_train::data::batch::Step;
use rullama_train::gpu::Gpu;
use rullama_train::model::Model;
use rullama_train::model::plan::Recompute;
use rullama_train::train::{Capacity, Dropout, Trainer};

fn main() {
    type Test = fn(&Gpu) -> Result<(), Failed>;
    let tests: [(&str, Test); 44] = [
        ("chat: twenty steps of the recipe against PyTorch", chat::twenty_steps),
        (
            "splits: the same steps twice give the same bits, micro-batches of any size the same numbers",
            splits::micro_batches,
        ),
        ("splits: kept and recomputed activations give the same bits", splits::recompute),
        ("splits: cooperative, kept and recomputed activations give the same bits", splits::recompute),
        ("offload: experts in host memory give the same bits", offload::same_bits),
        ("offload: cooperative, experts in host memory give the same bits", offload::same_bits),
        ("offload: a limit takes as few experts off the device as it must", offload::limits),
        ("offload: recipes", offload::recipes),
        ("dropout: the masks of a whole model against the reference", dropout::against_reference),
        ("dropout: the masks of a whole mixture against the reference", dropout::experts_against_reference),
        (
            "dropout: cooperative, the masks of a whole model against the reference",
            dropout::against_reference,
        ),
        (
            "dropout: cooperative, the masks of a whole mixture against the reference",
            dropout::experts_against_reference,
        ),
        ("dropout: the same seed gives the same bits, kept and recomputed", dropout::same_bits),
        (
            "dropout: of experts, the same seed gives the same bits, wherever they lie",
            dropout::same_bits_of_experts,
        ),
        (
            "dropout: cooperative, of experts, the same seed gives the same bits, wherever they lie",
            dropout::same_bits_of_experts,
        ),
        ("limits: a gradient that is not finite leaves the adapter as it was", limits::not_finite),
        ("limits: an overflow inside is seen in training and in evaluation", limits::overflow),
        ("limits: a step without loss is refused", limits::no_loss),
        ("limits: what is compiled ahead is all that steps and evaluations run", limits::compiled_ahead),
        (
            "limits: cooperative, what is compiled ahead is all that steps and evaluations run",
            limits::compiled_ahead,
        ),
        ("limits: one sample is learned by heart", limits::overfit),
        ("limits: a feed-forward beyond f16", limits::beyond_f16),
        ("limits: cooperative, a feed-forward beyond f16", limits::beyond_f16),
        ("limits: a feed-forward beyond f16 (operands in f16)", limits::beyond_f16),
        ("splits: kept and recomputed activations give the same bits (operands in f16)", splits::recompute),
        (
            "limits: what is compiled ahead is all that steps and evaluations run (8×8 matrices)",
            limits::compiled_ahead,
        ),
        ("limits: a feed-forward beyond f16 (8×8 matrices)", limits::beyond_f16),
        ("splits: kept and recomputed activations give the same bits (8×8 matrices)", splits::recompute),
        ("decode: in long passes (8×8 matrices)", decode::in_f16),
        ("exported: a folder computes what PEFT computes", exported::logits),
        ("decode: token by token and in passes, the training forward's logits", decode::against_training),
        ("decode: the same with the keys split over workgroups", decode::keys_split),
        ("decode: cooperative, in long passes", decode::in_f16),
        ("decode: going back", decode::rewind),
        ("shapes: sizes without weights", shapes::train),
        ("decode: greedy replies, unmerged, merged and by the training forward", decode::greedy),
        ("exported: every format gives the same replies", exported::replies),
        ("run: every host sees the same events, the library included", run::events),
        ("run: a stop comes before a due checkpoint", run::stops),
        ("run: an adapter that the final check refuses is kept", run::refused),
        ("run: steps that are not finite are skipped as often as allowed", run::skipped_steps),
        ("library: the examples run", library::examples),
        ("library: training without a recipe file", library::quick_path),
        ("library: a base that is read by ranges gives the same bits", library::streamed),
    ];
    gpu::run(tests.map(|(name, test)| (name.into(), Box::new(test) as _)).into())
}

/// A trainer with room for `steps`.
fn trainer<'a>(
    gpu: &'a Gpu,
    model: &'a Model<'a>,
    adapter: &Adapter,
    steps: &[&Step],
    dropout: Dropout,
    recompute: Recompute,
) -> Trainer<'a> {
    let mut capacity = Capacity::default();
    steps.iter().for_each(|s| capacity.include(s));
    Trainer::new(gpu, model, adapter, capacity, dropout, recompute).expect("the buffers fit")
}

/// The loss and the gradients of `step` as bits: NaN and the sign of zero count.
fn gradient_bits(trainer: &Trainer, step: &Step, number: u64) -> (u64, Vec<u32>) {
    let (loss, gradients) = block_on(trainer.gradients(step, number)).expect("a sound step");
    (loss.to_bits(), bits(&gradients))
}

/// Every value of every matrix.
fn values(pairs: &BTreeMap<Slot, Pair>) -> impl Iterator<Item = f32> {
    pairs.values().flat_map(|pair| pair.a.iter().chain(&pair.b)).copied()
}

fn bits(pairs: &BTreeMap<Slot, Pair>) -> Vec<u32> {
    values(pairs).map(f32::to_bits).collect()
}

fn wide(pairs: &BTreeMap<Slot, Pair>) -> Vec<f64> {
    values(pairs).map(f64::from).collect()
}

fn check(what: &str, found: f64, tolerance: f64) -> Result<(), Failed> {
    println!("{what}: {found:.2e} (at most {tolerance:.0e})");
    // Written so that NaN fails.
    if found <= tolerance {
        Ok(())
    } else {
        Err(format!("{what}: {found:e}, expected at most {tolerance:e}").into())
    }
}

fn check_that(what: &str, holds: bool) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(format!("expected that {what}").into()) }
}
