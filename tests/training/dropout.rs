//! Dropout in a whole model: the masks are computed again here and passed to the f64 reference.

use std::collections::BTreeMap;
use std::path::Path;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::adapter::lora::Slot;
use rullama_train::base::Module;
use rullama_train::data::batch::{MicroBatch, Step};
use rullama_train::gpu::{Gpu, Tier};
use rullama_train::model::Model;
use rullama_train::model::plan::{OnHost, Recompute};
use rullama_train::reference::model as reference;
use rullama_train::train::Dropout;

use super::golden::Golden;
use super::{check, check_that, gpu, gradient_bits, trainer};

const DROPOUT: Dropout = Dropout { probability: 0.3, seed: 42 };
/// Tolerances for loss and gradients, as in tests/golden.rs: with f32 operands, and with f16 operands.
const EXACT: [f64; 2] = [1e-5, 5e-5];
const HALF: [f64; 2] = [1e-3, 1e-2];

/// PCG output function, RXS-M-XS 32: `pcg` in shaders/dropout/plain.wgsl.
fn pcg(value: u32) -> u32 {
    let state = value.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (word >> 22) ^ word
}

/// The key of a micro-batch: `Dropout::mask` in src/train.rs.
fn key(seed: u64, step: u64, micro_batch: u64) -> u32 {
    let key = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (step << 20) ^ micro_batch;
    (key.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}

/// Modules that read the same input share a mask.
fn input(module: Module) -> usize {
    match module {
        Module::AttnQ | Module::AttnK | Module::AttnV => 0,
        Module::AttnQkv | Module::AttnGate | Module::SsmAlpha | Module::SsmBeta => 0,
        Module::ShortconvInProj | Module::AttnQA | Module::AttnKvAMqa => 0,
        Module::AttnQB => 1,
        Module::AttnKvB | Module::AttnKB | Module::AttnVB => 2,
        Module::AttnOutput | Module::SsmOut | Module::ShortconvOutProj => 3,
        Module::FfnGate | Module::FfnUp | Module::FfnGateUp => 4,
        Module::FfnGateShexp | Module::FfnUpShexp => 4,
        Module::FfnDown | Module::FfnDownShexp => 5,
        Module::InpGate => 6,
        Module::Proj => 7,
        Module::FfnGateInp | Module::FfnGateInpShexp => 8,
        Module::FfnGateUpExps => 9,
        Module::FfnDownExps => 10,
    }
}

/// One mask per slot, `[T, in]`, or for experts `[T·used, in]`. Inputs are numbered by layer, then in the order in which the
/// layer uses them.
fn masks<'a>(
    slots: impl Iterator<Item = &'a Slot> + Clone,
    (tokens, used): (usize, usize),
    key: u32,
) -> BTreeMap<Slot, Vec<f64>> {
    let mut inputs: Vec<(usize, usize)> = slots.clone().map(|s| (s.layer, input(s.module))).collect();
    inputs.sort_unstable();
    inputs.dedup();
    let threshold = (DROPOUT.probability * 2f64.powi(32)) as u32;
    let scale = f64::from((1.0 / (1.0 - DROPOUT.probability)) as f32);
    let mask = |slot: &Slot| {
        let number = inputs.binary_search(&(slot.layer, input(slot.module))).expect("the slot's own") as u32;
        let start = pcg(key.wrapping_mul(0x9e37_79b9).wrapping_add(number));
        let stride = slot.in_features.next_multiple_of(4);
        let element = |t: usize, c: usize| pcg(start.wrapping_add((t * stride + c) as u32)) < threshold;
        let row = |t: usize| (0..slot.in_features).map(move |c| (t, c));
        let rows = if slot.module.of_experts() { tokens * used } else { tokens };
        (0..rows).flat_map(row).map(|(t, c)| if element(t, c) { 0.0 } else { scale }).collect()
    };
    slots.map(|slot| (*slot, mask(slot))).collect()
}

pub fn against_reference(gpu: &Gpu) -> Result<(), Failed> {
    compare(gpu, "dense")
}

/// Checks a shared expert, whose score reads the router's input.
pub fn shared_expert_against_reference(gpu: &Gpu) -> Result<(), Failed> {
    compare(gpu, "qwen35moe")
}

/// Checks matrices that share an adapter: queries, keys and values, and gate and up, and keys and values of latent vectors.
pub fn fused_against_reference(gpu: &Gpu) -> Result<(), Failed> {
    ["phi3", "glm4moelite"].into_iter().try_for_each(|name| compare(gpu, name))?;
    // With operands in f16, a token of these masks takes another expert than the reference, which moves gradients by up to a tenth.
    if gpu.kernels().tier() == Tier::F32 { compare(gpu, "deepseek2") } else { Ok(()) }
}

/// Checks a mixture too: its router and its experts' own matrices are adapted.
pub fn experts_against_reference(gpu: &Gpu) -> Result<(), Failed> {
    compare(gpu, "moe")
}

