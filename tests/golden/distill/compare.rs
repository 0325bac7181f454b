//! Learning from a teacher: loss and every gradient against the f64 reference, and what a model teaches against its own logits.

use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::data::batch::{IGNORE, MicroBatch, Sample, Step};
use rullama_train::data::teacher::{TaughtRow, TeacherRows};
use rullama_train::gpu::Gpu;
use rullama_train::model::plan::Recompute;
use rullama_train::ops::adamw::AdamW;
use rullama_train::ops::op::Variant;
use rullama_train::reference::distill::{Taught, backward, forward};
use rullama_train::reference::model as reference;
use rullama_train::train::Optimizer;
use rullama_train::train::objective::{Distill, Divergence, Objective};
use serde_json::Value as Json;

use super::golden::Golden;
use super::{GRADIENT, LOSS, check, gpu};

/// Losses against TRL's, relative where they are above 1.
const TRL: f64 = 1e-4;
/// Log-probabilities that a model teaches, against those of its logits.
const TAUGHT: f64 = 1e-4;
/// Tokens of the made-up teacher.
const TOP: usize = 12;

pub fn tests(tests: &mut Vec<gpu::Test>) {
    tests.push(gpu::Test::new("qwen3: gradients from a teacher", Variant::F32, gradients));
    tests.push(gpu::Test::new("qwen3: twenty steps from a teacher are TRL's", Variant::F32, like_trl));
    tests.push(gpu::Test::new("qwen3: teaches its probabilities", Variant::F32, lessons));
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// Distributions near those of `logits`, of the likeliest `top` tokens, and the same in f64.
fn teacher(logits: &[f64], vocab: usize, top: usize) -> (TeacherRows, Vec<Taught>) {
    let (mut given, mut taught) = (TeacherRows::unknown(top, top == vocab), Vec::new());
    for (n, row) in logits.chunks(vocab).enumerate() {
        let moved: Vec<f64> =
            row.iter().enumerate().map(|(i, x)| 0.8 * x + ((n * 7 + i * 13) % 11) as f64 / 5.0).collect();
        let sum = moved.iter().map(|x| x.exp()).sum::<f64>().ln();
        let mut all: Vec<(u32, f32)> =
            moved.iter().enumerate().map(|(id, x)| (id as u32, (x - sum) as f32)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let others = all.split_off(top);
        let rest = others.iter().map(|(_, log)| f64::from(*log).exp()).sum::<f64>().ln() as f32;
        given.push(TaughtRow { tokens: all.clone(), rest: (!others.is_empty()).then_some(rest) });
        let values = &given.values[n * (top + 1)..][..top + 1];
        let mut ids: Vec<u32> = all.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        let tokens = ids.into_iter().zip(values.iter().map(|log| f64::from(*log))).collect();
        taught.push(Taught { tokens, rest: (!others.is_empty()).then(|| f64::from(values[top])) });
    }
    (given, taught)
}

/// Loss and every gradient of each divergence, over a few tokens and over all.
fn gradients(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/qwen3"));
    let pairs = g.adapter.pairs.iter();
    let pairs = pairs.map(|(slot, p)| (*slot, reference::Pair { a: widen(&p.a), b: widen(&p.b) }));
    let (rank, scale) = (g.adapter.rank, g.adapter.scale());
    let adapter = reference::Adapter { rank, scale, pairs: pairs.collect(), masks: Default::default() };
    let tensor = |name: &str| Some(widen(&g.base.matrix(name)?.dequantize()));
    let weights = reference::Weights::from_tensors(g.base.config(), tensor).expect("a whole model");
    let truth = reference::Model { config: g.base.config(), weights: &weights, adapter: &adapter };
    let model = super::model(gpu, &g);
    let batch = MicroBatch::pack([&g.first]);
    let acts = truth.forward(&batch);
    let (vocab, cap) = (truth.config.vocab, truth.config.softcap.map(f64::from));
    for (divergence, top, temperature) in [
        (Divergence::ForwardKl, TOP, 1.0),
        (Divergence::ReverseKl, TOP, 2.0),
        (Divergence::Jsd { beta: 0.5 }, TOP, 0.9),
        (Divergence::Jsd { beta: 0.5 }, vocab, 1.0),
    ] {
        let name = format!("{divergence:?} of {top} tokens");
        let distill = Distill { divergence, temperature, weight: 0.8, sft_weight: 0.3 };
        let (given, taught) = teacher(&acts.logits, vocab, top);
        let taught_batch = MicroBatch { teacher: Some(Arc::new(given)), ..batch.clone() };
        let step = Step::of(taught_batch);
        let trainer = super::trainer(gpu, &model, &g.adapter, &[&step], Recompute::Never)
            .with_objective(Objective::Distill(distill));
        let (loss, found) = block_on(trainer.gradients(&step, 1))?;
        let rows = forward(&distill, &acts.logits, &batch.targets, &taught, cap, vocab);
        let n = rows.len() as f64;
        let mean = |i: usize| rows.iter().map(|row| row[i]).sum::<f64>() / n;
        let expected = distill.loss(mean(0), mean(1));
        check(&format!("{name}: loss"), (loss - expected).abs() / expected, LOSS)?;
        let coefficients = vec![1.0 / n; rows.len()];
        let dlogits = backward(&distill, &coefficients, &acts.logits, &batch.targets, &taught, cap, vocab);
        let expected = truth.backward_logits(&batch, &acts, &dlogits);
        let mut worst: f64 = 0.0;
        for (slot, pair) in &found {
            let expected = &expected.pairs[slot];
            for (found, expected) in [(&pair.a, &expected.a), (&pair.b, &expected.b)] {
                let error = gpu::relative(&widen(found), expected);
                worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
            }
        }
        check(&format!("{name}: worst gradient"), worst, GRADIENT)?;
    }
    Ok(())
}

/// Twenty steps of each case of tests/golden/distill/steps.py, whose teacher is the base alone; in one case it reads a context first.
fn like_trl(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/qwen3"));
    let model = super::model(gpu, &g);
    let text = std::fs::read_to_string("tests/golden/distill/steps.json").expect("the records");
    let records: Json = serde_json::from_str(&text).expect("JSON");
    let samples: Vec<Sample> = records["samples"].as_array().expect("samples").iter().map(sample).collect();
    let (vocab, rate) = (g.base.config().vocab, records["rate"].as_f64().expect("a rate"));
    let adam = AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
    let optimizer = Optimizer { adam: Some(adam), weight_decay: 0.0, max_grad_norm: 0.0 };
    for (name, case) in records["cases"].as_object().expect("cases") {
        let number = |key: &str| case[key].as_f64().expect("a number");
        let (beta, temperature, top) = (number("beta"), number("temperature"), number("top") as usize);
        let divergence = match beta {
            0.0 => Divergence::ForwardKl,
            1.0 => Divergence::ReverseKl,
            beta => Divergence::Jsd { beta },
        };
        let distill = Distill { divergence, temperature, weight: 1.0, sft_weight: number("sft_weight") };
        let top = if top == 0 { vocab } else { top };
        let steps: Vec<Step> = (0..20)
            .map(|n| {
                let batch = MicroBatch::pack((0..2).map(|i| &samples[(2 * n + i) % samples.len()]));
                let teacher = Some(Arc::new(TeacherRows::unknown(top, top == vocab)));
                Step::of(MicroBatch { teacher, ..batch })
            })
            .collect();
        let shows = case["context"].as_bool().unwrap_or(false);
        let read: Vec<Step> = (0..20)
            .map(|n| {
                let rows = (0..2).map(|i| &samples[(2 * n + i) % samples.len()]);
                Step::of(MicroBatch::pack(rows.map(|row| if shows { row.for_teacher() } else { row })))
            })
            .collect();
        let all: Vec<&Step> = steps.iter().chain(&read).collect();
        let teacher = super::trainer(gpu, &model, &g.without_effect(), &all, Recompute::Never);
        let student = super::trainer(gpu, &model, &g.adapter, &all, Recompute::Never)
            .with_objective(Objective::Distill(distill));
        let mut worst: f64 = 0.0;
        for (n, expected) in case["losses"].as_array().expect("losses").iter().enumerate() {
            let batch = &steps[n].micro_batches[0];
            let mut given = TeacherRows::unknown(top, top == vocab);
            let read = &read[n].micro_batches[0];
            let taught = block_on(teacher.teach(read, (top, vocab), top == vocab, temperature))?;
            taught.into_iter().for_each(|token| given.push(token.row));
            let step = Step::of(MicroBatch { teacher: Some(Arc::new(given)), ..batch.clone() });
            let report = block_on(student.step(&step, n as u64 + 1, &optimizer, rate))?;
            let expected = expected.as_f64().expect("a loss");
            worst = worst.max((report.loss - expected).abs() / expected.max(1.0));
        }
        check(&format!("{name}: worst of 20 steps"), worst, TRL)?;
    }
    Ok(())
}

fn sample(record: &Json) -> Sample {
    let ids = |key: &str| -> Vec<u32> {
        record[key].as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    let (prompt, answer) = (ids("prompt"), ids("answer"));
    let row = |prompt: &[u32], taught: Option<Box<Sample>>| {
        let labels = prompt.iter().map(|_| IGNORE).chain(answer.iter().map(|&id| id as i32)).collect();
        let (origin, side) = (String::new(), Default::default());
        Sample { ids: [prompt, &answer].concat(), labels, origin, side, taught, row: None }
    };
    let shown = [ids("context"), prompt.clone()].concat();
    row(&prompt, Some(Box::new(row(&shown, None))))
}

/// The likeliest tokens and the rest are those of the model's logits, also at a temperature; and all tokens.
fn lessons(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/qwen3"));
    let model = super::model(gpu, &g);
    let batch = MicroBatch::pack([&g.first]);
    let step = Step::of(batch.clone());
    let trainer = super::trainer(gpu, &model, &g.adapter, &[&step], Recompute::Never);
    let logits = block_on(trainer.logits(&batch, &batch.loss_rows))?;
    let vocab = g.base.config().vocab;
    for (top, temperature) in [(TOP, 1.0), (TOP, 2.0), (vocab, 0.7)] {
        let found = block_on(trainer.teach(&batch, (top, vocab), top == vocab, temperature))?;
        let mut worst: f64 = 0.0;
        for ((token, row), &target) in found.iter().zip(logits.chunks(vocab)).zip(&batch.targets) {
            let warm: Vec<f64> = row.iter().map(|&x| f64::from(x) / temperature).collect();
            let sum = |values: &[f64]| values.iter().map(|x| x.exp()).sum::<f64>();
            let lse = sum(&warm).ln();
            let mut left = 1.0;
            for (id, log) in &token.row.tokens {
                let expected = warm[*id as usize] - lse;
                worst = worst.max((f64::from(*log) - expected).abs());
                left -= expected.exp();
            }
            if let Some(rest) = token.row.rest {
                worst = worst.max((f64::from(rest).exp() - left).abs());
            }
            let cold = sum(&widen(row)).ln() - f64::from(row[target as usize]);
            worst = worst.max((f64::from(token.loss) - cold).abs());
            let least = token.row.tokens.last().map_or(0.0, |(_, log)| *log);
            let sorted = token.row.tokens.windows(2).all(|pair| pair[0].1 >= pair[1].1);
            let listed = |id: usize| token.row.tokens.iter().any(|(own, _)| *own as usize == id);
            let missed = (0..vocab).any(|id| !listed(id) && warm[id] - lse > f64::from(least) + 1e-4);
            if token.row.tokens.len() != top || !sorted || missed {
                return Err(format!("top {top}: other tokens than the likeliest").into());
            }
        }
        check(&format!("top {top} at temperature {temperature}"), worst, TAUGHT)?;
    }
    Ok(())
}
