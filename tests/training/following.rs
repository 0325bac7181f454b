//! Steps that begin before the results of the step before them are there give the bytes of steps that do not.

use std::path::Path;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::data::batch::Step;
use rullama_train::gpu::Gpu;
use rullama_train::model::Model;
use rullama_train::model::plan::Recompute;
use rullama_train::train::{Dropout, TrainError, Trainer};

use super::golden::Golden;
use super::limits::ADAMW;
use super::{bits, check_that, trainer};

const DROPOUT: Dropout = Dropout { probability: 0.3, seed: 42 };
const RATE: f64 = 1e-2;

/// Whatever happens between two steps, before the second.
type Between<'b> = &'b dyn Fn(&Trainer, usize) -> Result<(), Failed>;
/// The step that is announced before a step, and whether it follows at once.
type Announced<'a> = &'a dyn Fn(usize) -> Option<(usize, bool)>;

pub fn same_bits(gpu: &Gpu) -> Result<(), Failed> {
    let g = Golden::read(Path::new("tests/golden/dense"));
    let model = Model::load(gpu, &g.base, 128)?;
    let samples = [g.first.clone(), g.second.clone(), g.first.clone()];
    // Packed rows of other lengths, and several micro-batches in a step.
    let plans: [&[Vec<usize>]; 5] =
        [&[vec![0], vec![1, 2]], &[vec![1, 0]], &[vec![1], vec![0], vec![2, 1]], &[vec![2]], &[vec![2]]];
    let steps = plans.map(|plan| Step::new(&samples, plan));
    // Also other than it takes.
    let run = |announced: Announced, between: Between| -> Result<_, Failed> {
        let all: Vec<&Step> = steps.iter().collect();
        let trainer = trainer(gpu, &model, &g.adapter, &all, DROPOUT, Recompute::Never);
        let mut losses = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            between(&trainer, index)?;
            if let Some((next, at_once)) = announced(index).filter(|(next, _)| *next < steps.len()) {
                trainer.announce(&steps[next], at_once);
            }
            let report = block_on(trainer.step(step, index as u64 + 1, &ADAMW, RATE))?;
            losses.push((report.loss.to_bits(), report.grad_norm.to_bits()));
        }
        Ok((losses, bits(&block_on(trainer.adapter())?)))
    };
    let nothing: Between = &|_, _| Ok(());
    let expected = run(&|_| None, nothing)?;
    let evaluated: Between = &|trainer, _| {
        block_on(trainer.evaluate(&steps[2].micro_batches, |_| ()))?;
        Ok(())
    };
    let restored: Between = &|trainer, index| {
        let state = block_on(trainer.snapshot())?;
        if index == 2 {
            trainer.restore(&state);
        }
        Ok(())
    };
    let refused: Between = &|trainer, _| match block_on(trainer.step(&Step::default(), 9, &ADAMW, RATE)) {
        Err(TrainError::NoLoss { .. }) => Ok(()),
        other => Err(format!("a step without loss gave {other:?}").into()),
    };
    let next = |index: usize| Some((index + 1, true));
    let cases: [(&str, Announced, Between); 7] = [
        ("uploaded ahead", &|index| Some((index + 1, false)), nothing),
        ("begun", &next, nothing),
        ("begun with an evaluation between", &next, evaluated),
        ("begun with a snapshot between", &next, restored),
        ("begun with a refused step between", &next, refused),
        ("another one begun", &|index| Some((index + 2, true)), nothing),
        ("itself begun", &|index| Some((index, true)), nothing),
    ];
    for (what, announced, between) in cases {
        check_that(&format!("{what}: the same bits"), run(announced, between)? == expected)?;
    }
    Ok(())
}
