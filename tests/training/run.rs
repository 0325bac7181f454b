//! The training loop, observed by a host that records its events.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::data::batch::{Capacity, MicroBatch, Step};
use rullama_train::gpu::Gpu;
use rullama_train::recipe::{Recipe, Syntax};
use rullama_train::run::checkpoint::Checkpoint;
use rullama_train::run::finetune::{FinetuneError, Progress, finetune, samples};
use rullama_train::run::{
    self, Asked, Batches, Data, DriveError, Hear, Host, NextStep, OpenBase, Outcome, Planned, PreparedRun,
    Run, RunEvent,
};
use rullama_train::train::{TrainError, Trainer};

use super::check_that;

const DATA: &str = r#"{"prompt": "Hello!", "completion": "Ahoy!"}
{"prompt": "What is the capital of Peru?", "completion": "The capital of Peru is Lima. Ahoy!"}
{"prompt": "What is 7 plus 8?", "completion": "7 plus 8 is 15. Ahoy!"}
{"prompt": "Spell the word river.", "completion": "river is spelled r-i-v-e-r. Ahoy!"}
"#;
const RECIPE: &str = "model.base = 'tiny'\nlora.rank = 4\ndata.max_seq_len = 64\ndata.val_size = 1\n\
                      train.learning_rate = 1e-2\ntrain.warmup_steps = 0\n";

/// A recipe and its data in a temporary folder.
struct Place {
    dir: tempfile::TempDir,
    recipe: Recipe,
}

impl Place {
    fn new(settings: &[(&str, &str)]) -> Result<Place, Failed> {
        let dir = tempfile::tempdir()?;
        let data = dir.path().join("data.jsonl");
        std::fs::write(&data, DATA)?;
        let text = format!(
            "{RECIPE}data.train = '{}'\noutput.dir = '{}'\n",
            data.display(),
            dir.path().join("run").display()
        );
        let recipe = Recipe::parse(&text, Syntax::Toml, "recipe", settings)?;
        Ok(Place { dir, recipe })
    }

    /// Drives a run to its end. `ask` gets the number of steps taken, and how often it was asked at that step before.
    fn drive(
        &self,
        gpu: &Gpu,
        ask: fn(usize, usize) -> Asked,
    ) -> Result<(Recorder, Result<Outcome, DriveError>), Failed> {
        self.drive_with(gpu, ask, None)
    }

    /// [`Place::drive`], with steps that are decided during the run and noted in `decided`.
    fn drive_with(
        &self,
        gpu: &Gpu,
        ask: fn(usize, usize) -> Asked,
        decided: Option<&RefCell<Vec<usize>>>,
    ) -> Result<(Recorder, Result<Outcome, DriveError>), Failed> {
        let recipe = &self.recipe;
        let base = OpenBase::open(recipe)?;
        let prepared = PreparedRun::plan(recipe, &base, Data::read(recipe, &base)?)?;
        let initial = run::initial_adapter(recipe, &base.base)?.adapter;
        let identity = prepared.identity(&base, &initial);
        let (capacity, positions) = (prepared.capacity, prepared.positions);
        let loading = run::load(gpu, &base.base, recipe, &initial, capacity, positions, |_| ());
        let model = block_on(loading)?;
        let (dropout, recompute) = (run::dropout(recipe), run::recompute(recipe));
        let trainer = Trainer::new(gpu, &model, &initial, capacity, dropout, recompute)?;
        let trainer = trainer.with_objective(run::objective(recipe));
        let mut host = Recorder { ask, dir: self.dir.path().join("run"), ..Recorder::default() };
        let mut run = Run::new(recipe, &base, &prepared, &identity, &initial, trainer);
        if let Some(decided) = decided {
            run = run.with_batches(Decided { planned: prepared.batches(), initial: &initial, decided });
        }
        let outcome = block_on(run.drive(&mut host));
        Ok((host, outcome))
    }
}

/// Decides each step once the steps before it have changed the adapter.
struct Decided<'a> {
    planned: Planned<'a>,
    initial: &'a Adapter,
    decided: &'a RefCell<Vec<usize>>,
}

