//! Several ranks, as threads that take turns on one device, train to the bytes of one.

use std::rc::Rc;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::gpu::Gpu;
use rullama_train::recipe::{Recipe, Syntax};
use rullama_train::run::checkpoint::Checkpoint;
use rullama_train::run::{self, Data, DriveError, Host, OpenBase, Outcome, PreparedRun, Run, RunEvent};
use rullama_train::train::Trainer;
use rullama_train::train::ranks::link::Link;
use rullama_train::train::ranks::{Ranks, threads};

use super::check_that;

/// Steps of four micro-batches, the last of an epoch with fewer; packed rows, dropout, validation, and keeping the best adapter.
const EVERYTHING: [(&str, &str); 11] = [
    ("eval.general", "false"),
    ("train.epochs", "2"),
    ("train.batch_size", "1"),
    ("train.gradient_accumulation_steps", "4"),
    ("train.shares", "4"),
    ("lora.dropout", "0.1"),
    ("data.packing", "true"),
    ("data.val_size", "3"),
    ("eval.steps", "1"),
    ("eval.keep_best", "true"),
    ("eval.samples", "[\"Hello!\", \"What is 7 plus 8?\", \"Again!\"]"),
];

/// Ratings with the estimate of how far the model has moved, a reference, validation, and steps of packed rows.
const RATED: [(&str, &str); 8] = [
    ("eval.general", "false"),
    ("train.objective", "\"kto\""),
    ("train.max_steps", "2"),
    ("train.batch_size", "2"),
    ("train.gradient_accumulation_steps", "4"),
    ("train.shares", "4"),
    ("data.packing", "true"),
    ("data.val_size", "3"),
];

/// Rewards of completions, a reference, several steps with the same completions, and evaluations.
const REWARDED: [(&str, &str); 13] = [
    ("eval.general", "false"),
    ("train.objective", "\"grpo\""),
    ("train.max_steps", "3"),
    ("train.batch_size", "2"),
    ("train.gradient_accumulation_steps", "4"),
    ("train.shares", "4"),
    ("grpo.num_generations", "4"),
    ("grpo.max_completion_length", "6"),
    ("grpo.num_iterations", "2"),
    ("grpo.beta", "0.1"),
    ("grpo.temperature", "2.0"),
    ("data.val_size", "3"),
    ("eval.steps", "2"),
];

/// Steps that are skipped.
const SKIPPED: [(&str, &str); 7] = [
    ("eval.general", "false"),
    ("train.max_steps", "3"),
    ("train.gradient_accumulation_steps", "4"),
    ("train.shares", "4"),
    ("train.learning_rate", "1e30"),
    ("train.max_skipped_steps", "2"),
    ("data.val_size", "0"),
];

/// The state after the last step, without how long the steps took.
#[derive(Default)]
struct Last {
    end: Option<Checkpoint>,
}

impl Host for Last {
    type Error = DriveError;

    fn on_event(&mut self, run: &Run<'_>, event: RunEvent<'_>) -> Result<(), DriveError> {
        if let RunEvent::Ended(_) = event {
            let end = block_on(run.checkpoint())?;
            self.end = Some(Checkpoint { timing: String::new(), ..end });
        }
        Ok(())
    }
}

fn recipe(settings: &[(&str, &str)], data: &std::path::Path) -> Result<Recipe, Failed> {
    let learns = settings.iter().any(|(_, value)| value.contains("grpo"));
    let is_rated = settings.iter().any(|(_, value)| value.contains("kto"));
    let sample = |i: usize| {
        let words = ["river", "stone", "cloud", "bread"].repeat(3)[..2 + i % 9].join(" ");
        let label = if is_rated { format!(", \"label\": {}", !i.is_multiple_of(3)) } else { String::new() };
        format!("{{\"prompt\": \"Say {i}: {words}.\", \"completion\": \"{words}, {i}. Ahoy!\"{label}}}\n")
    };
    std::fs::write(data, (0..16).map(sample).collect::<String>())?;
    let text = format!(
        "model.base = 'tiny'\nlora.rank = 4\ndata.max_seq_len = 64\ntrain.learning_rate = 1e-2\ntrain.warmup_steps = 0\neval.max_new_tokens = 2\n\
         data.train = '{}'\noutput.dir = '-'\n{}",
        data.display(),
        if learns { "[[rewards]]\nname = 'length'\ntarget_len = 4\n" } else { "" }
    );
    Ok(Recipe::parse(&text, Syntax::Toml, "recipe", settings)?)
}

/// Trains on ranks of these hosts, and returns the state and adapter of each.
fn train(gpu: &Gpu, recipe: &Recipe, hosts: &[usize]) -> Vec<Result<Checkpoint, String>> {
    threads::run(hosts, |link: Box<dyn Link>| rank(gpu, recipe, link).map_err(|error| error.to_string()))
}

