//! `eval`: loss, perplexity and token accuracy of the base, and of the base with an adapter.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::adapter::{self, AdapterPath};
use rullama_train::data::dataset::What;
use rullama_train::model::plan::Recompute;
use rullama_train::recipe::{Metric, Recipe};
use rullama_train::run::answers::Room;
use rullama_train::run::metrics::Scores;
use rullama_train::run::{self, Compared, Data, OpenBase, RunError, ValidationFile, answers};
use rullama_train::train::objective::{Preference, Tally};
use rullama_train::train::{Capacity, LossTotals, Trainer};
use serde_json::{Value, json};

use super::eval_teacher::{self, Taught};
use super::setup::session::Session;
use super::{bus_error, output};

/// Options of `eval`.
#[derive(Args)]
pub struct EvalArgs {
    /// Adapter in any export format; repeat to add up several, as in --adapter A=0.7 --adapter B=0.3 [default: evaluate the base
    /// alone].
    #[arg(long, value_name = "PATH[=WEIGHT]")]
    adapter: Vec<AdapterPath>,
    /// File with samples to use instead of the recipe's validation samples; may be repeated.
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl EvalArgs {
    /// Whether the recipe's data files are needed.
    pub fn reads_recipe_data(&self) -> bool {
        self.data.is_empty()
    }
}

/// Evaluates the base, and the base with the adapter if there is one.
pub fn run(recipe: &Recipe, args: &EvalArgs) -> Result<()> {
    if recipe.grpo.is_some() {
        bail!(
            "eval computes losses of samples, and the prompts of train.objective = \"grpo\" have none; training reports eval_reward, and \
             `rullama-train generate` completes prompts"
        );
    }
    output::progress::silence(args.json);
    super::pull::base(&recipe.model.base)?;
    let frozen = OpenBase::open(recipe)?;
    bus_error::name(frozen.base.gguf().file());
    let (recipe, data) = run::fitted(recipe, &frozen, |recipe| validation_data(recipe, args, &frozen))?;
    let recipe = &recipe;
    let files = data.validation_files(recipe)?;
    let (adapter, mut notices) = adapter(recipe, args, &frozen)?;
    // The number of training samples does not matter here.
    let of_data = data.notices.iter().filter(|notice| !matches!(notice.what, What::Few(_)));
    notices.extend(of_data.map(ToString::to_string));
    // With B = 0 the adapter has no effect.
    let mut without = adapter.clone();
    without.pairs.values_mut().for_each(|pair| pair.b.fill(0.0));

    let gpu = Session::device(recipe)?;
    let mut capacity = Capacity::LEAST;
    files.iter().for_each(|file| file.include(&mut capacity));
    let (questions, notice) = answers::questions(recipe, &frozen, &data)?;
    notices.extend(notice.map(|notice| notice.to_string()));
    capacity.reply = answers::with_answer(recipe, &questions);
    capacity.sequences = answers::together(&[questions.len()], capacity.reply);
    let positions = recipe.data.row().max(capacity.reply);
    let (taught, of_teacher) =
        eval_teacher::learn(recipe, &frozen, &gpu, &files, &data, &mut capacity)?.unzip();
    notices.extend(of_teacher.into_iter().flatten());
    let bar = output::spinner("loading the base");
    let model = block_on(run::load(&gpu, &frozen.base, recipe, &without, capacity, positions, |_| ()))?;
    bar.finish_and_clear();
    let objective = run::objective(recipe);
    let trainer = |adapter: &Adapter| {
        let trainer = Trainer::new(&gpu, &model, adapter, capacity, run::dropout(recipe), Recompute::Always);
        anyhow::Ok(trainer?.with_objective(objective))
    };
    if objective.preference().is_some_and(Preference::needs_reference) {
        let initial = run::initial_adapter(recipe, &frozen.base)?.adapter;
        block_on(run::reference::refer_files(&files, &data.validation, &trainer(&initial)?))?;
    }
    let mut trainer = trainer(&without)?;
    let room = Room { gpu: &gpu, model: &model, sequences: trainer.plan().sequences };
    let metrics = |adapter: &Adapter| -> Result<BTreeMap<Metric, f64>> {
        let prompts: Vec<&[u32]> = questions.iter().map(|question| &question.prompt[..]).collect();
        let bar = output::Progress::new("answers", prompts.len());
        let longest = recipe.eval.max_new_tokens;
        let go_on = |done| {
            bar.set_position(done);
            anyhow::Ok(true)
        };
        let all = (&prompts[..], prompts.len());
        let answers = block_on(answers::generate(room, &frozen, adapter, all, longest, go_on))?;
        bar.finish_and_clear();
        Ok(answers::scores(&recipe.eval, &questions, &answers.unwrap_or_default()))
    };
    let mut results =
        vec![Outcome { metrics: metrics(&without)?, ..Outcome::of(&trainer, "base", &files, &data)? }];
    if !args.adapter.is_empty() {
        trainer.set_adapter(&adapter);
        results.push(Outcome {
            metrics: metrics(&adapter)?,
            ..Outcome::of(&trainer, "adapter", &files, &data)?
        });
    }

    let name = (!args.adapter.is_empty()).then(|| output::adapters(&args.adapter));
    if args.json {
        let results: Vec<Value> =
            results.iter().map(|r| r.json(&files)).chain(taught.iter().map(Taught::json)).collect();
        output::text(json!({
            "base": frozen.base.name(), "adapter": name, "samples": data.validation.len(), "results": results,
            "notices": notices, "offloaded_layers": model.on_host().of_layers(),
        }));
    } else {
        output::device(&gpu);
        output::line("base", frozen.base.name());
        if let Some(text) = output::offloaded(&trainer.plan().offloaded) {
            output::line("offload", text);
        }
        output::line("adapter", name.as_deref().unwrap_or("none"));
        output::notices(&notices);
        table(&results, &files, !args.data.is_empty());
        comparisons(&results);
        if let Some(taught) = &taught {
            taught.print(&results.iter().map(|result| &result.compared).collect::<Vec<_>>());
        }
        if !recipe.eval.metrics.is_empty() {
            answers_line(&results, questions.len());
        }
    }
    check_finite(&results)
}

/// The samples of `--data`, or the recipe's validation samples. An error if there are none.
fn validation_data(recipe: &Recipe, args: &EvalArgs, frozen: &OpenBase) -> Result<Data, RunError> {
    let data = match (&args.data[..], &recipe.data.valid[..]) {
        ([], []) => Data::read(recipe, frozen)?,
        ([], valid) => Data::read_validation(recipe, frozen, valid)?,
        (data, _) => Data::read_validation(recipe, frozen, data)?,
    };
    if data.validation.is_empty() {
        return Err(RunError::Conflict(
            "there are no validation samples: data.valid is not set and data.val_size is 0; set one of them, or use --data FILE"
                .into(),
        ));
    }
    Ok(data)
}

/// The sum of the adapters, and notices about them. Without adapters, one that has no effect.
fn adapter(recipe: &Recipe, args: &EvalArgs, frozen: &OpenBase) -> Result<(Adapter, Vec<String>)> {
    let slots = run::slots(recipe, frozen.base.config())?;
    if args.adapter.is_empty() {
        return Ok((run::fresh(recipe, &slots), Vec::new()));
    }
    let allow = recipe.lora.allow_other_base.into();
    let loaded = adapter::load(&args.adapter, &frozen.base, Some(&slots), allow)?;
    Ok((loaded.adapter, loaded.notices))
}

fn check_finite(results: &[Outcome]) -> Result<()> {
    let not_finite: usize = results.iter().map(|r| r.not_finite).sum();
    if not_finite > 0 {
        bail!(
            "the hidden states or logits of {not_finite} tokens are not finite, so the loss is meaningless: the adapter has \
             diverged, or a file is damaged"
        );
    }
    Ok(())
}

/// Scores of one model.
struct Outcome {
    model: &'static str,
    total: Scores,
    /// Tokens whose hidden states or logits are not finite.
    not_finite: usize,
    /// Scores per file, with their tokens that are not finite.
    parts: Vec<(Scores, usize)>,
    /// Measurements of the comparisons, for objectives that compare samples.
    compared: BTreeMap<String, f64>,
    /// The recipe's metrics of generated answers.
    metrics: BTreeMap<Metric, f64>,
}

impl Outcome {
    fn of(trainer: &Trainer, model: &'static str, files: &[ValidationFile], data: &Data) -> Result<Outcome> {
        let (mut total, mut compared) = (LossTotals::default(), Compared::default());
        let (mut parts, mut first) = (Vec::new(), 0);
        let _bar = output::spinner(format!("evaluating the {model}"));
        for file in files {
            let step = file.step(&data.validation, first)?;
            first += file.count;
            let comparison = step.comparison.unwrap_or_default();
            let mut tally = Tally::new(block_on(trainer.moved(&comparison))?);
            let (mut part, mut scores) = (LossTotals::default(), Vec::new());
            for batch in &step.micro_batches {
                let (own_scores, own) = block_on(trainer.validate(batch))?;
                scores.extend(own_scores);
                part += own;
            }
            total += part;
            let objective = &file.comparing.objective;
            if let Some(preference) = objective.preference() {
                tally.add(preference, &scores, &comparison.samples);
            }
            let scores = compared.add(objective, &tally, &comparison, part);
            parts.push((scores, part.not_finite));
        }
        let not_finite = total.not_finite;
        let (total, compared) = (compared.scores(total), compared.metrics());
        Ok(Outcome { model, total, not_finite, parts, compared, metrics: BTreeMap::new() })
    }

