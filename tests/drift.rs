//! Merged models on the device: their logits against base and adapter, and against PyTorch in f64.

#[path = "common/golden.rs"]
mod golden;
#[path = "common/gpu.rs"]
mod gpu;

use std::path::Path;

use golden::Golden;
use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::batch::Sample;
use rullama_train::export::drift::{self, MeasureError, Verdict};
use rullama_train::export::merged::{self, MergeType};
use rullama_train::gpu::Gpu;
use rullama_train::weights::{Base, Gguf};

/// What the device may be from PyTorch in f64, merged or not; see tests/golden/README.md.
const LOGITS: f64 = 2e-5;

fn main() {
    let mut tests: Vec<gpu::Test> = Vec::new();
    for name in ["dense", "big", "ollama"] {
        let mut add = |what: &str, test: fn(&Gpu, &Golden) -> Result<(), Failed>| {
            let run = move |gpu: &Gpu| test(gpu, &Golden::read(&Path::new("tests/golden").join(name)));
            tests.push((format!("{name}: {what}"), Box::new(run)));
        };
        add("merged into F32, the logits are PyTorch's with the adapter", f32_is_exact);
        add("the drift of each type", drifts);
        add("nothing to compare", nothing_to_compare);
    }
    gpu::run(tests)
}

fn merge(g: &Golden, ty: &str) -> Base {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("merged.gguf");
    let ty = MergeType::from_name(ty).expect("a type");
    merged::write(&path, &g.base, &g.adapter, ty, |_| {}).expect("merged");
    let bytes = std::fs::read(&path).expect("written");
    Base::from_gguf(Gguf::from_bytes(bytes, ty_name(ty)).expect("sound"), "merged").expect("a model")
}

fn ty_name(ty: MergeType) -> &'static str {
    MergeType::NAMES.into_iter().find(|(_, t)| *t == ty).map_or("merged", |(name, _)| name)
}

fn f32_is_exact(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    // Every token but the last carries loss, so that every logit of the file is compared but its last row.
    let mut sample = g.first.clone();
    sample.labels = sample.ids.iter().map(|&id| id as i32).collect();
    let merged = merge(g, "f32");
    let found = block_on(drift::logits(gpu, &merged, &[None], &[sample]))?;
    let found: Vec<f64> = found[0].values().iter().map(|&v| f64::from(v)).collect();
    let expected = &g.tensor("logits.lora")[..found.len()];
    assert_eq!(found.len(), (g.first.ids.len() - 1) * g.base.config().vocab);
    let relative = gpu::relative(&found, expected);
    if relative > LOGITS {
        return Err(format!("logits differ by {relative:e}, expected at most {LOGITS:e}").into());
    }
    Ok(())
}

fn drifts(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let samples = [g.first.clone(), g.second.clone()];
    // KL divergence in nats, at least three times what was measured; random weights suffer more than trained ones.
    let types =
        [("f32", 1e-9), ("f16", 2e-5), ("q8_0", 0.013), ("auto", 0.013), ("q6_k", 0.1), ("q4_k", 1.3)];
    for (ty, allowed) in types {
        let merged = merge(g, ty);
        let Verdict { drift, effect } = block_on(drift::measure(gpu, &g.base, &g.adapter, &merged, &samples))
            .map_err(|e| e.to_string())?;
        if drift.kl.is_nan() || drift.kl > allowed || drift.kl < -1e-9 {
            return Err(format!("{ty}: {drift}, expected at most {allowed:e}").into());
        }
        if effect.kl < 0.01 {
            return Err(format!("the adapter's effect is {effect}, expected a plain one").into());
        }
        let tokens = samples.iter().map(Sample::loss_tokens).sum::<usize>();
        assert_eq!((drift.tokens, effect.tokens), (tokens, tokens));
    }
    // The base itself in the place of the merged model has lost the whole adapter.
    let verdict =
        block_on(drift::measure(gpu, &g.base, &g.adapter, &g.base, &samples)).map_err(|e| e.to_string())?;
    assert_eq!(verdict.drift, verdict.effect);
    let error = verdict.check(MergeType::Keep).expect_err("nothing was merged").to_string();
    assert!(error.contains("choose the type q8_0"), "{error}");
    Ok(())
}

fn nothing_to_compare(gpu: &Gpu, g: &Golden) -> Result<(), Failed> {
    let mut sample = g.first.clone();
    sample.labels.fill(rullama_train::batch::IGNORE);
    match block_on(drift::measure(gpu, &g.base, &g.adapter, &g.base, &[sample])) {
        Err(MeasureError::NoTokens) => Ok(()),
        other => Err(format!("{other:?}, expected an error").into()),
    }
}
