//! The training loop: recorded losses, determinism, dropout, stopping conditions, and the logits of exported adapters.

#[path = "../common/golden.rs"]
mod golden;
#[path = "../common/gpu.rs"]
mod gpu;
#[path = "../common/pieces.rs"]
mod pieces;

mod batched;
mod chat;
mod decode;
mod dropout;
mod exported;
mod following;
mod grpo;
mod library;
mod limits;
mod long;
mod offload;
mod planned;
mod ranks;
mod run;
mod scores;
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
use rullama_train::ops::op::Variant;
use rullama_train::train::{Capacity, Dropout, Trainer};

fn main() -> std::process::ExitCode {
    type Run = fn(&Gpu) -> Result<(), Failed>;
    const F32: &[Variant] = &[Variant::F32];

    let cases: [(&str, &[Variant], Run); 58] = [
        ("grpo: the same bytes after a stop, and for any number of sequences", F32, grpo::same_bytes),
        (
            "grpo: the sampler against the training pass",
            &[Variant::F32, Variant::F16, Variant::Coop8, Variant::Coop16, Variant::Cuda],
            grpo::one_engine,
        ),
        ("grpo: a reward that fails", F32, grpo::failing),
        ("chat: twenty steps of the recipe against PyTorch", F32, chat::twenty_steps),
        (
            "splits: a repeated step gives the same bits, and micro-batches of any size the same numbers",
            F32,
            splits::micro_batches,
        ),
        (
            "splits: kept and recomputed activations give the same bits",
            &[Variant::F32, Variant::F16, Variant::Coop8, Variant::Coop16, Variant::Cuda],
            splits::recompute,
        ),
        (
            "offload: experts in host memory give the same bits",
            &[Variant::F32, Variant::Coop16],
            offload::same_bits,
        ),
        (
            "offload: 128 experts in host memory give the same bits",
            &[Variant::F32, Variant::Coop16],
            offload::same_bits_of_many,
        ),
        (
            "offload: matrices and inputs of layers in host memory give the same bits",
            &[Variant::F32, Variant::Coop8, Variant::Coop16, Variant::Cuda],
            offload::same_bits_of_layers,
        ),
        ("offload: the same from upload buffers", F32, offload::same_bits_from_uploads),
        ("offload: plans keep to their limits", F32, offload::limits),
        ("offload: recipes", F32, offload::recipes),
        (
            "dropout: the masks of a whole model against the reference",
            &[Variant::F32, Variant::Coop16, Variant::Cuda],
            dropout::against_reference,
        ),
        (
            "dropout: the masks of a whole mixture against the reference",
            &[Variant::F32, Variant::Coop16],
            dropout::experts_against_reference,
        ),
        (
            "dropout: the masks of a whole mixture with a shared expert against the reference",
            &[Variant::F32, Variant::Coop16],
            dropout::shared_expert_against_reference,
        ),
        (
            "dropout: the masks of adapters of several matrices against the reference",
            &[Variant::F32, Variant::Coop16],
            dropout::fused_against_reference,
        ),
        ("dropout: the same seed gives the same bits, kept and recomputed", F32, dropout::same_bits),
        (
            "dropout: for experts, the same seed gives the same bits, on the device or in host memory",
            &[Variant::F32, Variant::Coop16],
            dropout::same_bits_of_experts,
        ),
        (
            "following: steps that begin early give the same bits",
            &[Variant::F32, Variant::Cuda],
            following::same_bits,
        ),
        ("limits: a gradient that is not finite leaves the adapter unchanged", F32, limits::not_finite),
        ("limits: an overflow in a layer is reported in training and in evaluation", F32, limits::overflow),
        ("limits: a step without loss is refused", F32, limits::no_loss),
        (
            "limits: all kernels of steps and evaluations are compiled ahead",
            &[Variant::F32, Variant::Coop8, Variant::Coop16, Variant::Cuda],
            limits::compiled_ahead,
        ),
        ("limits: one sample is overfitted", F32, limits::overfit),
        (
            "limits: a feed-forward whose values exceed f16",
            &[Variant::F32, Variant::F16, Variant::Coop8, Variant::Coop16],
            limits::beyond_f16,
        ),
        ("decode: in long passes", &[Variant::Coop8, Variant::Coop16], decode::in_f16),
        ("decode: token by token, in bytes", &[Variant::Coop16], decode::in_bytes),
        ("exported: a folder computes PEFT's logits", F32, exported::logits),
        (
            "decode: token by token and in passes gives the training forward's logits",
            F32,
            decode::against_training,
        ),
        ("decode: with keys split over workgroups", F32, decode::keys_split),
        ("decode: families that differ by numbers", F32, decode::kin),
        (
            "decode: the plan counts what replies take",
            &[Variant::F32, Variant::F16, Variant::Coop8, Variant::Coop16],
            planned::replies,
        ),
        ("decode: log-probabilities of prompts against PyTorch", F32, scores::against_pytorch),
        ("decode: log-probabilities of a long prompt", F32, scores::long_prompts),
        (
            "batched: sequences have the same bytes in any company",
            &[Variant::F32, Variant::F16, Variant::Coop8, Variant::Coop16],
            batched::parts,
        ),
        (
            "batched: those of all other families",
            &[Variant::F32, Variant::F16, Variant::Coop8, Variant::Coop16],
            batched::others,
        ),
        ("batched: with experts in host memory", F32, batched::offloaded),
        ("batched: completions of any number of sequences and order", F32, batched::completions),
        ("decode: rewind", F32, decode::rewind),
        ("decode: delta nets and short convolutions, unmerged and merged", F32, decode::states),
        ("decode: kernels are compiled ahead", F32, decode::compiled_ahead),
        ("shapes: random weights of given shapes", F32, shapes::train),
        ("shapes: what layers keep fits a binding", F32, shapes::bindings),
        ("long: heads in parts where buffers are short", F32, long::short_buffers),
        ("long: no plan of a published size has a buffer of more than 4 GiB", F32, long::plans),
        ("decode: greedy replies, unmerged, merged and by the training forward", F32, decode::greedy),
        ("exported: every format gives the same replies", F32, exported::replies),
        ("run: every host sees the same events, the library included", F32, run::events),
        ("run: a stop comes before a due checkpoint", F32, run::stops),
        ("run: samples are decided during the run", F32, run::decided),
        ("run: an adapter that the final check refuses is kept", F32, run::refused),
        ("run: steps that are not finite are skipped as often as allowed", F32, run::skipped_steps),
        ("ranks: shares have the same bytes on one, two and four ranks", F32, ranks::same_bytes),
        ("ranks: one share changes nothing", F32, ranks::shares),
        ("ranks: a rank that fails ends the others", F32, ranks::failures),
        ("library: the examples run", F32, library::examples),
        ("library: training without a recipe file", F32, library::quick_path),
        ("library: a base that is read in ranges gives the same bits", F32, library::streamed),
    ];
    let tests = cases.into_iter().flat_map(|(name, variants, run)| {
        let slow = |variant| match variant {
            Variant::F16 => name.starts_with("splits: kept and recomputed") || name.starts_with("batched: "),
            Variant::F32 => {
                ["offload: 128", "batched: with", "batched: those"].iter().any(|slow| name.starts_with(slow))
            }
            _ => false,
        };
        variants.iter().map(move |variant| gpu::Test::new(name, *variant, run).slow(slow(*variant)))
    });
    gpu::run(tests.collect())
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

/// Loss and gradients of `step` as bits: NaN and the sign of zero count.
fn gradient_bits(trainer: &Trainer, step: &Step, number: u64) -> (u64, Vec<u32>) {
    let (loss, gradients) = block_on(trainer.gradients(step, number)).expect("a sound step");
    (loss.to_bits(), bits(&gradients))
}

/// All values of all matrices.
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
