//! Objectives that compare samples: twenty steps against TRL, gradients against the f64 reference, and packing.

use std::path::Path;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::data::batch::{IGNORE, MicroBatch, Sample, Step};
use rullama_train::data::compare::{Side, mismatched};
use rullama_train::gpu::Gpu;
use rullama_train::model::plan::Recompute;
use rullama_train::ops::adamw::AdamW;
use rullama_train::ops::op::Variant;
use rullama_train::reference::{cross_entropy, model as reference};
use rullama_train::run::Comparing;
use rullama_train::run::reference::References;
use rullama_train::train::objective::{Objective, Preference, PreferenceLoss, Score, Scored};
use rullama_train::train::{Optimizer, Trainer};
use serde_json::Value as Json;

use super::golden::Golden;
use super::{GRADIENT, check, gpu};

/// Losses and reward margins against TRL's, relative where they are above 1.
const TRL: f64 = 1e-4;
/// Gradients of a step whose samples are packed in another way.
const PACKED: f64 = 1e-5;

pub fn tests(tests: &mut Vec<gpu::Test>) {
    for case in cases() {
        let name = format!("qwen3: {} is TRL's", case.0);
        tests.push(gpu::Test::new(name, Variant::F32, move |gpu| like_trl(gpu, case)));
    }
    for folder in ["qwen3", "qwen3moe"] {
        let run = move |gpu: &Gpu| gradients(gpu, folder);
        tests.push(gpu::Test::new(format!("{folder}: gradients of every objective"), Variant::F32, run));
        let run = move |gpu: &Gpu| packing(gpu, folder);
        tests.push(gpu::Test::new(format!("{folder}: pairs packed, split, recomputed"), Variant::F32, run));
    }
}

