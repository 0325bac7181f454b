//! Merged models and exported adapters on the device, compared with base and adapter in memory and with PyTorch in f64.

#[path = "common/golden.rs"]
mod golden;
#[path = "common/gpu.rs"]
mod gpu;

use std::path::Path;

use golden::Golden;
use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::adapter::lora::{Adapter, Pair};
use rullama_train::adapter::merge::{self, MergeType};
use rullama_train::adapter::{Format, WriteOptions};
use rullama_train::base::{Base, Gguf};
use rullama_train::data::batch::Sample;
use rullama_train::gpu::{Gpu, GpuError};
use rullama_train::model::Model;
use rullama_train::model::plan::{Offload, Recompute};
use rullama_train::ops::op::Variant;
use rullama_train::train::{Dropout, Trainer};
use rullama_train::verify::{self, HeldOut, MergeCheck, NoTokens};

/// Largest relative difference of logits from PyTorch in f64, merged or not; see tests/golden/README.md.
const LOGITS: f64 = 2e-5;

fn main() -> std::process::ExitCode {
    let mut tests: Vec<gpu::Test> = Vec::new();
    for name in ["dense", "big", "ollama", "moe"] {
        let mut add = |what: &str, test: fn(&Gpu, &Golden) -> Result<(), Failed>| {
            let run = move |gpu: &Gpu| test(gpu, &Golden::read(&Path::new("tests/golden").join(name)));
            tests.push(gpu::Test::new(format!("{name}: {what}"), Variant::F32, run));
        };
        add("merged into F32, the logits are PyTorch's with the adapter", f32_is_exact);
        if name == "moe" {
            add("experts in host memory give the same numbers", experts_on_the_host);
            continue; // a merge that rounds changes which experts are chosen
        }
        add("the divergence of each weight type", divergences);
        add("reloaded adapters", read_back);
        if name == "dense" {
            add("unsound adapters are not written", refusals);
        }
    }
    gpu::run(tests)
}

fn merge(g: &Golden, ty: &str) -> Base {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("merged.gguf");
    let ty = MergeType::from_name(ty).expect("a type");
    merge::write(&path, &g.base, &g.adapter, ty, |_| {}).expect("merged");
    let bytes = std::fs::read(&path).expect("written");
    Base::from_gguf(Gguf::from_bytes(bytes, ty_name(ty)).expect("sound"), "merged").expect("a model")
}

fn ty_name(ty: MergeType) -> &'static str {
    MergeType::NAMES.into_iter().find(|(_, t)| *t == ty).map_or("merged", |(name, _)| name)
}

fn f32_is_exact(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    // Every token but the last is a loss token, so all logits of the file but its last row are compared.
    let mut sample = g.first.clone();
    sample.labels = sample.ids.iter().map(|&id| id as i32).collect();
    let merged = merge(g, "f32");
    let held_out = HeldOut::of_samples(&[sample], g.base.config().vocab)?;
    let found = block_on(verify::logits(gpu, &merged, &[None], &held_out, Offload::NEVER))?;
    let found: Vec<f64> = found[0].values().iter().map(|&v| f64::from(v)).collect();
    let expected = &g.tensor("logits.lora")[..found.len()];
    assert_eq!(found.len(), (g.first.ids.len() - 1) * g.base.config().vocab);
    let relative = gpu::relative(&found, expected);
    if relative > LOGITS {
        return Err(format!("logits differ by {relative:e}, expected at most {LOGITS:e}").into());
    }
    Ok(())
}

fn experts_on_the_host(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let held_out = HeldOut::of_samples(std::slice::from_ref(&g.first), g.base.config().vocab)?;
    let merged = merge(g, "f16");
    let measure =
        |offload| block_on(verify::compare_merged(gpu, &g.base, &g.adapter, &merged, &held_out, offload));
    assert_eq!(measure(Offload::EXPERTS)?, measure(Offload::NEVER)?);
    // All experts are in host memory: with a limit of one byte, offloading fails.
    gpu.set_host_memory(1);
    let (offloaded, resident) = (measure(Offload::EXPERTS), measure(Offload::NEVER));
    gpu.set_host_memory(u64::MAX);
    assert!(matches!(offloaded, Err(GpuError::HostMemory { layers: 4, .. })), "{offloaded:?}");
    assert!(resident.is_ok(), "{resident:?}");
    Ok(())
}

fn divergences(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let samples = [g.first.clone(), g.second.clone()];
    let held_out = HeldOut::of_samples(&samples, g.base.config().vocab)?;
    // KL divergence in nats, at least three times the measured value. Random weights lose more than trained ones.
    let types =
        [("f32", 1e-9), ("f16", 2e-5), ("q8_0", 0.013), ("auto", 0.013), ("q6_k", 0.1), ("q4_k", 1.3)];
    for (ty, allowed) in types {
        let merged = merge(g, ty);
        let MergeCheck { divergence, effect } =
            block_on(verify::compare_merged(gpu, &g.base, &g.adapter, &merged, &held_out, Offload::NEVER))?;
        if divergence.kl.is_nan() || divergence.kl > allowed || divergence.kl < -1e-9 {
            return Err(format!("{ty}: {divergence}, expected at most {allowed:e}").into());
        }
        if effect.divergence.kl < 0.01 {
            return Err(format!("the adapter's effect is {effect}, expected a plain one").into());
        }
        let tokens = samples.iter().map(Sample::loss_tokens).sum::<usize>();
        assert_eq!((divergence.tokens, effect.divergence.tokens), (tokens, tokens));
    }
    // The unmerged base has lost the whole adapter.
    let checked =
        block_on(verify::compare_merged(gpu, &g.base, &g.adapter, &g.base, &held_out, Offload::NEVER))?;
    assert_eq!(checked.divergence, checked.effect.divergence);
    let error = checked.check(MergeType::Keep).expect_err("nothing was merged").to_string();
    assert!(error.contains("choose the type q8_0"), "{error}");
    Ok(())
}