fn rank(gpu: &Gpu, recipe: &Recipe, link: Box<dyn Link>) -> Result<Checkpoint, Box<dyn std::error::Error>> {
    let ranks = Rc::new(Ranks::new(link, "here")?);
    let base = OpenBase::open(recipe)?;
    let prepared = PreparedRun::plan(recipe, &base, Data::read(recipe, &base)?)?;
    let initial = run::initial_adapter(recipe, &base.base)?.adapter;
    let identity = prepared.identity(&base, &initial);
    let (capacity, positions) = (prepared.capacity, prepared.positions);
    let model = block_on(run::load(gpu, &base.base, recipe, &initial, capacity, positions, |_| ()))?;
    let (dropout, recompute) = (run::dropout(recipe), run::recompute(recipe));
    let trainer = Trainer::new(gpu, &model, &initial, capacity, dropout, recompute)?;
    let mut trainer = trainer.with_objective(run::objective(recipe));
    trainer.share(&ranks, run::shares(recipe, ranks.size())?)?;
    let mut host = Last::default();
    let outcome =
        block_on(Run::new(recipe, &base, &prepared, &identity, &initial, trainer).drive(&mut host))?;
    match (outcome, host.end) {
        (Outcome::Finished(_), Some(end)) => Ok(end),
        (outcome, _) => Err(format!("{outcome:?}").into()),
    }
}

/// One, two and four ranks, on one host and on several, with the same shares.
pub fn same_bytes(gpu: &Gpu) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    for (name, settings) in
        [("everything", &EVERYTHING[..]), ("rated", &RATED), ("skipped", &SKIPPED), ("rewarded", &REWARDED)]
    {
        let recipe = recipe(settings, &dir.path().join("data.jsonl"))?;
        let one = train(gpu, &recipe, &[0]).remove(0)?;
        check_that("something was learned", one.updates > 0)?;
        let skips = one.metrics.matches("\"skipped\":true").count();
        check_that("steps are skipped where they must be", (skips > 0) == (name == "skipped"))?;
        for hosts in [&[0, 0][..], &[0, 0, 1, 1]] {
            for (rank, end) in train(gpu, &recipe, hosts).into_iter().enumerate() {
                let mut end = end?;
                let what = format!("{name}: rank {rank} of {} has the", hosts.len());
                check_that(
                    &format!("{what} same metrics\n{}\n{}", end.metrics, one.metrics),
                    measured(&end.metrics) == measured(&one.metrics),
                )?;
                end.metrics.clone_from(&one.metrics);
                check_that(&format!("{what} same adapter, moments and best adapter"), end == one)?;
            }
        }
    }
    Ok(())
}

/// One share gives the bytes of a run without shares, and more shares give them but for rounding.
pub fn shares(gpu: &Gpu) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let run = |shares: Option<&'static str>| -> Result<Checkpoint, Failed> {
        let mut settings = vec![
            ("train.max_steps", "2"),
            ("train.gradient_accumulation_steps", "3"),
            ("data.val_size", "0"),
        ];
        settings.extend(shares.map(|shares| ("train.shares", shares)));
        let recipe = recipe(&settings, &dir.path().join("data.jsonl"))?;
        Ok(train(gpu, &recipe, &[0]).remove(0)?)
    };
    let (none, one, three) = (run(None)?, run(Some("1"))?, run(Some("3"))?);
    check_that("one share changes nothing", none.adapter == one.adapter && none.metrics == one.metrics)?;
    let loss = |end: &Checkpoint| -> Result<f64, Failed> {
        let last = end.metrics.lines().rfind(|line| line.contains("\"step\",")).ok_or("no step")?;
        Ok(serde_json::from_str::<serde_json::Value>(last)?["loss"].as_f64().ok_or("no loss")?)
    };
    super::check("three shares, loss of the second step", (loss(&three)? / loss(&one)? - 1.0).abs(), 1e-4)
}

/// A rank that fails ends the others, and processes that do not divide the shares are refused.
pub fn failures(gpu: &Gpu) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let recipe = recipe(&SKIPPED, &dir.path().join("data.jsonl"))?;
    let refused = train(gpu, &recipe, &[0, 0, 0]);
    let expected = "3 processes were started, but the steps of this run have 4 shares (train.shares), which 3 does not divide; start \
                    1, 2 or 4 processes, or start over with other shares";
    // The others may hear of it before they look themselves.
    let refused: Vec<String> = refused.into_iter().filter_map(Result::err).collect();
    check_that(&format!("{refused:?}"), refused.len() == 3 && refused.iter().any(|error| error == expected))?;
    let results = threads::run(&[0, 0], |link: Box<dyn Link>| match link.rank() {
        1 => Err("the disk is gone".to_string()),
        _ => rank(gpu, &recipe, link).map_err(|error| error.to_string()),
    });
    let errors: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    check_that(&format!("{errors:?}"), errors == ["another rank failed", "the disk is gone"])
}

/// The metrics without the effects of the run, which the rank that writes its files measures alone.
fn measured(metrics: &str) -> Vec<&str> {
    metrics
        .lines()
        .filter(|line| {
            !line.starts_with("{\"event\":\"effects\"") && !line.contains("general questions rose")
        })
        .collect()
}
