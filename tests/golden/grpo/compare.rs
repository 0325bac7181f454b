//! Learning from rewards: losses, measurements and coefficients against TRL, and gradients of whole models against the f64 reference.

use std::collections::BTreeMap;
use std::path::Path;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::data::batch::{IGNORE, MicroBatch, Sample, Step};
use rullama_train::data::rollout::Rollout;
use rullama_train::gpu::Gpu;
use rullama_train::model::plan::Recompute;
use rullama_train::ops::op::Variant;
use rullama_train::reference::cross_entropy::Adjusted;
use rullama_train::reference::{cross_entropy, model as reference};
use rullama_train::train::objective::advantages::{Rewarded, ScaleRewards};
use rullama_train::train::objective::{Counts, Grades, Grpo, GrpoLoss, Judgeable, Level, Objective};
use serde_json::Value as Json;

use super::golden::Golden;
use super::{GRADIENT, check, gpu};

/// Advantages, losses and measurements against TRL's in f64; coefficients are rounded to f32.
const TRL: f64 = 1e-6;

pub fn tests(tests: &mut Vec<gpu::Test>) {
    tests.push(gpu::Test::new("grpo: advantages are TRL's", Variant::F32, |_| advantages()));
    tests.push(gpu::Test::new("grpo: losses and coefficients are TRL's", Variant::F32, |_| losses()));
    for folder in ["qwen3", "gemma2"] {
        let run = move |gpu: &Gpu| gradients(gpu, folder);
        tests.push(gpu::Test::new(format!("{folder}: gradients of every grpo loss"), Variant::F32, run));
    }
}

/// The records of tests/golden/grpo/losses.py.
fn records() -> Json {
    let text = std::fs::read_to_string("tests/golden/grpo/losses.json").expect("the records");
    serde_json::from_str(&text).expect("JSON")
}

fn list(value: &Json) -> &Vec<Json> {
    value.as_array().expect("a list")
}

fn numbers(value: &Json) -> Vec<Option<f64>> {
    list(value).iter().map(Json::as_f64).collect()
}

fn rows(value: &Json) -> Vec<Vec<f32>> {
    let row = |row: &Json| numbers(row).into_iter().map(|x| x.expect("a number") as f32).collect();
    list(value).iter().map(row).collect()
}

fn compare(what: &str, found: f64, expected: f64) -> Result<(), Failed> {
    let error = (found - expected).abs() / expected.abs().max(1.0);
    match error <= TRL {
        true => Ok(()),
        false => Err(format!("{what}: found {found}, TRL has {expected}").into()),
    }
}

/// Every measurement of TRL's, except those that it has where there is nothing.
fn compare_all(what: &str, found: &BTreeMap<String, f64>, expected: &Json) -> Result<(), Failed> {
    for (name, expected) in expected.as_object().expect("measurements") {
        let Some(expected) = expected.as_f64().filter(|x| x.is_finite()) else { continue };
        let found = found.get(name).ok_or_else(|| format!("{what}: {name} is missing"))?;
        compare(&format!("{what}: {name}"), *found, expected)?;
    }
    Ok(())
}

fn advantages() -> Result<(), Failed> {
    let records = records();
    let scores: Vec<Vec<Option<f64>>> = list(&records["scores"]).iter().map(numbers).collect();
    let weights: Vec<f64> = numbers(&records["weights"]).into_iter().flatten().collect();
    let generations = records["generations"].as_u64().expect("a count") as usize;
    let names = ["first".to_owned(), "second".to_owned()];
    for scale in [ScaleRewards::Group, ScaleRewards::Batch, ScaleRewards::None] {
        let name = serde_json::to_value(scale).expect("a name");
        let expected = &records["advantages"][name.as_str().expect("a name")];
        let found = Rewarded::of(&scores, &weights, generations, scale);
        for (i, value) in numbers(&expected["values"]).into_iter().flatten().enumerate() {
            compare(&format!("{name}: advantage {i}"), found.advantages[i], value)?;
        }
        compare_all(&name.to_string(), &found.metrics(&names, &scores), &expected["metrics"])?;
    }
    Ok(())
}

fn grpo(case: &Json, max_completion_length: usize) -> Grpo {
    let text = |key: &str| case[key].as_str().expect("a name");
    let number = |key: &str| case[key].as_f64().expect("a number");
    Grpo {
        loss: match text("loss_type") {
            "dapo" => GrpoLoss::Dapo,
            "grpo" => GrpoLoss::Grpo,
            "bnpo" => GrpoLoss::Bnpo,
            "dr_grpo" => GrpoLoss::DrGrpo,
            _ => GrpoLoss::Cispo,
        },
        level: if text("importance_sampling_level") == "token" { Level::Token } else { Level::Sequence },
        epsilon: number("epsilon"),
        epsilon_high: number("epsilon_high"),
        delta: case["delta"].as_f64(),
        beta: number("beta"),
        temperature: 1.0,
        max_completion_length,
    }
}

