//! Whole models on the device compared with PyTorch in f64: logits, loss, all gradients, two samples in a step, and ten steps.
//!
//! `RULLAMA_GOLDEN` names further folders like those in tests/golden, separated by colons.

#[path = "golden/choices.rs"]
mod choices;
#[path = "golden/distill/compare.rs"]
mod distill;
#[path = "common/golden.rs"]
mod golden;
#[path = "common/gpu.rs"]
mod gpu;
#[path = "golden/grpo/compare.rs"]
mod grpo;
#[path = "golden/preference/compare.rs"]
mod preference;

use std::path::{Path, PathBuf};

use choices::Twin;
use golden::Golden;
use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::adapter::{self, Format};
use rullama_train::base::{Base, GgmlType};
use rullama_train::data::batch::{MicroBatch, Sample, Step};
use rullama_train::gpu::{Gpu, Tier};
use rullama_train::model::Model;
use rullama_train::model::plan::Recompute;
use rullama_train::ops::adamw::AdamW;
use rullama_train::ops::op::Variant;
use rullama_train::train::{Capacity, Dropout, Optimizer, Trainer};

/// PyTorch itself is within 1.5e-6 in f32.
const LOGITS: f64 = 2e-5;
const LOSS: f64 = 1e-5;
/// PyTorch itself is within 5e-6 in f32.
const GRADIENT: f64 = 5e-5;
/// Adam divides small gradients by their own size, which magnifies rounding: PyTorch in f32 drifts up to 1.1e-5 from
/// its own f64 over ten such steps (models of tests/golden/make_random.py's size and larger).
const ADAMW_LOSS: f64 = 5e-5;
/// Tolerances of logits, loss, gradients and losses after steps with f16 operands, with and without cooperative matrices.
const HALF: [f64; 4] = [1e-2, 2e-3, 1e-2, 5e-3];
/// Tolerance of losses after steps for mixtures of experts: other experts that a device chooses, where two scores are closer than f16
/// can tell, add up over the steps (1.2e-2 seen, 5.7e-2 for larger models). Each step is compared with [`choices`] besides.
const HALF_MIXTURE: f64 = 1e-1;
/// Tolerance of the norm of the gradients of a shared expert's gate: a single row, so a few sums whose terms cancel (1.06e-2 seen
/// for `qwen35moe` on cooperative matrices).
const HALF_SHARED_GATE: f64 = 2e-2;

/// Models that have every part of a layer among them, and every kernel. A software renderer runs the loop, chunks and splits of these alone.
const EVERY_PART: [&str; 6] = ["dense", "big", "moe", "qwen35moe", "llama", "gpt-oss"];

