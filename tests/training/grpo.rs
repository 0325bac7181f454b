//! Learning from rewards: the same bytes wherever a run is stopped, for any number of sequences at once and of ranks; the sampler against
//! the training pass; and rewards that fail.

use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::data::batch::{Capacity, Together};
use rullama_train::gpu::Gpu;
use rullama_train::recipe::{Recipe, Syntax};
use rullama_train::run::checkpoint::Checkpoint;
use rullama_train::run::metrics::line;
use rullama_train::run::{
    self, Asked, Data, DriveError, Host, OpenBase, Outcome, PreparedRun, Run, RunEvent,
};
use rullama_train::train::Trainer;

use super::check_that;

const RECIPE: &str = "model.base = 'tiny'\nlora.rank = 4\ndata.max_seq_len = 64\ndata.val_size = 2\ntrain.objective = 'grpo'\n\
                      train.batch_size = 4\ntrain.gradient_accumulation_steps = 2\ntrain.max_steps = 4\ntrain.learning_rate = 1e-2\n\
                      train.warmup_steps = 0\ngrpo.num_generations = 4\ngrpo.max_completion_length = 12\ngrpo.temperature = 1.5\n\
                      eval.steps = 2\neval.general = false\n";
const REWARDS: &str =
    "[[rewards]]\nname = 'number'\n[[rewards]]\nname = 'length'\ntarget_len = 8\nweight = 0.5\n";

fn recipe(dir: &Path, settings: &[(&str, &str)], rewards: &str) -> Result<Recipe, Failed> {
    let data = dir.join("data.jsonl");
    let sample = |i: usize| {
        let (a, b) = (3 + 7 * i % 20, 2 + 5 * i % 13);
        format!("{{\"prompt\": \"{a} and {b} make how many?\", \"answer\": {}}}\n", a + b)
    };
    std::fs::write(&data, (0..12).map(sample).collect::<String>())?;
    let text =
        format!("{RECIPE}data.train = '{}'\noutput.dir = '{}'\n{rewards}", data.display(), dir.display());
    Ok(Recipe::parse(&text, Syntax::Toml, "recipe", settings)?)
}

/// Keeps what a run tells, and stops it after a number of its calls.
#[derive(Default)]
struct Recorder {
    dir: PathBuf,
    /// Progress events after which the user asks to stop.
    patience: Option<usize>,
    heard: usize,
    lines: Vec<String>,
    last: Option<Checkpoint>,
    ended: Option<Checkpoint>,
}

impl Host for Recorder {
    type Error = DriveError;

    fn on_event(&mut self, run: &Run<'_>, event: RunEvent<'_>) -> Result<(), DriveError> {
        match event {
            RunEvent::Progress { .. } => self.heard += 1,
            RunEvent::Step { lines, .. } => self.lines.extend(lines.iter().map(line)),
            RunEvent::Ended(Outcome::Finished(_)) => {
                let end = block_on(run.checkpoint())?;
                self.ended = Some(Checkpoint { timing: String::new(), ..end });
            }
            _ => {}
        }
        Ok(())
    }

    fn keep(&mut self, _: &Run<'_>, checkpoint: &Checkpoint) -> Result<(), DriveError> {
        self.last = Some(checkpoint.clone());
        Ok(())
    }

    async fn asked(&mut self, _: &Run<'_>) -> Asked {
        if self.is_stopping() { Asked::Stop } else { Asked::Nothing }
    }

    fn is_stopping(&self) -> bool {
        self.patience.is_some_and(|patience| self.heard >= patience)
    }

    fn output(&self) -> Option<&Path> {
        Some(&self.dir)
    }
}

/// Drives a run from `from` on, with room for `sequences` sequences at once.
fn drive(
    gpu: &Gpu,
    recipe: &Recipe,
    (from, patience): (Option<Checkpoint>, Option<usize>),
    sequences: usize,
) -> Result<(Recorder, Result<Outcome, DriveError>), Failed> {
    let base = OpenBase::open(recipe)?;
    let prepared = PreparedRun::plan(recipe, &base, Data::read(recipe, &base)?)?;
    let initial = run::initial_adapter(recipe, &base.base)?.adapter;
    let identity = prepared.identity(&base, &initial);
    let positions = prepared.positions;
    let together = Together { count: sequences, ..prepared.capacity.sequences };
    let capacity = Capacity { sequences: together, ..prepared.capacity };
    let model = block_on(run::load(gpu, &base.base, recipe, &initial, capacity, positions, |_| ()))?;
    let (dropout, recompute) = (run::dropout(recipe), run::recompute(recipe));
    let trainer = Trainer::new(gpu, &model, &initial, capacity, dropout, recompute)?;
    check_that("as many sequences as wanted", trainer.plan().sequences == sequences)?;
    let trainer = trainer.with_objective(run::objective(recipe));
    let mut host = Recorder { dir: recipe.output.dir.clone(), patience, ..Recorder::default() };
    let mut run = Run::new(recipe, &base, &prepared, &identity, &initial, trainer);
    if let Some(from) = from {
        run.resume(from)?;
    }
    let outcome = block_on(run.drive(&mut host));
    Ok((host, outcome))
}