fn losses() -> Result<(), Failed> {
    let records = records();
    let [logps, old, reference] = ["logps", "old", "reference"].map(|key| rows(&records[key]));
    let cases = list(&records["cases"]);
    assert!(cases.len() > 100, "{} cases", cases.len());
    let longest = records["max_completion_length"].as_u64().expect("a length") as usize;
    for case in cases {
        let name =
            ["loss_type", "importance_sampling_level", "scale_rewards", "old", "beta", "delta", "batch_size"]
                .map(|key| format!("{key} {}", case[key]))
                .join(", ");
        let grpo = grpo(case, longest);
        let advantages = &records["advantages"][case["scale_rewards"].as_str().expect("a name")]["values"];
        let advantages: Vec<f64> = numbers(advantages).into_iter().flatten().collect();
        let given = |values: &Vec<f32>, given: bool| if given { values.clone() } else { Vec::new() };
        let rollouts: Vec<Rollout> = (0..logps.len())
            .map(|i| Rollout {
                advantage: advantages[i],
                counts: records["finished"][i] == true || case["mask_truncated_completions"] == false,
                sampled: logps[i].clone(),
                old: given(&old[i], case["old"] == true),
                reference: given(&reference[i], grpo.beta != 0.0),
            })
            .collect();
        let size = case["batch_size"].as_u64().expect("a count") as usize;
        let mut grades = Grades::new(&rollouts, rollouts.len() / size);
        let mut found = Vec::new();
        for (rollouts, logps) in rollouts.chunks(size).zip(logps.chunks(size)) {
            let losses: Vec<f32> = logps.iter().flatten().map(|logp| -logp).collect();
            found.extend(grades.coefficients(&grpo, rollouts, &losses));
        }
        compare(&format!("{name}: loss"), grades.loss(), case["loss"].as_f64().expect("a loss"))?;
        let slopes = list(&case["slopes"]).iter().flat_map(numbers).flatten();
        for (row, (found, slope)) in found.iter().zip(slopes).enumerate() {
            compare(&format!("{name}: coefficient {row}"), f64::from(*found), -slope)?;
        }
        if !case["metrics"].is_null() {
            let mut found = grades.metrics(&grpo);
            found.extend(grades.kl().map(|kl| ("kl".to_owned(), kl)));
            compare_all(&name, &found, &case["metrics"])?;
        }
    }
    Ok(())
}

/// Six completions of two prompts in two micro-batches, with made-up log-probabilities before.
fn step(vocab: usize) -> Step {
    let id = |n: usize| ((n * 37 + 11) % (vocab - 30) + 20) as u32;
    let lengths = [3, 6, 1, 4, 5, 2];
    let sample = |(i, &length): (usize, &usize)| {
        let prompt: Vec<u32> = (0..5 + i / 3).map(|t| id(100 * (i / 3) + t)).collect();
        let completion: Vec<u32> = (0..length).map(|t| id(1000 * i + 7 * t)).collect();
        let mut labels = vec![IGNORE; prompt.len()];
        labels.extend(completion.iter().map(|&id| id as i32));
        Sample { ids: [prompt, completion].concat(), labels, ..Sample::default() }
    };
    let samples: Vec<Sample> = lengths.iter().enumerate().map(sample).collect();
    let micro_batches: Vec<MicroBatch> = samples.chunks(3).map(MicroBatch::pack).collect();
    let near = |i: usize, t: usize, by: f32| -6.0 + by * ((i * 5 + t * 3) % 7) as f32;
    let rollouts = lengths.iter().enumerate().map(|(i, &length)| Rollout {
        advantage: [1.25, -0.5, -0.75, 0.8, -1.1, 0.3][i],
        counts: i != 4,
        sampled: vec![0.0; length],
        old: (0..length).map(|t| near(i, t, 0.1)).collect(),
        reference: (0..length).map(|t| near(i, t, 0.15)).collect(),
    });
    let loss_tokens = lengths.iter().sum();
    Step { rollouts: rollouts.collect(), micro_batches, loss_tokens, ..Step::default() }
}

