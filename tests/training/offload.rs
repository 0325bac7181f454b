//! Matrices and inputs of layers in host memory: results are bit-identical, and less GPU memory is used.

use std::path::Path;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::base::Module;
use rullama_train::base::{Base, Gguf};
use rullama_train::data::batch::{Sample, Step};
use rullama_train::families::{Shape, gemma4};
use rullama_train::gpu::{Gpu, GpuError, GpuOptions};
use rullama_train::model::decode::{Decoder, Lengths, Workspace};
use rullama_train::model::plan::{Offload, OnHost, Passes, Plan, Recompute, Saves, Share, with_experts};
use rullama_train::model::{Model, Trainable};
use rullama_train::recipe::{Recipe, Switch};
use rullama_train::run::finetune::{finetune, samples};
use rullama_train::run::{self, OpenBase, RunError};
use rullama_train::train::{Capacity, Dropout, Trainer};

use super::golden::{FOLDERS, Golden, split_experts};
use super::limits::ADAMW;
use super::{bits, check_that, gradient_bits, trainer};

/// Losses, gradients, the trained adapter, evaluations, logits and replies as bits, for a model with `on_host` in host memory.
fn everything(
    gpu: &Gpu,
    g: &Golden,
    on_host: &OnHost,
    recompute: Recompute,
) -> Result<Vec<Vec<u64>>, Failed> {
    let model = block_on(Model::offloading(gpu, &g.base, 128, on_host, |_| ()))?;
    assert_eq!(model.on_host(), on_host);
    let samples = [g.first.clone(), g.second.clone()];
    let step = Step::new(&samples, &[vec![0], vec![1]]);
    let trainer = trainer(gpu, &model, &g.adapter, &[&step], Dropout::NONE, recompute);
    let mut found = Vec::new();
    let wide = |bits: Vec<u32>| bits.into_iter().map(u64::from).collect::<Vec<_>>();
    found.push(vec![block_on(trainer.step(&step, 1, &ADAMW, 1e-3))?.loss.to_bits()]);
    let trained = Adapter { pairs: block_on(trainer.adapter())?, ..g.adapter.clone() };
    found.push(wide(bits(&trained.pairs)));
    found.push(vec![block_on(trainer.evaluate(&step.micro_batches, |_| ()))?.loss_sum.to_bits()]);
    let logits = block_on(trainer.logits(&step.micro_batches[1], &[3, 17]))?;
    found.push(logits.into_iter().map(|l| l.to_bits().into()).collect());

    // Between two passes of the trainer, like the prompts of an evaluation.
    let workspace = Workspace::new(gpu, &model, Lengths { context: 64, chunk: 12 }, trained.rank)?;
    let mut decoder = Decoder::new(&workspace, Some(&trained))?;
    block_on(decoder.append(&g.first.ids[..12]))?;
    for at in 12..16 {
        let logits = block_on(decoder.logits(&g.first.ids[at..at + 1]))?;
        found.push(logits.into_iter().map(|l| l.to_bits().into()).collect());
    }
    found.push(vec![block_on(decoder.likeliest(&g.first.ids[16..20]))?.index.into()]);

    let (loss, gradients) = gradient_bits(&trainer, &step, 2);
    found.push(vec![loss]);
    found.push(wide(gradients));
    Ok(found)
}

/// Offloads the experts of no layer, one, some and all, stored in one tensor and in two, with activations kept and recomputed.
pub fn same_bits(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/moe"));
    same_bits_of(gpu, &g, &[(&[0, 2], Recompute::Always), (&[0, 1, 2, 3], Recompute::Never)])?;
    let split = g.with_experts_split();
    same_bits_of(gpu, &split, &[(&[2], Recompute::Always), (&[1, 2, 3], Recompute::Always)])
}

/// Likewise with many experts.
pub fn same_bits_of_many(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/moe128"));
    same_bits_of(gpu, &g, &[(&[0, 1], Recompute::Never)])
}

/// Compares `choices` of layers with their experts on the host with none.
fn same_bits_of(gpu: &Gpu, g: &Golden, choices: &[(&[usize], Recompute)]) -> Result<(), Failed> {
    let expected = everything(gpu, g, &OnHost::default(), Recompute::Never)?;
    for &(offloaded, recompute) in choices {
        same_as(gpu, g, &OnHost::experts(offloaded), recompute, &expected)?;
    }
    Ok(())
}