fn main() -> std::process::ExitCode {
    let known = golden::FOLDERS.into_iter().chain(golden::KIN);
    let mut folders: Vec<PathBuf> = known.map(|name| Path::new("tests/golden").join(name)).collect();
    let further = std::env::var_os("RULLAMA_GOLDEN").unwrap_or_default();
    folders.extend(std::env::split_paths(&further).filter(|f| !f.as_os_str().is_empty()));
    let mut tests: Vec<gpu::Test> = Vec::new();
    for folder in folders {
        let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        type Run = fn(&Gpu, &Golden) -> Result<(), Failed>;
        let is_kin = golden::KIN.contains(&name.as_str());
        let repeats = golden::FOLDERS.contains(&name.as_str()) && !EVERY_PART.contains(&name.as_str());
        // A software renderer takes minutes for those of `slow`, whose kernels other tests of the model run there.
        let mut add = |what: &str, variants: &[Variant], slow: &[Variant], test: Run| {
            let of_parts = !["logits", "loss and gradients"].contains(&what);
            for variant in variants {
                let folder = folder.clone();
                let run = move |gpu: &Gpu| test(gpu, &Golden::read(&folder));
                let test = gpu::Test::new(format!("{name}: {what}"), *variant, run);
                tests.push(test.slow(
                    slow.contains(variant) || repeats && of_parts || is_kin && *variant == Variant::F16,
                ));
            }
        };
        let all =
            [Variant::F32, Variant::Plain, Variant::F16, Variant::Coop8, Variant::Coop16, Variant::Cuda];
        let but_plain = [Variant::F32, Variant::F16, Variant::Coop8, Variant::Coop16, Variant::Cuda];
        let half = [Variant::F16];
        // One test of all, for which each kernel is compiled once.
        if is_kin {
            add(
                "logits, gradients, heads in parts, two samples and ten steps",
                &[Variant::F32, Variant::Coop16],
                &[],
                |gpu, g| {
                    logits(gpu, g)?;
                    gradients(gpu, g, Recompute::Never)?;
                    heads_in_parts(gpu, g)?;
                    two_samples(gpu, g)?;
                    ten_steps(gpu, g)
                },
            );
            if ["granite", "seed_oss"].contains(&name.as_str()) {
                add(
                    "queries, keys and values as one tensor",
                    &[Variant::F32, Variant::Coop16],
                    &[],
                    |gpu, g| {
                        let g = Golden::read(&g.folder).with_fused_qkv();
                        logits(gpu, &g)?;
                        gradients(gpu, &g, Recompute::Never)
                    },
                );
            }
            if ["deepseek2", "glm4moelite"].contains(&name.as_str()) {
                add("keys and values as one tensor", &[Variant::F32, Variant::Coop16], &[], |gpu, g| {
                    let g = Golden::read(&g.folder).with_joined_keys_values();
                    logits(gpu, &g)?;
                    gradients(gpu, &g, Recompute::Always)
                });
            }
            if name == "phi3" {
                add("matrices of one adapter apart", &[Variant::F32, Variant::Coop16], &[], fused_apart);
            }
            add("logits", &[Variant::F16, Variant::Coop8, Variant::Cuda], &[], logits);
            add("loss and gradients", &[Variant::F16, Variant::Coop8, Variant::Cuda], &[], |gpu, g| {
                gradients(gpu, g, Recompute::Never)
            });
            continue;
        }
        add("logits", &all, &[], logits);
        add("loss and gradients", &all, &[], |gpu, g| gradients(gpu, g, Recompute::Never));
        add("loss and gradients, recomputed", &but_plain, &half, |gpu, g| {
            gradients(gpu, g, Recompute::Always)
        });
        add("loss and gradients, sums split", &[Variant::Plain], &[], sums_split);
        add("loss and gradients, many chunks of tokens", &but_plain, &half, chunks);
        add("loss and gradients, heads in parts", &but_plain, &half, heads_in_parts);
        add(
            "two samples, packed and in two micro-batches",
            &[Variant::F32, Variant::Coop16],
            &[],
            two_samples,
        );
        add("ten AdamW steps", &all, &[Variant::Plain, Variant::F16], ten_steps);
        if ["big", "moe"].contains(&name.as_str()) {
            add("weights in other formats are their values", &but_plain, &half, other_formats);
            add("weights of few bits are their values", &but_plain, &half, few_bits);
        }
        if name == "moe" {
            add("gate and up of the experts apart", &[Variant::F32, Variant::Coop16], &[], experts_split);
        }
    }
    preference::tests(&mut tests);
    distill::tests(&mut tests);
    grpo::tests(&mut tests);
    gpu::run(tests)
}

fn trainer<'a>(
    gpu: &'a Gpu,
    model: &'a Model<'a>,
    adapter: &Adapter,
    steps: &[&Step],
    recompute: Recompute,
) -> Trainer<'a> {
    let mut capacity = Capacity::default();
    steps.iter().for_each(|s| capacity.include(s));
    Trainer::new(gpu, model, adapter, capacity, Dropout::NONE, recompute).expect("the buffers fit")
}

fn model<'a>(gpu: &Gpu, golden: &'a Golden) -> Model<'a> {
    // LongRoPE has other frequencies from the first training's context on.
    let usual = golden.base.config().long_rope.as_ref().map_or(256, |long| long.original_context);
    Model::load(gpu, &golden.base, usual).expect("the model fits")
}

fn step_of(samples: &[Sample], micro_batches: &[Vec<usize>]) -> Step {
    Step::new(samples, micro_batches)
}

/// Tolerances of logits, loss, gradients and losses after steps.
fn tolerances(gpu: &Gpu) -> [f64; 4] {
    if gpu.kernels().tier() != Tier::F32 { HALF } else { [LOGITS, LOSS, GRADIENT, ADAMW_LOSS] }
}