/// A trainer of the golden model that can hold its samples.
fn with_trainer(gpu: &Gpu, g: &Golden, adapter: &Adapter, test: impl FnOnce(&mut Trainer, &HeldOut)) {
    let samples = [g.first.clone(), g.second.clone()];
    let held_out = HeldOut::of_samples(&samples, g.base.config().vocab).expect("they carry loss");
    let capacity = held_out.capacity();
    let model = Model::load(gpu, &g.base, capacity.tokens).expect("it fits");
    let trainer = Trainer::new(gpu, &model, adapter, capacity, Dropout::NONE, Recompute::Always);
    test(&mut trainer.expect("it fits"), &held_out);
}

/// `adapter` with one of its matrices changed.
fn changed(adapter: &Adapter, change: impl Fn(&mut Pair)) -> Adapter {
    let mut adapter = adapter.clone();
    let last = adapter.pairs.len() / 2;
    change(adapter.pairs.values_mut().nth(last).expect("there are some"));
    adapter
}

fn read_back(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let rounded = |v: &mut f32| *v = half::f16::from_f32(*v).to_f32();
    let mut in_f16 = g.adapter.clone();
    in_f16.pairs.values_mut().flat_map(|p| p.a.iter_mut().chain(&mut p.b)).for_each(rounded);
    let sound = [
        (Format::Peft, g.adapter.clone()),
        // The scale rounded to f32.
        (Format::GgufLora, Adapter { alpha: g.adapter.alpha * (1.0 + 1e-7), ..g.adapter.clone() }),
        (Format::GgufLoraF16, in_f16.clone()),
    ];
    let wrong = [
        // F16 precision does not explain a loss in an F32 format.
        (Format::Mlx, in_f16),
        (Format::Peft, changed(&g.adapter, |pair| pair.b.fill(0.0))),
        (Format::GgufLora, Adapter { rslora: true, ..g.adapter.clone() }),
        (Format::GgufLoraF16, Adapter { alpha: g.adapter.alpha * 1.01, ..g.adapter.clone() }),
        (Format::RullamaV0, changed(&g.adapter, |pair| pair.a.reverse())),
        (Format::Peft, changed(&g.adapter, |pair| pair.b[0] = f32::NAN)),
    ];
    with_trainer(gpu, g, &g.adapter, |trainer, held_out| {
        let verified = block_on(verify::verify(trainer, &g.adapter, &sound, held_out)).expect("it runs");
        for fidelity in &verified.formats {
            eprintln!("{:?} {:.2e}, at most {:.1e}", fidelity.format, fidelity.difference, fidelity.allowed);
            fidelity.check().unwrap_or_else(|e| panic!("{e}"));
        }
        assert_eq!(verified.formats[0].difference, 0.0, "the same numbers");
        assert!(verified.formats[2].difference > 1e-6, "F16 cannot be exact");
        verified.effect.check().expect("a sound adapter");
        let verified = block_on(verify::verify(trainer, &g.adapter, &wrong, held_out)).expect("it runs");
        for fidelity in verified.formats {
            let error = fidelity.check().expect_err(&format!("{fidelity:?}")).to_string();
            let expected = format!("reloaded from {}, its logits differ by ", fidelity.format.name());
            assert!(
                error.contains(&expected)
                    && error.contains(" of the adapter's effect, expected at most ")
                    && !error.contains(['\\', '\n']),
                "{error}"
            );
        }
    });
    Ok(())
}

fn refusals(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let options = WriteOptions { base_model: "golden", dropout: 0.0, fingerprint: None, vocabulary: None };
    let formats = [Format::GgufLora, Format::GgufLoraF16];
    let folder = tempfile::tempdir()?;
    let dir = folder.path().join("new");
    let write = |adapter: &Adapter| {
        let mut written = None;
        with_trainer(gpu, g, adapter, |trainer, held_out| {
            written = Some(block_on(verify::write_verified_by(
                trainer, &dir, &formats, adapter, &options, held_out,
            )));
        });
        written.expect("it was tried")
    };
    // So large that the adapted model shares nothing with its base.
    let error = write(&Adapter { alpha: 4000.0, ..g.adapter.clone() }).expect_err("too much").to_string();
    assert!(error.contains("its KL divergence from the base is "), "{error}");
    // Values so small that F16 rounds them to zero, and a scale that compensates.
    let mut small = g.adapter.clone();
    small.pairs.values_mut().flat_map(|pair| &mut pair.b).for_each(|b| *b *= 1e-6);
    small.alpha *= 1e6;
    assert!(!dir.exists(), "a refused adapter left something behind");
    let written = write(&small).map_err(|e| e.to_string())?;
    let [(Format::GgufLora, Ok(exported)), (Format::GgufLoraF16, Err(error))] = &written.formats[..] else {
        panic!("{written:?}")
    };
    assert!(
        exported.place.exists()
            && error.to_string().contains("F16 is too coarse for this adapter; choose gguf-lora"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(&dir)?.count(), 1, "only what is sound");
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1, "and nothing beside it");
    // Nothing to compare on.
    let mut sample = g.first.clone();
    sample.labels.fill(rullama_train::data::batch::IGNORE);
    assert_eq!(HeldOut::of_samples(&[sample], g.base.config().vocab), Err(NoTokens));
    Ok(())
}