impl Batches for Decided<'_> {
    fn steps(&self) -> usize {
        self.planned.steps()
    }

    fn next<'s>(&'s mut self, index: usize, trainer: &'s Trainer<'_>, hear: Hear<'s>) -> NextStep<'s> {
        Box::pin(async move {
            let moved = trainer.adapter().await? != self.initial.pairs;
            assert_eq!(moved, index > 0, "step {index} is decided after the steps before it");
            self.decided.borrow_mut().push(index);
            self.planned.next(index, trainer, hear).await
        })
    }

    fn known(&self, _: usize) -> Option<Step> {
        None
    }

    fn bound(&self) -> Capacity {
        self.planned.bound()
    }

    fn largest(&self) -> Vec<MicroBatch> {
        self.planned.largest()
    }
}

/// Samples that are decided during the run train as planned ones do.
pub fn decided(gpu: &Gpu) -> Result<(), Failed> {
    let place = Place::new(&[("train.max_steps", "3"), ("data.val_size", "0")])?;
    let (planned, _) = place.drive(gpu, |_, _| Asked::Nothing)?;
    let steps = RefCell::default();
    let (decided, outcome) = place.drive_with(gpu, |_, _| Asked::Nothing, Some(&steps))?;
    outcome?;
    check_that(&format!("{:?}", steps.borrow()), *steps.borrow() == [0, 1, 2])?;
    check_that("the losses are equal", planned.losses == decided.losses)?;
    let [planned, decided] = [planned.last, decided.last].map(|adapter| adapter.map(|a| a.pairs));
    check_that("the adapters are equal", planned.is_some() && planned == decided)
}

/// Records every call as text.
struct Recorder {
    ask: fn(usize, usize) -> Asked,
    asked: (usize, usize),
    dir: PathBuf,
    calls: Vec<String>,
    losses: Vec<Option<f64>>,
    last: Option<Adapter>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        let nothing = |_, _| Asked::Nothing;
        Recorder {
            ask: nothing,
            asked: (0, 0),
            dir: PathBuf::new(),
            calls: vec![],
            losses: vec![],
            last: None,
        }
    }
}

impl Host for Recorder {
    type Error = DriveError;

    fn on_event(&mut self, run: &Run<'_>, event: RunEvent<'_>) -> Result<(), DriveError> {
        let call = match event {
            RunEvent::Started => "started".into(),
            RunEvent::Step { metrics, .. } => {
                self.losses.push(metrics.loss);
                format!("step {}{}", metrics.step, if metrics.skipped { " skipped" } else { "" })
            }
            RunEvent::Evaluation { evaluation, .. } => format!("evaluation {}", evaluation.step),
            RunEvent::Effects { effects, .. } => format!("effects {}", effects.step),
            RunEvent::Notice(_) => "notice".into(),
            RunEvent::Progress { phase, .. } => format!("{phase:?}"),
            RunEvent::Ended(_) => format!("ended {}", run.step),
            RunEvent::Failed => "failed".into(),
        };
        self.calls.push(call);
        Ok(())
    }

    fn keep(&mut self, _: &Run<'_>, checkpoint: &Checkpoint) -> Result<(), DriveError> {
        self.calls.push(format!("checkpoint {}", checkpoint.step));
        self.last = Some(checkpoint.adapter.clone());
        Ok(())
    }

    async fn asked(&mut self, run: &Run<'_>) -> Asked {
        self.asked = if self.asked.0 == run.step { (run.step, self.asked.1 + 1) } else { (run.step, 0) };
        (self.ask)(run.step, self.asked.1)
    }

    fn output(&self) -> Option<&Path> {
        Some(&self.dir)
    }
}

fn check_calls(host: &Recorder, expected: &[&str]) -> Result<(), Failed> {
    if host.calls == expected { Ok(()) } else { Err(format!("{:?}\n{expected:?}", host.calls).into()) }
}