/// Whether the device may choose other experts than PyTorch.
fn chooses(gpu: &Gpu, g: &Golden) -> bool {
    gpu.kernels().tier() != Tier::F32 && g.base.config().layers.iter().any(|l| l.experts.is_some())
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

fn logits(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let usual = model(gpu, g);
    logits_of(gpu, g, &usual, &[("logits.lora", g.adapter.clone()), ("logits.base", g.without_effect())])?;
    let Some(long) = &g.base.config().long_rope else { return Ok(()) };
    let model = Model::load(gpu, &g.base, long.original_context + 1).expect("the model fits");
    logits_of(gpu, g, &model, &[("logits.base.long", g.without_effect())])
}

fn logits_of(gpu: &Gpu, g: &Golden, model: &Model, all: &[(&str, Adapter)]) -> Result<(), Failed> {
    let batch = MicroBatch::pack([&g.first]);
    let rows: Vec<u32> = (0..batch.len() as u32).collect();
    let step = step_of(std::slice::from_ref(&g.first), &[vec![0]]);
    for (name, adapter) in all {
        let trainer = trainer(gpu, model, adapter, &[&step], Recompute::Never);
        let found: Vec<f64> = block_on(trainer.logits(&batch, &rows))?.into_iter().map(f64::from).collect();
        let expected = match chooses(gpu, g) {
            true => twin(gpu, g, model, adapter, &batch)?.logits(),
            false => g.tensor(name).to_vec(),
        };
        check(name, gpu::relative(&found, &expected), tolerances(gpu)[0])?;
    }
    Ok(())
}

/// The reference with the experts that the device chooses. An expert that it prefers by far is an error.
fn twin<'g>(
    gpu: &Gpu,
    g: &'g Golden,
    model: &Model,
    adapter: &Adapter,
    batch: &'g MicroBatch,
) -> Result<Twin<'g>, Failed> {
    let twin = Twin::of_device(gpu, g, model, adapter, batch)?;
    check("difference of scores that changed places", twin.margin, choices::CLOSE)?;
    Ok(twin)
}

/// The model with queries, keys, values, gate and up apart, but for each adapter: the same numbers. Its GGUF adapter names those tensors.
fn fused_apart(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let g = Golden::read(&g.folder).with_fused_apart();
    logits(gpu, &g)?;
    gradients(gpu, &g, Recompute::Always)?;
    let folder = tempfile::tempdir()?;
    let options =
        adapter::WriteOptions { base_model: "apart", dropout: 0.0, fingerprint: None, vocabulary: None };
    let path = folder.path().join("apart");
    let path = adapter::write(&path, Format::GgufLora, &g.adapter, g.base.config(), &options)?;
    let written = rullama_train::base::Gguf::open(&path)?;
    let has = |name: &str| written.tensor(&format!("blk.1.{name}.weight.lora_b")).is_some();
    if !["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_down"].into_iter().all(has)
        || has("attn_qkv")
    {
        return Err("the adapter has other tensors than the base".into());
    }
    let read = adapter::read_any(&path, g.base.config(), None)?;
    if read != g.adapter { Err("the adapter is read otherwise".into()) } else { Ok(()) }
}

fn gradients(gpu: &Gpu, g: &Golden, recompute: Recompute) -> Result<(), Failed> {
    same_sample(gpu, g, &model(gpu, g), recompute, 1)
}

/// Every product is split into as many parts as its sum allows.
fn sums_split(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    gradients(&gpu.with_kernels(gpu.kernels().filling(1 << 20)), g, Recompute::Never)
}

/// More tokens than a feed-forward processes at a time; the last chunk is not full.
fn chunks(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let copies = 150usize.div_ceil(g.first.ids.len());
    let mut model = model(gpu, g);
    model.set_chunk(64);
    same_sample(gpu, g, &model, Recompute::Never, copies)?;
    same_sample(gpu, g, &model, Recompute::Always, copies)
}

/// Heads in two parts and in as many as they divide into, with chunks of tokens, against heads in one part. Sums of a head have the same
/// order, so on f32 the loss is the same to the last bit. Gradients of adapters are sums over chunks.
fn heads_in_parts(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let copies = 150usize.div_ceil(g.first.ids.len());
    let step = step_of(&vec![g.first.clone(); copies], &[(0..copies).collect()]);
    let run = |parts: usize, recompute: Recompute| -> Result<_, Failed> {
        let mut model = model(gpu, g);
        model.set_chunk(64);
        model.set_parts(parts);
        let trainer = trainer(gpu, &model, &g.adapter, &[&step], recompute);
        let most = trainer.plan().parts().into_iter().max().unwrap_or(1);
        let (loss, gradients) = block_on(trainer.gradients(&step, 1))?;
        Ok((most, loss, golden::by_name(&gradients, g.base.config())))
    };
    let (_, loss, expected) = run(1, Recompute::Never)?;
    let expected = |name: &str| -> &[f64] {
        expected.iter().find(|(other, _)| other == name).map_or(&[], |(_, values)| values)
    };
    // Norms of whole rows read all heads, and latent vectors are expanded to all.
    let divides = g.base.config().layers.iter().any(|l| !l.qk_norm_of_rows && l.latent.is_none());
    let cases = [(2, Recompute::Never), (2, Recompute::Always), (usize::MAX, Recompute::Always)];
    for (parts, recompute) in cases {
        let (most, found_loss, found) = run(parts, recompute)?;
        let what = format!("{most} parts, {recompute:?}");
        if (most > 1) != divides {
            return Err(format!("{what}: expected heads to be divided: {divides}").into());
        }
        // Other experts may be chosen where two scores are closer than f16 can tell.
        if chooses(gpu, g) {
            continue;
        }
        let is_exact = gpu.kernels().tier() == Tier::F32;
        let [_, of_loss, of_gradients, _] = if is_exact { [0.0, 0.0, 5e-6, 0.0] } else { tolerances(gpu) };
        check(&format!("{what}: loss"), (found_loss - loss).abs() / loss, of_loss)?;
        let (error, name) = worst(&found, expected);
        check(&format!("{what}: worst gradient, {name}"), error, of_gradients)?;
    }
    Ok(())
}