fn same_as(
    gpu: &Gpu,
    g: &Golden,
    on_host: &OnHost,
    recompute: Recompute,
    expected: &[Vec<u64>],
) -> Result<(), Failed> {
    let found = everything(gpu, g, on_host, recompute)?;
    for (part, (found, expected)) in found.iter().zip(expected).enumerate() {
        let what = format!("{}: {on_host:?}, {recompute:?}: part {part}", g.folder.display());
        check_that(&format!("{what} has the same bits"), found == expected)?;
    }
    Ok(())
}

/// Matrices of all layers with experts and results, and matrices of some with inputs, of every family.
pub fn same_bits_of_layers(gpu: &Gpu) -> Result<(), Failed> {
    for folder in FOLDERS.into_iter().chain(["deepseek2", "glm4moelite"]) {
        let g = Golden::read(&Path::new("tests/golden").join(folder));
        let layers: Vec<usize> = (0..g.base.config().layers.len()).collect();
        let saves = |saves: Saves| if gpu.has_host_buffers() { saves } else { Saves::None };
        let all = OnHost { experts: with_experts(&g.base), layers, saves: saves(Saves::Results) };
        let odd = all.layers.iter().copied().skip(1).step_by(2).collect();
        let some = OnHost { layers: odd, saves: saves(Saves::Inputs), ..OnHost::default() };
        let kept = everything(gpu, &g, &OnHost::default(), Recompute::Never)?;
        same_as(gpu, &g, &all, Recompute::Never, &kept)?;
        // What a plan has memory for decides which kernels multiply logits.
        let recomputed = everything(gpu, &g, &OnHost::default(), Recompute::Always)?;
        same_as(gpu, &g, &some, Recompute::Always, &recomputed)?;
    }
    Ok(())
}

/// A device that cannot copy from memory of the host: the host fills upload buffers, from the file where that has the kernels' layout.
pub fn same_bits_from_uploads(_: &Gpu) -> Result<(), Failed> {
    let gpu = &block_on(Gpu::open(GpuOptions { webgpu_limits: true, ..GpuOptions::default() }))?;
    check_that("WebGPU has no such memory", !gpu.has_host_buffers())?;
    for folder in ["moe", "llama"] {
        let g = Golden::read(&Path::new("tests/golden").join(folder));
        let layers: Vec<usize> = (0..g.base.config().layers.len()).collect();
        let all = OnHost { experts: with_experts(&g.base), layers, ..OnHost::default() };
        let expected = everything(gpu, &g, &OnHost::default(), Recompute::Never)?;
        same_as(gpu, &g, &all, Recompute::Always, &expected)?;
        let refused =
            block_on(Model::offloading(gpu, &g.base, 24, &OnHost { saves: Saves::Inputs, ..all }, |_| ()));
        check_that("inputs need such memory", matches!(refused, Err(GpuError::NoHostBuffers { .. })))?;
    }
    Ok(())
}

/// A mixture whose experts take most of its memory, built from a [`Shape`].
fn mixture() -> Shape {
    let shape = gemma4::FAMILY.shapes.iter().copied().find(|shape| shape.experts.is_some()).expect("26b-a4b");
    Shape {
        layers: shape.full_every,
        width: 512,
        ffn_width: 512,
        shared_ffn_width: 512,
        heads: 2,
        kv_heads: [2, 1],
        window: 8,
        experts: Some([16, 2, 256]),
        vocab: 512,
        ..shape
    }
}

fn plan(
    gpu: &Gpu,
    base: &Base,
    adapter: &Adapter,
    capacity: Capacity,
    positions: usize,
    recompute: Recompute,
    offload: Offload,
) -> Result<Plan, Failed> {
    let adapter = Trainable::new(gpu, adapter, base.config())?;
    let passes = Passes { capacity, masked: false, recompute };
    Ok(Plan::ahead(gpu, base, positions, &adapter, passes, offload))
}

