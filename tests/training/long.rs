//! Samples whose activations exceed the longest buffer of a device: heads are divided into parts, feed-forwards and products into chunks
//! of tokens.

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::base::{Base, Module};
use rullama_train::data::batch::{Sample, Step};
use rullama_train::families::{ALL, Shape, gemma4, qwen35};
use rullama_train::gpu::Gpu;
use rullama_train::model::plan::{Offload, Passes, Plan, Recompute};
use rullama_train::model::{Model, Trainable};
use rullama_train::train::{Capacity, Dropout};

use super::shapes::narrow;
use super::{check, check_that, gpu as device, trainer, wide};

/// Bytes of the longest buffer on NVIDIA's GPUs.
const LONGEST: u64 = 4_294_967_040;
/// Tokens of the longest samples.
const TOKENS: usize = 131_072;

/// Layers of published sizes, narrower: attention with shared keys and with keys that are the values, with gates, delta nets and experts.
/// Buffers of half a megabyte and more hold everything but queries, delta nets, and feed-forwards of all tokens.
pub fn short_buffers(gpu: &Gpu) -> Result<(), Failed> {
    let [dense, mixture] = [qwen35::FAMILY.shapes[0], qwen35::FAMILY_MOE.shapes[0]];
    for shape in [gemma4::FAMILY.shapes[0], gemma4::FAMILY.shapes[4], dense, mixture] {
        let delta = shape.delta.map(|_| [4, 8, 128]);
        let small = Shape { ffn_width: 1024, window: 40, delta, ..narrow(shape) };
        let base = block_on(small.base())?;
        let model = block_on(Model::stream(gpu, &base, 192, |_| ()))?;
        let adapter = Adapter::init(&slots(base.config(), Module::ALL_LINEAR), 4, 8.0, false, 0);
        let samples = [150, 42].map(sample);
        let step = Step::new(&samples, &[vec![0, 1]]);
        compare(gpu, (&shape, &base, &model), &adapter, &step, Dropout::NONE)?;
        if shape == dense {
            let dropout = Dropout { probability: 0.3, seed: 1 };
            compare(gpu, (&shape, &base, &model), &adapter, &step, dropout)?;
        }
    }
    Ok(())
}

/// The loss with short buffers is the same to the last bit, and gradients differ by rounding alone.
fn compare(
    gpu: &Gpu,
    (shape, base, model): (&Shape, &Base, &Model),
    adapter: &Adapter,
    step: &Step,
    dropout: Dropout,
) -> Result<(), Failed> {
    let run = |gpu: &Gpu, recompute| -> Result<_, Failed> {
        let trainer = trainer(gpu, model, adapter, &[step], dropout, recompute);
        let plan = trainer.plan().clone();
        let (loss, gradients) = block_on(trainer.gradients(step, 1))?;
        Ok((plan, loss, wide(&gradients)))
    };
    let (plan, loss, expected) = run(gpu, Recompute::Always)?;
    check_that("heads are in one part", plan.parts().iter().all(|parts| *parts == 1))?;
    for (bytes, recompute) in [(1 << 20, Recompute::Keep(64 << 20)), (600 << 10, Recompute::Always)] {
        let short = gpu.with_buffers_of(bytes);
        let (plan, found_loss, found) = run(&short, recompute)?;
        let what = format!("{}, {dropout:?}, buffers of {bytes} bytes, {:?}", shape.name, plan.parts());
        check_that(&format!("{what}: some are in parts"), plan.parts().iter().any(|parts| *parts > 1))?;
        fits(&short, base, &plan, bytes)?;
        check(&format!("{what}: loss"), (found_loss - loss).abs() / loss, 0.0)?;
        check(&format!("{what}: gradients"), device::relative(&found, &expected), 1e-5)?;
    }
    Ok(())
}

fn sample(tokens: u32) -> Sample {
    let ids: Vec<u32> = (0..tokens).map(|i| (i * 21 + tokens) % 512).collect();
    let labels = ids.iter().map(|&id| id as i32).collect();
    Sample { ids, labels, origin: "random".into(), ..Sample::default() }
}

/// A sample of 131 072 tokens, or of the context where that is shorter, of every published size.
pub fn plans(gpu: &Gpu) -> Result<(), Failed> {
    for shape in ALL.into_iter().flat_map(|family| family.shapes) {
        let base = block_on(shape.base())?;
        let tokens = TOKENS.min(base.config().context_length);
        // Adapters of experts would take gigabytes, and do not make activations longer.
        let modules: Vec<Module> =
            Module::ALL_LINEAR.iter().copied().filter(|m| !m.gguf_name().ends_with("exps")).collect();
        let adapter = Adapter::init(&slots(base.config(), &modules), 4, 8.0, false, 0);
        let trainable = Trainable::new(gpu, &adapter, base.config())?;
        let capacity = Capacity { tokens, longest: tokens, loss_tokens: tokens, ..Capacity::LEAST };
        let short = gpu.with_buffers_of(LONGEST);
        for recompute in [Recompute::Always, Recompute::Within(1 << 40)] {
            let passes = Passes { capacity, masked: false, recompute };
            let plan = Plan::ahead(&short, &base, tokens, &trainable, passes, Offload::NEVER);
            let parts = plan.parts().into_iter().max().unwrap_or(1);
            let context = base.config().context_length;
            let buffers = plan.buffers(&short, base.config());
            let (name, bytes) =
                buffers.into_iter().max_by_key(|(_, bytes)| *bytes).expect("there are buffers");
            let total = plan.total() >> 30;
            let what = format!("{}, {tokens} tokens of a context of {context}, {recompute:?}", shape.name);
            println!("{what}: {total} GiB, heads in {parts} parts, longest {name} of {bytes} bytes");
            check_that(&format!("{what}: {name} fits with {bytes} bytes"), bytes <= LONGEST)?;
        }
    }
    Ok(())
}

/// Whether no buffer of the plan is longer than `bytes`.
fn fits(gpu: &Gpu, base: &Base, plan: &Plan, bytes: u64) -> Result<(), Failed> {
    let long = plan.buffers(gpu, base.config()).into_iter().find(|(_, of)| *of > bytes);
    match long {
        None => Ok(()),
        Some((name, of)) => Err(format!("{}: {name} has {of} bytes of {bytes}", base.name()).into()),
    }
}
