//! `eval`: loss, perplexity and token accuracy of the base, and of the base with an adapter.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::adapter::{self, AdapterPath};
use rullama_train::data::batch::Step;
use rullama_train::model::plan::Recompute;
use rullama_train::recipe::Recipe;
use rullama_train::run::metrics::Scores;
use rullama_train::run::{self, Data, OpenBase, ValidationFile};
use rullama_train::train::{Capacity, LossTotals, Trainer};
use serde_json::{Value, json};

use super::output;
use super::setup::session::Session;

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
    let frozen = OpenBase::open(recipe)?;
    let data = validation_data(recipe, args, &frozen)?;
    let files = data.validation_files(recipe)?;
    let (adapter, mut notices) = adapter(recipe, args, &frozen)?;
    notices.extend(data.notices.iter().map(ToString::to_string));
    // With B = 0 the adapter has no effect.
    let mut without = adapter.clone();
    without.pairs.values_mut().for_each(|pair| pair.b.fill(0.0));

    let gpu = Session::device(recipe)?;
    let mut capacity = Capacity { tokens: 1, longest: 1, loss_tokens: 1, step_loss_tokens: 1 };
    for batch in files.iter().flat_map(|s| &s.batches) {
        capacity.include(&Step { loss_tokens: batch.loss_rows.len(), micro_batches: vec![batch.clone()] });
    }
    let positions = recipe.data.max_seq_len;
    let model = block_on(run::load(&gpu, &frozen.base, recipe, &without, capacity, positions, |_| ()))?;
    let mut trainer =
        Trainer::new(&gpu, &model, &without, capacity, run::dropout(recipe), Recompute::Always)?;
    let mut results = vec![Outcome::of(&trainer, "base", &files)?];
    if !args.adapter.is_empty() {
        trainer.set_adapter(&adapter);
        results.push(Outcome::of(&trainer, "adapter", &files)?);
    }

    let name = (!args.adapter.is_empty()).then(|| output::adapters(&args.adapter));
    if args.json {
        let results: Vec<Value> = results.iter().map(|r| r.json(&files)).collect();
        output::text(json!({
            "base": frozen.base.name(), "adapter": name, "samples": data.validation.len(), "results": results,
            "notices": notices, "offloaded_layers": model.offloaded(),
        }));
    } else {
        output::device(&gpu);
        output::line("base", frozen.base.name());
        if !model.offloaded().is_empty() {
            output::line("offload", output::offloaded(&trainer.plan().offloaded));
        }
        output::line("adapter", name.as_deref().unwrap_or("none"));
        output::notices(&notices);
        table(&results, &files);
    }
    check_finite(&results)
}

/// The samples of `--data`, or the recipe's validation samples. An error if there are none.
fn validation_data(recipe: &Recipe, args: &EvalArgs, frozen: &OpenBase) -> Result<Data> {
    let data = match (&args.data[..], &recipe.data.valid[..]) {
        ([], []) => Data::read(recipe, frozen)?,
        ([], valid) => Data::read_validation(recipe, frozen, valid)?,
        (data, _) => Data::read_validation(recipe, frozen, data)?,
    };
    if data.validation.is_empty() {
        bail!(
            "there are no validation samples: data.valid is not set and data.val_size is 0; set one of them, or use --data FILE"
        );
    }
    Ok(data)
}

/// The sum of the adapters, and notices about them. Without adapters, one that has no effect.
fn adapter(recipe: &Recipe, args: &EvalArgs, frozen: &OpenBase) -> Result<(Adapter, Vec<String>)> {
    let slots = run::slots(recipe, frozen.base.config())?;
    if args.adapter.is_empty() {
        let lora = &recipe.lora;
        return Ok((Adapter::init(&slots, lora.rank, lora.alpha, lora.rslora, 0), Vec::new()));
    }
    let allow = recipe.lora.allow_other_base.into();
    let loaded = adapter::load(&args.adapter, &frozen.base, Some(&slots), allow)?;
    Ok((loaded.adapter, loaded.notices))
}

fn check_finite(results: &[Outcome]) -> Result<()> {
    let not_finite: usize = results.iter().map(|r| r.total.not_finite).sum();
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
    total: LossTotals,
    /// Scores per file.
    parts: Vec<LossTotals>,
}

impl Outcome {
    fn of(trainer: &Trainer, model: &'static str, files: &[ValidationFile]) -> Result<Outcome> {
        let mut total = LossTotals::default();
        let mut parts = Vec::new();
        for file in files {
            let part = block_on(trainer.evaluate(&file.batches, |_| {}))?;
            total += part;
            parts.push(part);
        }
        Ok(Outcome { model, total, parts })
    }

    fn json(&self, files: &[ValidationFile]) -> Value {
        let scores = |e: &LossTotals| {
            let mut object = serde_json::to_value(Scores::from(*e)).expect("plain values under text keys");
            object["not_finite"] = e.not_finite.into();
            object
        };
        let part = |(file, e): (&ValidationFile, &LossTotals)| {
            let mut object = scores(e);
            object["source"] = file.name.as_str().into();
            object["samples"] = file.samples.into();
            object
        };
        let mut object = scores(&self.total);
        object["model"] = self.model.into();
        object["sources"] = files.iter().zip(&self.parts).map(part).collect();
        object
    }
}

/// Prints one line per file and one for all files, as `base → adapter`.
fn table(results: &[Outcome], files: &[ValidationFile]) {
    let mut rows: Vec<(String, usize, Vec<&LossTotals>)> = Vec::new();
    if files.len() > 1 {
        for (i, file) in files.iter().enumerate() {
            rows.push((file.name.clone(), file.samples, results.iter().map(|r| &r.parts[i]).collect()));
        }
    }
    let samples = files.iter().map(|s| s.samples).sum();
    rows.push(("all".into(), samples, results.iter().map(|r| &r.total).collect()));
    let width = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    for (name, samples, scores) in rows {
        let name = if files.len() > 1 { format!("{name:<width$}  ") } else { String::new() };
        let arrow =
            |of: &dyn Fn(&LossTotals) -> String| scores.iter().map(|e| of(e)).collect::<Vec<_>>().join(" → ");
        let loss = arrow(&|e| format!("{:.4}", e.loss()));
        let perplexity = arrow(&|e| format!("{:.2}", e.perplexity()));
        let accuracy = arrow(&|e| format!("{:.1} %", 100.0 * e.accuracy()));
        let over =
            format!("{} of {}", output::count(scores[0].tokens, "token"), output::count(samples, "sample"));
        let text = format!("{name}loss {loss}, perplexity {perplexity}, accuracy {accuracy} over {over}");
        output::line("validation", text);
    }
}
