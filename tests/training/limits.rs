//! Conditions that end training: gradients that are not finite, steps without loss, and a memorized sample.

use std::collections::BTreeSet;
use std::path::Path;

use half::f16;
use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::base::Base;
use rullama_train::base::Module;
use rullama_train::base::formats::GgmlType;
use rullama_train::base::gguf::Gguf;
use rullama_train::data::batch::{IGNORE, Sample, Step};
use rullama_train::gpu::{Gpu, GpuOptions, Tier};
use rullama_train::model::Model;
use rullama_train::model::plan::Recompute;
use rullama_train::ops::adamw::AdamW;
use rullama_train::train::{Dropout, Optimizer, TrainError};

use super::golden::Golden;
use super::{bits, check, check_that, trainer};

pub const ADAMW: Optimizer = Optimizer {
    adam: Some(AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }),
    weight_decay: 0.0,
    max_grad_norm: 1.0,
};
/// Plain gradient descent needs 21 steps.
const STEPS: u64 = 30;
const SGD: Optimizer = Optimizer { adam: None, ..ADAMW };

pub fn not_finite(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/ollama"));
    let model = Model::load(gpu, &g.base, 128).expect("the model fits");
    let step = Step::new(std::slice::from_ref(&g.first), &[vec![0]]);
    for (name, optimizer) in [("sgd", SGD), ("adamw", ADAMW)] {
        let trainer = trainer(gpu, &model, &g.adapter, &[&step], Dropout::NONE, Recompute::Never);
        // A step so large that A, B and their product leave the range of f32.
        block_on(trainer.step(&step, 1, &optimizer, 1e30))?;
        let before = bits(&block_on(trainer.adapter())?);
        check_that(&format!("{name}: the first step moves"), before != bits(&g.adapter.pairs))?;
        let result = block_on(trainer.step(&step, 2, &optimizer, 1e30));
        println!("{name}: {result:?}");
        let what = format!("{name}: the second step is refused");
        check_that(&what, matches!(result, Err(TrainError::NotFinite { step: 2, .. })))?;
        let after = bits(&block_on(trainer.adapter())?);
        check_that(&format!("{name}: the second step leaves the adapter as it was"), before == after)?;
    }
    Ok(())
}

/// An overflow inside the model, however it propagates, must not look like the loss of a model that guesses.
pub fn overflow(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/ollama"));
    let model = Model::load(gpu, &g.base, 128).expect("the model fits");
    let step = Step::new(std::slice::from_ref(&g.first), &[vec![0]]);
    let modules: BTreeSet<_> = g.adapter.pairs.keys().map(|s| s.module).collect();
    let matrices: BTreeSet<_> = slots(g.base.config(), Module::ALL_LINEAR).iter().map(|s| s.module).collect();
    check_that("the adapter is on every matrix of the base", modules == matrices)?;
    for module in modules {
        let mut adapter = g.without_effect();
        // Finite itself, but its squares are not.
        let slot = *adapter.pairs.keys().find(|s| s.module == module).expect("it has the module");
        adapter.pairs.get_mut(&slot).expect("its own").b.fill(1e24);
        let name = slot.name();
        let trainer = trainer(gpu, &model, &adapter, &[&step], Dropout::NONE, Recompute::Never);
        let found = block_on(trainer.evaluate(&step.micro_batches, |_| {}))?;
        println!("{name}: loss {:.4}, {} of {} not finite", found.loss(), found.not_finite, found.tokens);
        check_that(&format!("evaluation sees the overflow of {name}"), found.not_finite > 0)?;
        let result = block_on(trainer.step(&step, 1, &ADAMW, 1e-3));
        let seen = matches!(result, Err(TrainError::NotFinite { step: 1, rows, .. }) if rows > 0);
        check_that(&format!("the step sees it: {result:?}"), seen)?;
        let after = bits(&block_on(trainer.adapter())?);
        check_that("the step leaves the adapter as it was", after == bits(&adapter.pairs))?;
    }
    Ok(())
}

/// All kernels of a step are compiled ahead, in parallel. A kernel that a step compiles itself delays the step.
pub fn compiled_ahead(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/ollama"));
    let step = Step::new(std::slice::from_ref(&g.first), &[vec![0]]);
    let masked = Dropout { probability: 0.3, seed: 1 };
    for (dropout, recompute) in [(Dropout::NONE, Recompute::Never), (masked, Recompute::Always)] {
        // A device that has compiled nothing.
        let fresh = block_on(Gpu::open(GpuOptions::default()))?.with_kernels(gpu.kernels());
        let model = Model::load(&fresh, &g.base, 128).expect("the model fits");
        let trainer = trainer(&fresh, &model, &g.adapter, &[&step], dropout, recompute);
        let new = block_on(trainer.compile(&step.micro_batches, &ADAMW))?;
        let compiled = fresh.compiled();
        println!("{new} compiled, {compiled} in all");
        check_that("kernels are compiled ahead", new > 20 && new == compiled)?;
        block_on(trainer.step(&step, 1, &ADAMW, 1e-3))?;
        block_on(trainer.evaluate(&step.micro_batches, |_| {}))?;
        check_that(&format!("{} of {compiled} were", fresh.compiled()), fresh.compiled() == compiled)?;
        check_that("none are left", block_on(trainer.compile(&step.micro_batches, &ADAMW))? == 0)?;
    }
    Ok(())
}