/// Every gradient of every loss, at a temperature, against the f64 reference.
fn gradients(gpu: &Gpu, folder: &str) -> Result<(), Failed> {
    let g = Golden::read(&Path::new("tests/golden").join(folder));
    let wide = |values: &[f32]| -> Vec<f64> { values.iter().map(|&x| f64::from(x)).collect() };
    let pairs = g.adapter.pairs.iter();
    let pairs = pairs.map(|(slot, p)| (*slot, reference::Pair { a: wide(&p.a), b: wide(&p.b) })).collect();
    let (rank, scale) = (g.adapter.rank, g.adapter.scale());
    let adapter = reference::Adapter { rank, scale, pairs, masks: Default::default() };
    let tensor = |name: &str| Some(wide(&g.base.matrix(name)?.dequantize()));
    let weights = reference::Weights::from_tensors(g.base.config(), tensor).expect("a whole model");
    let truth = reference::Model { config: g.base.config(), weights: &weights, adapter: &adapter };
    let model = super::model(gpu, &g);
    let step = step(g.base.config().vocab);
    for loss in [GrpoLoss::Dapo, GrpoLoss::Grpo, GrpoLoss::Bnpo, GrpoLoss::DrGrpo, GrpoLoss::Cispo] {
        for level in [Level::Token, Level::Sequence] {
            let (epsilon_high, delta) = if loss == GrpoLoss::Cispo { (1.5, None) } else { (0.28, Some(1.6)) };
            let grpo = Grpo {
                loss,
                level,
                epsilon: 0.2,
                epsilon_high,
                delta,
                beta: 0.05,
                temperature: 0.8,
                max_completion_length: 8,
            };
            let trainer = super::trainer(gpu, &model, &g.adapter, &[&step], Recompute::Never)
                .with_objective(Objective::Grpo(grpo));
            let (found_loss, found) = block_on(trainer.gradients(&step, 1))?;
            let (expected_loss, expected) = true_gradients(&truth, &grpo, &step);
            let name = format!("{loss:?} {level:?}");
            check(&format!("{name}: loss"), (found_loss - expected_loss).abs() / expected_loss.abs(), 1e-4)?;
            for (slot, pair) in &found {
                let halves = [("A", 0, &pair.a), ("B", 1, &pair.b)];
                for (half, at, found) in halves {
                    let error = gpu::relative(&wide(found), &expected[slot.name().as_str()][at]);
                    if error.is_nan() || error > GRADIENT {
                        check(&format!("{name}: {half} of {}", slot.name()), error, GRADIENT)?;
                    }
                }
            }
        }
    }
    Ok(())
}

fn true_gradients(
    truth: &reference::Model,
    grpo: &Grpo,
    step: &Step,
) -> (f64, BTreeMap<String, [Vec<f64>; 2]>) {
    let vocab = truth.config.vocab;
    let adjusted = Adjusted { softcap: truth.config.softcap.map(f64::from), temperature: grpo.temperature };
    let of = |rollouts: &[Rollout]| rollouts.iter().map(Rollout::loss_tokens).sum::<usize>();
    let (mut loss, mut sums) = (0.0, BTreeMap::<String, [Vec<f64>; 2]>::new());
    for (batch, rollouts) in step.micro_batches.iter().zip(step.rollouts.chunks(3)) {
        let acts = truth.forward(batch);
        let losses = cross_entropy::forward(&acts.logits, &batch.targets, adjusted, vocab);
        let (mut coefficients, mut rest) = (Vec::new(), &losses[..]);
        for rollout in rollouts {
            let (own, others) = rest.split_at(rollout.tokens());
            rest = others;
            let wide = |values: &[f32]| -> Vec<f64> { values.iter().map(|&x| f64::from(x)).collect() };
            let logps: Vec<f64> = own.iter().map(|loss| -loss).collect();
            let (old, reference) = (wide(&rollout.old), wide(&rollout.reference));
            let judged = grpo.judge(&Judgeable {
                advantage: rollout.advantage,
                counts: rollout.counts,
                logps: &logps,
                old: Some(&old),
                reference: Some(&reference),
            });
            let counts = Counts {
                completions: step.rollouts.len(),
                tokens: of(&step.rollouts),
                micro_batches: step.micro_batches.len(),
                of_batch: of(rollouts),
                own: rollout.loss_tokens(),
            };
            let weight = if rollout.counts { grpo.weight(counts) } else { 0.0 };
            loss += weight * judged.losses.iter().sum::<f64>();
            coefficients.extend(judged.slopes.iter().map(|slope| -slope * weight));
        }
        let dlogits = cross_entropy::backward(&coefficients, &acts.logits, &batch.targets, adjusted, vocab);
        for (slot, pair) in truth.backward_logits(batch, &acts, &dlogits).pairs {
            let sums =
                sums.entry(slot.name()).or_insert_with(|| [vec![0.0; pair.a.len()], vec![0.0; pair.b.len()]]);
            let add =
                |sum: &mut Vec<f64>, own: &[f64]| sum.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
            add(&mut sums[0], &pair.a);
            add(&mut sums[1], &pair.b);
        }
    }
    (loss, sums)
}