fn compare(gpu: &Gpu, folder: &str) -> Result<(), Failed> {
    let [loss_allowed, gradient_allowed] = if gpu.kernels().tier() == Tier::F32 { EXACT } else { HALF };
    let g = Golden::read(&Path::new("tests/golden").join(folder));
    let experts = g.base.config().layers.iter().find_map(|l| l.experts);
    let used = experts.map_or(0, |experts| experts.used);
    let model = Model::load(gpu, &g.base, 128).expect("the model fits");
    let samples = [g.second.clone()];
    let step = Step::new(&samples, &[vec![0]]);
    let trainer = trainer(gpu, &model, &g.adapter, &[&step], DROPOUT, Recompute::Never);
    let number = 7;
    let (loss, gradients) = block_on(trainer.gradients(&step, number))?;

    let batch = MicroBatch::pack(&samples);
    let widen = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect();
    let pairs = g
        .adapter
        .pairs
        .iter()
        .map(|(slot, pair)| (*slot, reference::Pair { a: widen(&pair.a), b: widen(&pair.b) }));
    let adapter = reference::Adapter {
        rank: g.adapter.rank,
        scale: g.adapter.scale(),
        pairs: pairs.collect(),
        masks: masks(g.adapter.pairs.keys(), (batch.len(), used), key(DROPOUT.seed, number, 0)),
    };
    let zeros = adapter.masks.values().flatten().filter(|&&m| m == 0.0).count() as f64;
    let draws = adapter.masks.values().flatten().count() as f64;
    let share = zeros / draws;
    // Four standard deviations of so many independent draws, or of 10⁵: some masks are shared.
    let allowed = (4.0 * (DROPOUT.probability * (1.0 - DROPOUT.probability) / draws).sqrt()).max(6e-3);
    check("share of zeros", (share - DROPOUT.probability).abs(), allowed)?;
    let tensor = |name: &str| Some(widen(&g.base.matrix(name)?.dequantize()));
    let weights = reference::Weights::from_tensors(g.base.config(), tensor).expect("a whole model");
    let truth = reference::Model { config: g.base.config(), weights: &weights, adapter: &adapter };
    let factor = 1.0 / step.loss_tokens as f64;
    let activations = truth.forward(&batch);
    let expected = truth.loss(&batch, &activations, factor);
    check("loss", (loss - expected).abs() / expected, loss_allowed)?;
    let without = g.tensor("loss.lora")[0];
    check_that("dropout moves the loss", (loss - without).abs() > 1e-3 * without)?;
    let expected = truth.backward(&batch, &activations, factor);
    for (slot, pair) in &gradients {
        for (half, found, expected) in
            [("A", &pair.a, &expected.pairs[slot].a), ("B", &pair.b, &expected.pairs[slot].b)]
        {
            let relative = gpu::relative(&widen(found), expected);
            if relative.is_nan() || relative > gradient_allowed {
                check(&format!("gradient of {half} of {}", slot.name()), relative, gradient_allowed)?;
            }
        }
    }
    check_that("every slot has a gradient", gradients.len() == adapter.pairs.len())
}

pub fn same_bits(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/dense"));
    same_bits_of(gpu, &g, &[&[]])
}

/// Checks that a mixture gives the same results wherever its experts are.
pub fn same_bits_of_experts(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/moe"));
    same_bits_of(gpu, &g, &[&[], &[0, 2], &[0, 1, 2, 3]])?;
    same_bits_of(gpu, &g.with_experts_split(), &[&[], &[1, 3]])
}

/// `offloaded`: layers with their experts in host memory, one list per model. The others are compared with the first.
fn same_bits_of(gpu: &Gpu, g: &Golden, offloaded: &[&[usize]]) -> Result<(), Failed> {
    let samples = [g.first.clone(), g.second.clone()];
    let step = Step::new(&samples, &[vec![0], vec![1]]);
    let run = |layers: &[usize], seed: u64, number: u64, recompute| {
        let model = block_on(Model::offloading(gpu, &g.base, 128, &OnHost::experts(layers), |_| ()))
            .expect("the model fits");
        let dropout = Dropout { seed, ..DROPOUT };
        let trainer = trainer(gpu, &model, &g.adapter, &[&step], dropout, recompute);
        gradient_bits(&trainer, &step, number)
    };
    let first = run(offloaded[0], 42, 1, Recompute::Never);
    for layers in offloaded {
        let what = format!("experts of {layers:?} on the host");
        check_that(&format!("{what}: the same"), first == run(layers, 42, 1, Recompute::Never))?;
        let recomputed = first == run(layers, 42, 1, Recompute::Always);
        check_that(&format!("{what}: recomputation draws the same masks"), recomputed)?;
    }
    check_that("another seed draws others", first != run(offloaded[0], 43, 1, Recompute::Never))?;
    check_that("another step draws others", first != run(offloaded[0], 42, 2, Recompute::Never))
}