/// A run that is stopped anywhere, and resumed, has the bytes of one that is not; so has one that draws a sequence at a time.
pub fn same_bytes(gpu: &Gpu) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    for settings in [&[][..], &[("grpo.num_iterations", "2"), ("grpo.beta", "0.1"), ("lora.dropout", "0.1")]]
    {
        let recipe = recipe(dir.path(), settings, REWARDS)?;
        let (whole, outcome) = drive(gpu, &recipe, (None, None), 8)?;
        check_that("it ends", matches!(outcome?, Outcome::Finished(_)))?;
        let ended = whole.ended.ok_or("no state at the end")?;
        check_that("completions are told", whole.lines.len() >= 16)?;
        let (single, outcome) = drive(gpu, &recipe, (None, None), 1)?;
        outcome?;
        check_that("the lines of single sequences are the same", single.lines == whole.lines)?;
        check_that("and so is the state", single.ended.as_ref() == Some(&ended))?;
        // Somewhere in an evaluation, in completions, and between.
        for patience in [1, 9, 14, 25, whole.heard / 2, 3 * whole.heard / 4] {
            let (stopped, outcome) = drive(gpu, &recipe, (None, Some(patience)), 8)?;
            check_that(&format!("stopped at {patience}"), matches!(outcome?, Outcome::Interrupted))?;
            let last = stopped.last.map(|last| Checkpoint { timing: String::new(), ..last });
            let steps = last.as_ref().map_or(0, |last| last.step);
            let (resumed, outcome) = drive(gpu, &recipe, (last, None), 8)?;
            outcome?;
            check_that(
                &format!("the state, stopped at {patience} after {steps} steps"),
                resumed.ended.as_ref() == Some(&ended),
            )?;
            let lines = [stopped.lines, resumed.lines].concat();
            check_that(&format!("the lines, stopped at {patience}"), lines == whole.lines)?;
        }
    }
    Ok(())
}

/// The largest difference of the sampler's log-probabilities from those of the training pass.
pub fn one_engine(gpu: &Gpu) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let recipe = recipe(dir.path(), &[("train.max_steps", "3"), ("data.val_size", "0")], REWARDS)?;
    let (host, outcome) = drive(gpu, &recipe, (None, None), 8)?;
    outcome?;
    let metrics = host.ended.ok_or("no state at the end")?.metrics;
    let name = "sampling/sampling_logp_difference/max";
    let found: Vec<f64> = metrics
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()?[name].as_f64())
        .collect();
    check_that("every step measures it", found.len() == 3)?;
    let worst = found.into_iter().fold(0.0, f64::max);
    let limit = if gpu.kernels().half_operands() { 2e-2 } else { 2e-5 };
    println!("{name}: {worst:.1e} of {limit:.0e}");
    check_that(&format!("{name} is {worst}, at most {limit}"), worst <= limit)
}

/// A reward that fails stops the run with its words, and the state before that step is kept.
pub fn failing(gpu: &Gpu) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    // Not a number for each line.
    let other = "[[rewards]]\nname = 'command'\ncommand = ['cat']\n";
    let wrong = recipe(dir.path(), &[("data.val_size", "0")], other)?;
    let (host, outcome) = drive(gpu, &wrong, (None, None), 8)?;
    let error = outcome.err().ok_or("expected an error")?.to_string();
    check_that(&format!("it names the reward: {error}"), error.contains("command"))?;
    check_that("nothing is kept before the first step", host.last.is_none())?;
    let unknown = recipe(dir.path(), &[], "[[rewards]]\nname = 'number'\ncolumn = 'solution'\n")?;
    let base = OpenBase::open(&unknown)?;
    let error = PreparedRun::plan(&unknown, &base, Data::read(&unknown, &base)?).err();
    let error = error.ok_or("expected an error")?.to_string();
    check_that(&format!("it names the column: {error}"), error.contains("solution"))?;
    // After two steps, a reward that fails leaves their checkpoint.
    let sound = recipe(dir.path(), &[("data.val_size", "0"), ("train.max_steps", "2")], REWARDS)?;
    let (host, outcome) = drive(gpu, &sound, (None, None), 8)?;
    outcome?;
    let (host, outcome) = drive(gpu, &wrong, (host.last, None), 8)?;
    check_that("it fails", outcome.is_err())?;
    check_that("the checkpoint is kept", host.last.is_some_and(|last| last.step == 2))
}