/// The sample `copies` times in one micro-batch. The loss is a mean, so neither it nor the gradients change.
fn same_sample(
    gpu: &Gpu,
    g: &Golden,
    model: &Model,
    recompute: Recompute,
    copies: usize,
) -> Result<(), Failed> {
    let step = step_of(&vec![g.first.clone(); copies], &[(0..copies).collect()]);
    let trainer = trainer(gpu, model, &g.adapter, &[&step], recompute);
    let (loss, gradients) = block_on(trainer.gradients(&step, 1))?;
    let found = golden::by_name(&gradients, g.base.config());
    assert_eq!(2 * gradients.len(), g.count("grad."), "every gradient of the file is compared");
    if chooses(gpu, g) {
        return with_choices(gpu, g, model, &step.micro_batches[0], loss, &found);
    }
    let expected = g.tensor("loss.lora")[0];
    check("loss", (loss - expected).abs() / expected, tolerances(gpu)[1])?;
    let (worst, name) = worst(&found, |name| g.tensor(&format!("grad.{name}")));
    check(&format!("worst gradient, {name}"), worst, tolerances(gpu)[2])
}

/// The largest relative error of a gradient, and its name.
fn worst<'e>(found: &[(String, Vec<f64>)], expected: impl Fn(&str) -> &'e [f64]) -> (f64, String) {
    let mut worst = (0.0, String::new());
    for (name, found) in found {
        let relative = gpu::relative(found, expected(name));
        if relative.is_nan() || relative > worst.0 {
            worst = (relative, name.clone());
        }
    }
    worst
}

/// Compares with the reference that chooses as the device does. Gradients whose terms cancel may differ by what the rounding of weights
/// changes in them.
fn with_choices(
    gpu: &Gpu,
    g: &Golden,
    model: &Model,
    batch: &MicroBatch,
    loss: f64,
    found: &[(String, Vec<f64>)],
) -> Result<(), Failed> {
    let twin = twin(gpu, g, model, &g.adapter, batch)?;
    check("loss", (loss - twin.loss()).abs() / loss, tolerances(gpu)[1])?;
    let expected = twin.gradients();
    let (error, name) = worst(found, |name| &expected[name]);
    if error <= tolerances(gpu)[2] {
        return check(&format!("worst gradient, {name}"), error, tolerances(gpu)[2]);
    }
    let sensitivity = twin.sensitivity(&g.adapter);
    for (name, found) in found {
        let tolerance = tolerances(gpu)[2].max(choices::OPERANDS * sensitivity[name]);
        let error = gpu::relative(found, &expected[name]);
        if error.is_nan() || error > tolerances(gpu)[2] {
            check(&format!("gradient of {name}"), error, tolerance)?;
        }
    }
    Ok(())
}

/// Logits and gradients with weights in formats that no golden model has, and with the same values in F32.
fn other_formats(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    use GgmlType::{IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K};
    in_formats(gpu, g, &[Q3_K, IQ4_XS, MXFP4, Q2_K, IQ4_NL])
}

/// [`other_formats`] with the formats of one to three bits.
fn few_bits(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    use GgmlType::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, NVFP4, Q1_0, Q2_0, TQ1_0, TQ2_0};
    let all = [IQ2_S, IQ3_XXS, NVFP4, IQ1_M, IQ2_XXS, IQ3_S, Q2_0, IQ2_XS, TQ1_0, IQ1_S, Q1_0, TQ2_0];
    in_formats(gpu, g, &all)
}