fn cases() -> [(&'static str, Preference); 10] {
    let of = |loss, beta, sft_weight| Preference { loss, beta, sft_weight };
    let sigmoid = |label_smoothing| PreferenceLoss::Sigmoid { label_smoothing };
    [
        ("dpo fresh", of(sigmoid(0.0), 0.1, 0.0)),
        ("dpo", of(sigmoid(0.0), 0.1, 0.0)),
        ("dpo robust", of(sigmoid(0.1), 0.3, 0.0)),
        ("dpo ipo", of(PreferenceLoss::Ipo, 0.2, 0.0)),
        ("dpo apo_zero", of(PreferenceLoss::ApoZero, 0.3, 0.0)),
        ("dpo sft_weight", of(sigmoid(0.0), 0.1, 0.5)),
        ("kto", of(PreferenceLoss::Kto { weights: [1.5, 0.75] }, 0.5, 0.0)),
        ("kto apo_zero_unpaired", of(PreferenceLoss::ApoZeroUnpaired { weights: [1.0, 1.0] }, 0.3, 0.0)),
        ("orpo", of(PreferenceLoss::Orpo, 0.1, 0.0)),
        ("simpo", of(PreferenceLoss::Simpo { gamma: 0.5 }, 2.0, 0.25)),
    ]
}

/// The records of tests/golden/preference/losses.py.
fn records() -> Json {
    let text = std::fs::read_to_string("tests/golden/preference/losses.json").expect("the records");
    serde_json::from_str(&text).expect("JSON")
}

fn ids(value: &Json) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn sample(prompt: &Json, answer: &Json, end: &Json, side: Side) -> Sample {
    let prompt = ids(prompt);
    let mut labels = vec![IGNORE; prompt.len()];
    let answer = [ids(answer), vec![end.as_u64().expect("an id") as u32]].concat();
    labels.extend(answer.iter().map(|&id| id as i32));
    Sample { ids: [prompt, answer].concat(), labels, origin: String::new(), side, taught: None, row: None }
}

/// The samples of TRL's run for an objective.
fn samples(records: &Json, preference: &Preference) -> Vec<Sample> {
    let list = |key: &str| records[key].as_array().expect("samples").clone();
    if preference.is_rated() {
        let side = |r: &Json| if r["label"] == true { Side::Desirable } else { Side::Undesirable };
        let one = |r: Json| sample(&r["prompt"], &r["completion"], &records["eos"], side(&r));
        return list("rated").into_iter().map(one).collect();
    }
    let sides = [("chosen", Side::Chosen), ("rejected", Side::Rejected)];
    let pair = |p: Json| sides.map(|(key, side)| sample(&p["prompt"], &p[key], &records["eos"], side));
    list("pairs").into_iter().flat_map(pair).collect()
}

/// The log-probabilities of samples under the adapter that `trainer` holds.
fn scores(trainer: &Trainer, samples: &[Sample]) -> Vec<f64> {
    let each = samples.iter().map(|sample| MicroBatch::pack([sample])).collect::<Vec<_>>();
    let (scores, _) = block_on(trainer.score(&each, |_| ())).expect("the device works");
    scores.iter().map(|score| score.logp).collect()
}

fn comparing(preference: Preference, samples: &[Sample]) -> Comparing {
    let mismatched = if preference.needs_mismatched() { mismatched(samples, 4, 1 << 20) } else { Vec::new() };
    Comparing { objective: Objective::Preference(preference), mismatched, ..Comparing::default() }
}

fn like_trl(gpu: &Gpu, (name, preference): (&str, Preference)) -> Result<(), Failed> {
    let (g, records) = (Golden::read(Path::new("tests/golden/qwen3")), records());
    let samples = samples(&records, &preference);
    let adapter = if name == "dpo fresh" { g.without_effect() } else { g.adapter.clone() };
    let model = super::model(gpu, &g);
    let comparing = comparing(preference, &samples);
    let indices: Vec<usize> = (0..samples.len()).collect();
    let plans: Vec<Vec<usize>> = indices.chunks(4).map(<[usize]>::to_vec).collect();
    let ahead: Vec<Step> =
        plans.iter().map(|plan| comparing.step(&samples, std::slice::from_ref(plan))).collect();
    let trainer = super::trainer(gpu, &model, &adapter, &ahead.iter().collect::<Vec<_>>(), Recompute::Never)
        .with_objective(comparing.objective);
    if preference.needs_reference() {
        let known = References {
            samples: scores(&trainer, &samples),
            mismatched: scores(&trainer, &comparing.mismatched),
        };
        comparing.references.set(known).expect("it is new");
    }
    let adam = AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
    let optimizer = Optimizer { adam: Some(adam), weight_decay: 0.0, max_grad_norm: 0.0 };
    let rate = records["rate"].as_f64().expect("a rate");
    let steps = records["cases"][name].as_array().expect("steps").clone();
    assert_eq!(steps.len(), 20, "{name}");
    let mut worst: f64 = 0.0;
    for (number, expected) in steps.iter().enumerate() {
        let step = comparing.step(&samples, std::slice::from_ref(&plans[number % plans.len()]));
        let report = block_on(trainer.step(&step, number as u64 + 1, &optimizer, rate))?;
        let compared = |what: &str, found: Option<f64>| {
            // The rewards of the first step are equal but for rounding, so that their order is chance. TRL reports a kl of 0
            // where there is none.
            let chance = number == 0 && what == "rewards/accuracies";
            let Some(expected) = expected[what].as_f64().filter(|e| !chance && (what != "kl" || *e != 0.0))
            else {
                return 0.0;
            };
            found.map_or(f64::NAN, |found| (found - expected).abs() / expected.abs().max(1.0))
        };
        let mut errors = vec![compared("loss", Some(report.loss))];
        errors.extend(report.preference.named().map(|(what, found)| compared(what, found)));
        if errors.iter().any(|error| error.is_nan()) {
            return Err(format!("{name}: step {} lacks a metric of {expected}", number + 1).into());
        }
        worst = errors.into_iter().fold(worst, f64::max);
    }
    check(&format!("{name}: worst of 20 steps"), worst, TRL)
}

/// Two pairs, or four rated samples, with made-up references.
fn two_pairs(preference: Preference) -> (Vec<Sample>, Comparing) {
    let samples = samples(&records(), &preference)[..4].to_vec();
    let comparing = comparing(preference, &samples);
    let made_up = |offset: f64| (0..4).map(|n| -60.0 - offset * f64::from(n)).collect();
    let known = References { samples: made_up(3.0), mismatched: made_up(-2.0) };
    comparing.references.set(known).expect("it is new");
    (samples, comparing)
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// Every gradient of every objective against the f64 reference, whose coefficients are computed here in f64.
fn gradients(gpu: &Gpu, folder: &str) -> Result<(), Failed> {
    let g = Golden::read(&Path::new("tests/golden").join(folder));
    let pairs = g.adapter.pairs.iter();
    let pairs = pairs.map(|(slot, p)| (*slot, reference::Pair { a: widen(&p.a), b: widen(&p.b) }));
    let adapter = reference::Adapter {
        rank: g.adapter.rank,
        scale: g.adapter.scale(),
        pairs: pairs.collect(),
        masks: Default::default(),
    };
    let tensor = |name: &str| Some(widen(&g.base.matrix(name)?.dequantize()));
    let weights = reference::Weights::from_tensors(g.base.config(), tensor).expect("a whole model");
    let truth = reference::Model { config: g.base.config(), weights: &weights, adapter: &adapter };
    let model = super::model(gpu, &g);
    for (name, preference) in cases().into_iter().skip(1) {
        let (samples, comparing) = two_pairs(preference);
        let step = comparing.step(&samples, &[vec![0, 1, 2, 3]]);
        let trainer = super::trainer(gpu, &model, &g.adapter, &[&step], Recompute::Never)
            .with_objective(comparing.objective);
        let (loss, found) = block_on(trainer.gradients(&step, 1))?;
        let (expected_loss, expected) = true_gradients(&truth, &preference, &step);
        check(&format!("{name}: loss"), (loss - expected_loss).abs() / expected_loss.abs(), 2e-5)?;
        for (slot, pair) in &found {
            let expected = &expected.pairs[slot];
            for (half, found, expected) in [("A", &pair.a, &expected.a), ("B", &pair.b, &expected.b)] {
                let error = gpu::relative(&widen(found), expected);
                if error.is_nan() || error > GRADIENT {
                    check(&format!("{name}: {half} of {}", slot.name()), error, GRADIENT)?;
                }
            }
        }
    }
    Ok(())
}

fn true_gradients(
    truth: &reference::Model,
    preference: &Preference,
    step: &Step,
) -> (f64, reference::Gradients) {
    let rows = |batch: &MicroBatch| {
        let acts = truth.forward(batch);
        let softcap = truth.config.softcap.map(f64::from);
        let losses = cross_entropy::forward(&acts.logits, &batch.targets, softcap, truth.config.vocab);
        (acts, losses)
    };
    let comparison = step.comparison.as_ref().expect("samples are compared");
    let (batch, sum) = (&step.micro_batches[0], |losses: &[f64]| -losses.iter().sum::<f64>());
    let mut kl = 0.0;
    for batch in &comparison.mismatched {
        let sums: f64 = sum(&rows(batch).1);
        kl = ((sums - comparison.mismatched_reference) / comparison.samples.len() as f64).max(0.0);
    }
    let (acts, losses) = rows(batch);
    let in_prompt = |row: usize| batch.in_prompt.get(row) == Some(&true);
    let sample_of = |row: usize| batch.starts[batch.loss_rows[row] as usize];
    let (mut scored, mut of_row): (Vec<Scored>, Vec<usize>) = (Vec::new(), Vec::new());
    for (row, loss) in losses.iter().enumerate() {
        if row == 0 || sample_of(row) != sample_of(row - 1) {
            let known = comparison.samples[scored.len()];
            scored.push(Scored { side: known.side, score: Score::default(), reference: known.reference });
        }
        let last = scored.len() - 1;
        if !in_prompt(row) {
            scored[last].score.logp -= loss;
            scored[last].score.tokens += 1;
        }
        of_row.push(last);
    }
    let size = if preference.is_rated() { 1 } else { 2 };
    let units = (scored.len() / size) as f64;
    let good: Vec<usize> = (0..losses.len()).filter(|&row| scored[of_row[row]].side.is_good()).collect();
    let nll = preference.nll_weight() / good.len() as f64;
    let mut coefficients: Vec<f64> =
        (0..losses.len()).map(|row| if good.contains(&row) { nll } else { 0.0 }).collect();
    let mut loss = nll * good.iter().map(|&row| losses[row]).sum::<f64>();
    for (unit, samples) in scored.chunks(size).enumerate() {
        let judged = preference.judge(samples, kl);
        loss += judged.loss / units;
        for row in (0..losses.len()).filter(|&row| of_row[row] / size == unit && !in_prompt(row)) {
            coefficients[row] -= judged.slopes[of_row[row] % size] / units;
        }
    }
    (loss, truth.backward_rows(batch, &acts, &coefficients))
}

/// A step has one loss and one gradient, however its units are packed and split; recomputed activations change no bit.
fn packing(gpu: &Gpu, folder: &str) -> Result<(), Failed> {
    let g = Golden::read(&Path::new("tests/golden").join(folder));
    let model = super::model(gpu, &g);
    for (name, preference) in cases().into_iter().skip(1) {
        let (samples, comparing) = two_pairs(preference);
        let plans: [&[Vec<usize>]; 3] = [&[vec![0, 1, 2, 3]], &[vec![2, 3, 0, 1]], &[vec![0, 1], vec![2, 3]]];
        let steps = plans.map(|plan| comparing.step(&samples, plan));
        let run = |step: &Step, recompute| {
            let trainer = super::trainer(gpu, &model, &g.adapter, &[step], recompute)
                .with_objective(comparing.objective);
            block_on(trainer.gradients(step, 1))
        };
        let (loss, whole) = run(&steps[0], Recompute::Never)?;
        let (again, recomputed) = run(&steps[0], Recompute::Always)?;
        if loss != again || whole != recomputed {
            return Err(format!("{name}: recomputed activations change the gradients").into());
        }
        for step in &steps[1..] {
            let (split, gradients) = run(step, Recompute::Never)?;
            check(&format!("{name}: loss"), (split - loss).abs() / loss.abs(), PACKED)?;
            for (slot, pair) in &gradients {
                let error = gpu::relative(&widen(&pair.b), &widen(&whole[slot].b))
                    .max(gpu::relative(&widen(&pair.a), &widen(&whole[slot].a)));
                if error.is_nan() || error > PACKED {
                    check(&format!("{name}: {}", slot.name()), error, PACKED)?;
                }
            }
        }
    }
    Ok(())
}