/// Under every limit, the plan fits, the trainer follows it, and the device allocates no more than was planned.
pub fn limits(gpu: &Gpu) -> Result<(), Failed> {
    let base = block_on(mixture().base())?;
    let layers = base.config().layers.len();
    let ids: Vec<u32> = (0..24).map(|i| i * 21 % 512).collect();
    let labels = ids.iter().map(|&id| id as i32).collect();
    let step = Step::new(&[Sample { ids, labels, origin: "random".into(), ..Sample::default() }], &[vec![0]]);
    let mut capacity = Capacity::default();
    capacity.include(&step);
    let adapter = Adapter::init(&slots(base.config(), Module::ALL_LINEAR), 4, 8.0, false, 0);
    let inputs = if gpu.has_host_buffers() { Share::All } else { Share::Never };
    let everything = Offload { experts: Share::All, layers: Share::All, inputs };
    let ahead = |recompute, offload| plan(gpu, &base, &adapter, capacity, 24, recompute, offload);
    let resident = ahead(Recompute::Always, Offload::NEVER)?.total();
    let without = ahead(Recompute::Always, everything)?;
    let (least, experts) = (without.total(), without.offloaded.bytes);
    check_that(
        &format!("{least} is less than {resident} by most of {experts}"),
        least + experts / 2 < resident,
    )?;
    assert_eq!(with_experts(&base).len(), layers);

    let mut losses = Vec::new();
    for eighths in [8, 5, 2, 0] {
        let limit = least + (resident - least) * eighths / 8;
        let within = Recompute::Within(limit);
        let plan = ahead(within, Offload::AUTO)?;
        let on_host = &plan.offloaded.on_host;
        let what = format!("{limit} bytes, {on_host:?} on the host");
        check_that(&format!("{what}: it fits"), plan.total() <= limit)?;
        let all = on_host.experts.len() == layers && on_host.layers.len() == layers;
        check_that(&format!("{what}: all where nothing else fits"), eighths != 0 || all)?;

        gpu.wait()?;
        let others = gpu.allocated_bytes();
        let model = block_on(Model::offloading(gpu, &base, 24, on_host, |_| ()))?;
        // The matrices have their host memory, however little of it is left.
        gpu.set_host_memory(1);
        let trainer = Trainer::new(gpu, &model, &adapter, capacity, Dropout::NONE, within);
        gpu.set_host_memory(u64::MAX);
        let trainer = trainer?;
        check_that(&format!("{what}: planned before and after"), plan.bytes == trainer.plan().bytes)?;
        losses.push(block_on(trainer.step(&step, 1, &ADAMW, 1e-3))?.loss);
        if let Some((now, others)) = gpu.allocated_bytes().zip(others) {
            // Batches, losses and read-backs are not part of the plan; drivers round buffer sizes up.
            let (taken, planned) = (now - others, plan.total());
            println!("{what}: {planned} planned, {taken} allocated");
            check_that(&format!("{what}: {taken} allocated"), taken <= planned + planned / 50)?;
        }
    }
    let same = losses.iter().all(|loss| *loss == losses[0]);
    check_that(&format!("the same loss under every limit: {losses:?}"), same)?;

    let roomy = ahead(Recompute::Within(1 << 40), Offload::AUTO)?;
    check_that("nothing is on the host where there is room", roomy.offloaded.on_host == OnHost::default())?;
    let plan = ahead(Recompute::Within(least - 1), Offload::AUTO)?;
    check_that("what never fits is planned as small as can be", plan.total() == least)
}

