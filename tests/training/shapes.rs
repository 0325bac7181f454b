//! The published sizes of Gemma 4 and of Qwen 3.5's mixtures with random weights: they load, train, and take the memory that was
//! planned.

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::base::Module;
use rullama_train::data::batch::{Sample, Step};
use rullama_train::families::{Shape, gemma4, qwen35};
use rullama_train::gpu::Gpu;
use rullama_train::model::plan::{Kept, Offload, Passes, Plan, Recompute};
use rullama_train::model::{Model, Trainable};
use rullama_train::train::{Capacity, Dropout, Trainer};

use super::check_that;

/// A published size with fewer and narrower layers and a smaller vocabulary.
pub fn narrow(shape: Shape) -> Shape {
    Shape {
        layers: 2 * shape.full_every,
        width: 256,
        ffn_width: 512,
        shared_ffn_width: shape.shared_ffn_width.min(1024),
        heads: shape.heads.min(4),
        kv_heads: [2, 1],
        shared: if shape.shared > 0 { shape.full_every } else { 0 },
        window: 8,
        experts: shape.experts.map(|_| [8, 2, 64]),
        vocab: 512,
        ..shape
    }
}

/// Every size, with fewer and narrower layers and a smaller vocabulary.
pub fn train(gpu: &Gpu) -> Result<(), Failed> {
    for &shape in [gemma4::FAMILY.shapes, qwen35::FAMILY_MOE.shapes].concat().iter() {
        let base = block_on(narrow(shape).base())?;
        let ids: Vec<u32> = (0..24).map(|i| i * 21 % 512).collect();
        let labels = ids.iter().map(|&id| id as i32).collect();
        let step =
            Step::new(&[Sample { ids, labels, origin: "random".into(), ..Sample::default() }], &[vec![0]]);
        let mut capacity = Capacity::default();
        capacity.include(&step);
        let adapter = Adapter::init(&slots(base.config(), Module::ALL_LINEAR), 4, 8.0, false, 0);
        let trainable = Trainable::new(gpu, &adapter, base.config())?;
        let passes = Passes { capacity, masked: false, recompute: Recompute::Never };
        let ahead = Plan::ahead(gpu, &base, 24, &trainable, passes, Offload::NEVER);

        let model = block_on(Model::stream(gpu, &base, 24, |_| ()))?;
        let trainer = Trainer::new(gpu, &model, &adapter, capacity, Dropout::NONE, Recompute::Never)?;
        check_that(
            &format!("{}: planned before and after", shape.name),
            ahead.bytes == trainer.plan().bytes,
        )?;
        let loss = || block_on(trainer.evaluate(&step.micro_batches, |_| ())).map(|found| found.loss());
        let found = loss()?;
        // Nothing was learnt: the loss is near ln 512, that of a guess, or above, where a random head is confident.
        check_that(
            &format!("{}: loss {found}", shape.name),
            (5.0..20.0).contains(&found) && loss()? == found,
        )?;
    }
    Ok(())
}

/// An activation that a binding could not span is kept in chunks of the tokens.
pub fn bindings(gpu: &Gpu) -> Result<(), Failed> {
    let ffn_width = 4096;
    let small = Shape {
        layers: 4,
        width: 256,
        ffn_width,
        heads: 1,
        kv_heads: [1, 1],
        shared: 0,
        vocab: 512,
        ..gemma4::FAMILY.shapes[0]
    };
    let base = block_on(small.base())?;
    let adapter = Adapter::init(&slots(base.config(), Module::ALL_LINEAR), 4, 8.0, false, 0);
    let trainable = Trainable::new(gpu, &adapter, base.config())?;
    let most = gpu.max_binding_bytes() as usize / (4 * ffn_width);
    for tokens in [most / 64 * 64, most + 64] {
        let capacity = Capacity { tokens, longest: tokens, ..Capacity::LEAST };
        let passes = Passes { capacity, masked: false, recompute: Recompute::Within(1 << 46) };
        let plan = Plan::ahead(gpu, &base, tokens, &trainable, passes, Offload::NEVER);
        let kept = format!("{tokens} tokens: all layers keep everything: {:?}", plan.kept);
        check_that(&kept, plan.kept.iter().all(|kept| *kept == Kept::All))?;
        let buffers = plan.buffers(gpu, base.config());
        let (name, bytes) = buffers.into_iter().max_by_key(|(_, bytes)| *bytes).expect("there are buffers");
        let short = format!("{tokens} tokens: {name} is bindable with {bytes} bytes");
        check_that(&short, bytes <= gpu.max_binding_bytes())?;
    }
    Ok(())
}
