//! Splitting a step into micro-batches, and recomputation, affect only memory, not results.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use libtest_mimic::Failed;
use rullama_train::data::batch::Step;
use rullama_train::gpu::Gpu;
use rullama_train::model::Model;
use rullama_train::model::plan::{Kept, Recompute};
use rullama_train::train::Dropout;

use super::chat::Chat;
use super::golden::Golden;
use super::{bits, check, check_that, gpu, gradient_bits, trainer, wide};

const STEPS: usize = 4;
/// The f32 sums are in another order.
const LOSS: f64 = 1e-6;
/// Adam turns a gradient that is mere rounding error into a full-size step, so single values may differ.
const ADAPTER: f64 = 1e-5;

pub fn micro_batches(gpu: &Gpu) -> Result<(), Failed> {
    let chat = Chat::read(&[]);
    let (expected, adapter) = chat.train(gpu, STEPS, |i| chat.steps.step(&chat.samples, i))?;
    assert!(expected.len() == STEPS && chat.steps.plans[0].len() == 2, "two micro-batches a step");

    let (again, same) = chat.train(gpu, STEPS, |i| chat.steps.step(&chat.samples, i))?;
    check_that("a second run reports the same", expected == again)?;
    check_that("a second run gives the same adapter, bit for bit", bits(&adapter) == bits(&same))?;

    let wider = Chat::read(&[("train.batch_size", "2"), ("train.gradient_accumulation_steps", "1")]);
    let alone = |i: usize| -> Step {
        let samples: Vec<Vec<usize>> = chat.steps.plans[i].concat().into_iter().map(|s| vec![s]).collect();
        Step::new(&chat.samples, &samples)
    };
    assert_eq!(wider.steps.step(&wider.samples, 0).micro_batches.len(), 1);
    for (what, (found, moved)) in [
        ("one micro-batch", wider.train(gpu, STEPS, |i| wider.steps.step(&wider.samples, i))?),
        ("every sample alone", chat.train(gpu, STEPS, alone)?),
    ] {
        let off = found.iter().zip(&expected).map(|(f, e)| (f.loss - e.loss).abs() / e.loss);
        check(&format!("{what}: worst loss"), off.fold(0.0, f64::max), LOSS)?;
        check(&format!("{what}: adapter"), gpu::relative(&wide(&moved), &wide(&adapter)), ADAPTER)?;
    }
    Ok(())
}

pub fn recompute(gpu: &Gpu) -> Result<(), Failed> {
    for folder in ["dense", "big"] {
        let g = Golden::read(&Path::new("tests/golden").join(folder));
        let model = Model::load(gpu, &g.base, 128).expect("the model fits");
        let samples = [g.first.clone(), g.second.clone(), g.first.clone()];
        let step = Step::new(&samples, &[vec![0], vec![1, 2]]);
        let run = |recompute| {
            let trainer = trainer(gpu, &model, &g.adapter, &[&step], Dropout::NONE, recompute);
            (trainer.plan().clone(), gradient_bits(&trainer, &step, 1))
        };
        let (plan, kept) = run(Recompute::Never);
        // Logits in CUDA take rows of other numbers, and round differently: a plan without room for them has its own reference.
        let mut references = BTreeMap::from([(plan.head_rows, kept)]);
        let everything =
            plan.bytes.iter().find(|(what, _)| *what == "activations, kept").map_or(0, |(_, b)| *b);
        let rooms = (0..4).map(|quarters| Recompute::Keep(everything * quarters / 4));
        let mut levels = BTreeSet::new();
        for recompute in rooms.chain([Recompute::Keep(everything - 1), Recompute::Always]) {
            let (plan, again) = run(recompute);
            let same = *references.entry(plan.head_rows).or_insert_with(|| again.clone()) == again;
            check_that(&format!("{folder}, {recompute:?}: the same gradients"), same)?;
            levels.extend(plan.kept);
        }
        let products = levels.contains(&Kept::Products);
        check_that(
            &format!("{folder}: layers keep more and less, {levels:?}"),
            levels.len() >= 4 && products,
        )?;
    }
    Ok(())
}