/// The recipe's settings are followed; contradictory ones are refused.
pub fn recipes(gpu: &Gpu) -> Result<(), Failed> {
    let mut recipe = Recipe::new("tests/golden/moe/model.gguf");
    recipe.data.max_seq_len = Some(64);
    recipe.train.max_steps = Some(2);
    recipe.lora.rank = 4;
    let frozen = OpenBase::open(&recipe)?;
    let text = "{\"input_ids\": [2, 9, 30, 41, 7, 19], \"labels\": [2, 9, 30, 41, 7, 19]}\n";
    let samples = samples(&frozen, &recipe, text, "text")?;
    let adapter = run::initial_adapter(&recipe, &frozen.base)?.adapter;
    let mut capacity = Capacity::default();
    capacity.include(&Step::new(&samples, &[vec![0]]));
    let [most, least] = [Offload::NEVER, Offload::EXPERTS].map(|offload| {
        let plan = plan(gpu, &frozen.base, &adapter, capacity, 64, Recompute::Always, offload);
        plan.map(|plan| plan.total())
    });
    let tight = Some((most? + least?) as f64 / 2.0 / f64::from(1 << 30));
    let mut train = |switch: Switch, limit: Option<f64>| {
        recipe.train.offload_experts = switch;
        recipe.train.offload_layers = Share::Never;
        recipe.train.offload_inputs = Switch::Off;
        recipe.train.memory_limit = limit;
        block_on(finetune(gpu, &frozen, &samples, &recipe, |_| ()))
    };
    let expected = train(Switch::Off, None)?;
    check_that("all on the host", train(Switch::On, None)? == expected)?;
    check_that("as many as the limit asks for", train(Switch::Auto, tight)? == expected)?;
    let refused = train(Switch::Off, tight).expect_err("too large").to_string();
    check_that(&format!("none are allowed: {refused}"), refused.contains("with every layer recomputed"))?;

    // Host memory is checked to the byte before anything is uploaded.
    let refused = |bytes: u64| {
        gpu.set_host_memory(bytes);
        let found =
            block_on(Model::offloading(gpu, &frozen.base, 24, &OnHost::experts(&[0, 2]), |_| ())).map(drop);
        gpu.set_host_memory(u64::MAX);
        found
    };
    let Err(GpuError::HostMemory { layers: 2, needed, available: 1 }) = refused(1) else {
        return Err("host memory of one byte holds no experts".into());
    };
    let experts = |layer: usize| {
        let names = ["ffn_gate_up_exps", "ffn_down_exps"].map(|name| format!("blk.{layer}.{name}"));
        let tensors = names.map(|name| frozen.base.tensor(&name).expect("there"));
        tensors.map(|t| (t.rows * t.row_bytes()) as u64).iter().sum::<u64>()
    };
    let all = experts(0) + experts(2);
    let with_uploads = all + 2 * experts(0).max(experts(2));
    let resident = if gpu.has_host_buffers() { all + all / 8 } else { u64::MAX };
    let expected = with_uploads.min(resident);
    check_that(&format!("{needed} bytes are needed, expected {expected}"), needed == expected)?;
    check_that("one byte less is too little", refused(needed - 1).is_err())?;
    refused(needed)?;
    gpu.set_host_memory(100 << 10);
    let error = train(Switch::On, None).map(drop).expect_err("too little");
    gpu.set_host_memory(u64::MAX);
    let advice = run::device_error(&error).and_then(|e| run::remedy(e, str::to_string));
    let (error, advice) = (error.to_string(), advice.unwrap_or_default());
    let expected = "the matrices of 4 layers need ";
    check_that(&error, error.starts_with(expected) && error.ends_with("100.0 KiB are available"))?;
    check_that(
        &advice,
        advice.starts_with("close other programs") && advice.contains("train.offload_experts"),
    )?;

    let mut dense = Recipe::new("tiny");
    dense.train.offload_experts = Switch::On;
    let error = OpenBase::open(&dense).err();
    let expected = "train.offload_experts: tiny is not a mixture of experts; remove this setting";
    let said = matches!(&error, Some(RunError::Conflict(text)) if text == expected);
    check_that(&format!("a dense base is refused: {:?}", error.map(|e| e.to_string())), said)?;

    // Gate and up as separate tensors, read from a file in memory.
    let bytes = split_experts(frozen.base.gguf());
    let base = Base::from_gguf(Gguf::from_bytes(bytes, "split").expect("sound"), "split")?;
    let model = block_on(Model::offloading(gpu, &base, 24, &OnHost::experts(&[0, 1, 3]), |_| ()))?;
    let copied = block_on(model.copy_layers(gpu, 3))?;
    check_that(&format!("{copied} bytes of three layers are copied"), copied > 0)?;
    check_that("two of them lie there already", block_on(model.copy_layers(gpu, 2))? < copied)
}