pub fn no_loss(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/ollama"));
    let model = Model::load(gpu, &g.base, 128).expect("the model fits");
    let mut sample = g.first.clone();
    sample.labels.fill(IGNORE);
    let step = Step::new(&[sample], &[vec![0]]);
    let trainer = trainer(gpu, &model, &g.adapter, &[&step], Dropout::NONE, Recompute::Never);
    let result = block_on(trainer.step(&step, 3, &SGD, 0.1));
    check_that("the step is refused", matches!(result, Err(TrainError::NoLoss { step: 3 })))?;
    let after = block_on(trainer.adapter())?;
    check_that("the adapter is as it was", bits(&after) == bits(&g.adapter.pairs))
}

pub fn overfit(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/ollama"));
    let model = Model::load(gpu, &g.base, 128).expect("the model fits");
    let step = Step::new(std::slice::from_ref(&g.first), &[vec![0]]);
    for (name, optimizer, learning_rate) in [("sgd", SGD, 0.3), ("adamw", ADAMW, 1e-2)] {
        let trainer = trainer(gpu, &model, &g.adapter, &[&step], Dropout::NONE, Recompute::Never);
        let mut losses = Vec::new();
        for number in 1..=STEPS {
            losses.push(block_on(trainer.step(&step, number, &optimizer, learning_rate))?.loss);
        }
        let below = losses.iter().position(|&loss| loss < 0.05);
        println!("{name}: loss {:.3}, below 0.05 after {below:?} steps", losses[0]);
        check_that(&format!("{name} learns a sample in {STEPS} steps: {losses:.3?}"), below.is_some())?;
    }
    Ok(())
}

/// A feed-forward block whose activations far exceed the range of f16 before a norm rescales them: the loss is the same, and so
/// are the gradients, apart from the magnitudes of the inputs of `up` and `down`.
pub fn beyond_f16(gpu: &Gpu) -> Result<(), Failed> {
    const SCALE: f32 = 4096.0;
    let path = Path::new("models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
    let (mut bytes, gguf) = (std::fs::read(path)?, Gguf::open(path)?);
    for layer in 0..4 {
        let up = gguf.tensor(&format!("blk.{layer}.ffn_up.weight")).expect("there");
        assert_eq!(up.ty, GgmlType::Q4_K, "its blocks begin with two f16 scales");
        for block in bytes[up.range.start as usize..up.range.end as usize].chunks_exact_mut(144) {
            for scale in block[..4].chunks_exact_mut(2) {
                let wide = f16::from_le_bytes([scale[0], scale[1]]).to_f32() * SCALE;
                scale.copy_from_slice(&f16::from_f32(wide).to_le_bytes());
            }
        }
    }
    let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
    std::fs::write(file.path(), bytes)?;

    let ids: Vec<u32> = (0..64).map(|i| 5 + i * 31 % 2000).collect();
    let labels = ids.iter().map(|&id| id as i32).collect();
    let step =
        Step::new(&[Sample { ids, labels, origin: "numbers".into(), ..Sample::default() }], &[vec![0]]);
    let run = |base: Base| -> Result<_, Failed> {
        let model = Model::load(gpu, &base, 64)?;
        let adapter = Adapter::init(&slots(base.config(), &Module::ALL), 4, 8.0, false, 0);
        let trainer = trainer(gpu, &model, &adapter, &[&step], Dropout::NONE, Recompute::Never);
        Ok(block_on(trainer.gradients(&step, 1))?)
    };
    let (loss, gradients) = run(Base::tiny()?)?;
    let (scaled_loss, scaled) = run(Base::open(file.path().to_str().expect("UTF-8"))?)?;
    let tolerance = if gpu.kernels().tier() != Tier::F32 { 1e-2 } else { 1e-4 };
    check("loss", (scaled_loss - loss).abs() / loss, tolerance / 5.0)?;
    for (slot, pair) in &gradients {
        // B is zero, so every A still has a zero gradient.
        let size = if slot.module == Module::FfnUp { SCALE } else { 1.0 };
        let found: Vec<f64> = scaled[slot].b.iter().map(|g| f64::from(size * g)).collect();
        let expected: Vec<f64> = pair.b.iter().map(|&g| f64::from(g)).collect();
        check(&slot.name(), super::gpu::relative(&found, &expected), tolerance)?;
    }
    Ok(())
}