fn in_formats(gpu: &Gpu, g: &Golden, types: &[GgmlType]) -> Result<(), Failed> {
    let bases = golden::in_formats(g.base.gguf(), types);
    let batch = MicroBatch::pack([&g.first]);
    let rows: Vec<u32> = (0..batch.len() as u32).collect();
    let step = step_of(std::slice::from_ref(&g.first), &[vec![0]]);
    let run = |base: &Base| {
        let model = Model::load(gpu, base, 128).expect("the model fits");
        let trainer = trainer(gpu, &model, &g.adapter, &[&step], Recompute::Never);
        let logits: Vec<f64> = block_on(trainer.logits(&batch, &rows))?.into_iter().map(f64::from).collect();
        let (_, gradients) = block_on(trainer.gradients(&step, 1))?;
        // The order in a file of tensors is any.
        let mut gradients = golden::by_name(&gradients, base.config());
        gradients.sort_by(|a, b| a.0.cmp(&b.0));
        let gradients: Vec<f64> = gradients.into_iter().flat_map(|(_, values)| values).collect();
        Ok::<_, Failed>((logits, gradients))
    };
    let [(found, gradients), (expected, expected_gradients)] = [run(&bases[0])?, run(&bases[1])?];
    // Weights that are decoded to f16 and those that are rounded to it differ in the last bit, which decides between close scores.
    let [logits, _, of_gradients, _] = if chooses(gpu, g) { [HALF_MIXTURE; 4] } else { tolerances(gpu) };
    check("logits", gpu::relative(&found, &expected), logits)?;
    check("gradients", gpu::relative(&gradients, &expected_gradients), of_gradients)
}

/// This model with two tensors in the place of one.
fn experts_split(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let split = Golden::read(&g.folder).with_experts_split();
    gradients(gpu, &split, Recompute::Always)
}

fn two_samples(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let model = model(gpu, g);
    let samples = [g.first.clone(), g.second.clone()];
    let packed = step_of(&samples, &[vec![0, 1]]);
    let reversed = step_of(&samples, &[vec![1, 0]]);
    let split = step_of(&samples, &[vec![0], vec![1]]);
    let trainer = trainer(gpu, &model, &g.adapter, &[&packed, &split], Recompute::Never);
    for (what, step) in
        [("packed", &packed), ("packed the other way", &reversed), ("two micro-batches", &split)]
    {
        let (loss, gradients) = block_on(trainer.gradients(step, 1))?;
        let expected = g.tensor("loss.batch")[0];
        check(&format!("{what}: loss"), (loss - expected).abs() / expected, tolerances(gpu)[1])?;
        let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
        let mut norms: Vec<_> = golden::by_name(&gradients, g.base.config())
            .into_iter()
            .map(|(name, found)| (name, norm(&found)))
            .collect();
        norms.sort_by(|a, b| a.0.cmp(&b.0));
        for ((name, found), expected) in norms.iter().zip(g.tensor("gradnorm.batch")) {
            let relative = (found - expected).abs() / expected;
            let tolerance = match gpu.kernels().tier() {
                tier if tier != Tier::F32 && name.contains("shared_expert_gate.lora_B") => HALF_SHARED_GATE,
                _ => tolerances(gpu)[2],
            };
            if relative.is_nan() || relative > tolerance {
                check(&format!("{what}: norm of {name}"), relative, tolerance)?;
            }
        }
    }
    Ok(())
}

fn ten_steps(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let model = model(gpu, g);
    let step = step_of(std::slice::from_ref(&g.first), &[vec![0]]);
    let trainer = trainer(gpu, &model, &g.adapter, &[&step], Recompute::Never);
    let adam = AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
    let optimizer = Optimizer { adam: Some(adam), weight_decay: 0.0, max_grad_norm: 0.0 };
    let expected = g.tensor("loss.adamw");
    assert_eq!(expected.len(), 11, "the loss before each of ten steps and after the last");
    let tolerance = if chooses(gpu, g) { HALF_MIXTURE } else { tolerances(gpu)[3] };
    for (i, expected) in expected.iter().enumerate() {
        let adapter = Adapter { pairs: block_on(trainer.adapter())?, ..g.adapter.clone() };
        let loss = block_on(trainer.step(&step, i as u64 + 1, &optimizer, 2e-3))?.loss;
        check(&format!("loss before step {}", i + 1), (loss - expected).abs() / expected, tolerance)?;
        if chooses(gpu, g) {
            let twin = Twin::following(&trainer, g, &adapter, &step.micro_batches[0])?;
            check("difference of scores that changed places", twin.margin, choices::CLOSE)?;
            check("loss of the same adapter", (loss - twin.loss()).abs() / loss, tolerances(gpu)[1])?;
        }
    }
    Ok(())
}