    fn json(&self, files: &[ValidationFile]) -> Value {
        let scores = |scores: &Scores, not_finite: usize| {
            let mut object = serde_json::to_value(scores).expect("plain values under text keys");
            object["not_finite"] = not_finite.into();
            object
        };
        let part = |(file, (of_file, not_finite)): (&ValidationFile, &(Scores, usize))| {
            let mut object = scores(of_file, *not_finite);
            object["source"] = file.name.as_str().into();
            object["samples"] = file.samples.into();
            object
        };
        let mut object = scores(&self.total, self.not_finite);
        object["model"] = self.model.into();
        self.compared.iter().for_each(|(name, value)| object[name] = (*value).into());
        if !self.metrics.is_empty() {
            object["metrics"] = serde_json::to_value(&self.metrics).expect("numbers under names");
        }
        object["sources"] = files.iter().zip(&self.parts).map(part).collect();
        object
    }
}

/// Prints the comparisons of each model, if there are any.
fn comparisons(results: &[Outcome]) {
    let taught = |result: &Outcome| result.compared.contains_key("eval_distillation_loss");
    let compares = |result: &&Outcome| !result.compared.is_empty() && !taught(result);
    for result in results.iter().filter(compares) {
        output::line("pairs", format!("{}: {}", result.model, output::preference(&result.compared)));
    }
}

/// Prints the metrics of generated answers, as `base → adapter`.
fn answers_line(results: &[Outcome], answers: usize) {
    let change = |metric: &Metric| {
        let each = results.iter().filter_map(|r| Some(metric.text(*r.metrics.get(metric)?)));
        format!("{} {}", metric.title(), each.collect::<Vec<_>>().join(" → "))
    };
    let changes = results[0].metrics.keys().map(change).collect::<Vec<_>>().join(", ");
    output::line("answers", format!("{changes} over {}", output::count(answers, "generated answer")));
}

/// Prints one line per file and one for all files, as `base → adapter`. `named`: the files were named on the command line, so
/// that even a single one has its name in its line.
fn table(results: &[Outcome], files: &[ValidationFile], named: bool) {
    let mut rows: Vec<(String, usize, Vec<&Scores>)> = Vec::new();
    if files.len() > 1 {
        for (i, file) in files.iter().enumerate() {
            rows.push((file.name.clone(), file.samples, results.iter().map(|r| &r.parts[i].0).collect()));
        }
    }
    let samples = files.iter().map(|s| s.samples).sum();
    let all = if files.len() == 1 { files[0].name.clone() } else { "all".into() };
    rows.push((all, samples, results.iter().map(|r| &r.total).collect()));
    let width = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    for (name, samples, scores) in rows {
        let name = if named || files.len() > 1 { format!("{name:<width$}  ") } else { String::new() };
        let arrow =
            |of: &dyn Fn(&Scores) -> String| scores.iter().map(|e| of(e)).collect::<Vec<_>>().join(" → ");
        let loss = arrow(&|e| format!("{:.4}", e.eval_loss));
        let perplexity = arrow(&|e| format!("{:.2}", e.eval_perplexity));
        let accuracy = arrow(&|e| format!("{:.1} %", 100.0 * e.eval_accuracy));
        let over = format!(
            "{} of {}",
            output::count(scores[0].eval_tokens, "token"),
            output::count(samples, "sample")
        );
        let text = format!("{name}loss {loss}, perplexity {perplexity}, accuracy {accuracy} over {over}");
        output::line(if named { "eval" } else { "validation" }, text);
    }
}