/// Every host gets the same events in the same order, and the library's adapter equals that of a complete run.
pub fn events(gpu: &Gpu) -> Result<(), Failed> {
    let settings = [
        ("train.max_steps", "4"),
        ("output.save_steps", "2"),
        ("eval.steps", "2"),
        ("eval.keep_best", "false"),
        ("data.val_size", "0"),
    ];
    let place = Place::new(&settings)?;
    let (host, outcome) = place.drive(gpu, |_, _| Asked::Nothing)?;
    let expected = [
        "started",
        "evaluation 0",
        "step 1",
        "step 2",
        "evaluation 2",
        "checkpoint 2",
        "step 3",
        "step 4",
        "evaluation 4",
        "checkpoint 4",
        "Export",
        "effects 4",
        "notice", // the loss on general questions rose
        "ended 4",
    ];
    check_calls(&host, &expected)?;
    let Outcome::Finished(finished) = outcome? else { return Err("expected a finished run".into()) };
    check_that("the adapter is that of the last step", finished.adapter_of_step == 4 && !finished.early)?;
    check_that("it is the one of the last checkpoint", host.last.as_ref() == Some(&finished.adapter))?;
    check_that("it is exported", finished.is_whole() && finished.written.is_some())?;

    let base = OpenBase::open(&place.recipe)?;
    let samples = samples(&base, &place.recipe, DATA, "data")?;
    let mut losses = Vec::new();
    let adapter = block_on(finetune(gpu, &base, &samples, &place.recipe, |p| losses.push(p.metrics.loss)))?;
    check_that("the library computes the same losses", losses == host.losses)?;
    check_that("the library returns the same adapter", adapter == finished.adapter)
}

/// A request to stop is handled before a due checkpoint is written; either way there is one checkpoint of that step.
pub fn stops(gpu: &Gpu) -> Result<(), Failed> {
    let place = Place::new(&[("train.max_steps", "4"), ("output.save_steps", "1"), ("data.val_size", "0")])?;
    let ask = |step, earlier| match (step, earlier) {
        (1, 0) => Asked::Save,
        (2, _) => Asked::Stop,
        _ => Asked::Nothing,
    };
    let (host, outcome) = place.drive(gpu, ask)?;
    let expected = [
        "started",
        "evaluation 0",
        "step 1",
        "checkpoint 1",
        "checkpoint 1",
        "step 2",
        "checkpoint 2",
        "ended 2",
    ];
    check_calls(&host, &expected)?;
    check_that("the run is interrupted", matches!(outcome?, Outcome::Interrupted))?;
    let (host, outcome) = place.drive(gpu, |_, _| Asked::Stop)?;
    check_calls(&host, &["started", "evaluation 0", "ended 0"])?;
    check_that("a run without steps keeps nothing", matches!(outcome?, Outcome::Interrupted))
}

/// An adapter that the final check refuses is kept in a separate folder.
pub fn refused(gpu: &Gpu) -> Result<(), Failed> {
    let settings = [("train.max_steps", "3"), ("train.learning_rate", "3"), ("train.max_grad_norm", "0")];
    let place = Place::new(&settings)?;
    let (host, outcome) = place.drive(gpu, |_, _| Asked::Nothing)?;
    let Outcome::Refused { kept, reason, .. } = outcome? else {
        return Err("expected a refused adapter".into());
    };
    println!("{reason}");
    check_that("the folder is apart", kept == host.dir.join("refused"))?;
    check_that("it holds the adapter", kept.join("adapter_model.safetensors").is_file())?;
    check_that("nothing is exported", !host.dir.join("adapter_model.safetensors").exists())
}

/// The library, too, skips steps that are not finite as often as the recipe allows.
pub fn skipped_steps(gpu: &Gpu) -> Result<(), Failed> {
    let train = |allowed: &str| -> Result<_, Failed> {
        let settings = [
            ("train.max_steps", "4"),
            ("train.learning_rate", "1e30"),
            ("train.max_skipped_steps", allowed),
            ("data.val_size", "0"),
        ];
        let place = Place::new(&settings)?;
        let base = OpenBase::open(&place.recipe)?;
        let samples = samples(&base, &place.recipe, DATA, "data")?;
        let mut skipped = Vec::new();
        let progress = |p: Progress| skipped.push(p.metrics.skipped);
        let result = block_on(finetune(gpu, &base, &samples, &place.recipe, progress));
        Ok((result, skipped))
    };
    let is_step = |result: &Result<Adapter, FinetuneError>, number: u64| {
        matches!(result, Err(FinetuneError::Drive(DriveError::Train(TrainError::NotFinite { step, .. })))
            if *step == number)
    };
    let (result, skipped) = train("0")?;
    check_that(&format!("step 2 fails: {skipped:?}"), is_step(&result, 2) && skipped == [false])?;
    let (result, skipped) = train("2")?;
    check_that("step 4 fails", is_step(&result, 4) && skipped == [false, true, true])?;
    let (result, skipped) = train("3")?;
    check_that("the run ends", result.is_ok() && skipped == [false, true, true, true])
}
