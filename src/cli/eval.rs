//! Loss, perplexity and token accuracy of the base, and of base and adapter beside it.

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

use super::session::Session;
use super::show;

/// What to evaluate, and on what.
#[derive(Args)]
pub struct EvalArgs {
    /// An adapter of any format; several are added up, as in --adapter A=0.7 --adapter B=0.3. Without one the base
    /// alone is evaluated.
    #[arg(long, value_name = "PATH[=WEIGHT]")]
    adapter: Vec<AdapterPath>,
    /// Samples of a file instead of the recipe's validation samples; may be given several times.
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl EvalArgs {
    /// Whether the recipe's own files are read.
    pub fn reads_recipe_data(&self) -> bool {
        self.data.is_empty()
    }
}

/// Evaluates the base, and base and adapter where one is given.
pub fn run(recipe: &Recipe, args: &EvalArgs) -> Result<()> {
    let frozen = OpenBase::open(recipe)?;
    let data = match (&args.data[..], &recipe.data.valid[..]) {
        ([], []) => Data::read(recipe, &frozen)?,
        ([], valid) => Data::read_validation(recipe, &frozen, valid)?,
        (data, _) => Data::read_validation(recipe, &frozen, data)?,
    };
    if data.validation.is_empty() {
        bail!(
            "there are no validation samples: data.valid is not set and data.val_size is 0; set one of them, or name a file \
             with --data"
        );
    }
    let files = data.validation_files(recipe)?;
    let config = frozen.base.config();
    let slots = run::slots(recipe, config)?;
    let (adapter, mut notices) = match &args.adapter[..] {
        [] => (Adapter::init(&slots, recipe.lora.rank, recipe.lora.alpha, recipe.lora.rslora, 0), vec![]),
        paths => {
            let allow = recipe.lora.allow_other_base.into();
            let loaded = adapter::load(paths, &frozen.base, Some(&slots), allow)?;
            (loaded.adapter, loaded.notices)
        }
    };
    notices.extend(data.notices.iter().map(ToString::to_string));
    // Without B an adapter does nothing: the base as it is.
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

    let name = (!args.adapter.is_empty()).then(|| show::adapters(&args.adapter));
    if args.json {
        let results: Vec<Value> = results.iter().map(|r| r.json(&files)).collect();
        show::text(json!({
            "base": frozen.base.name(), "adapter": name, "samples": data.validation.len(), "results": results,
            "notices": notices, "offloaded_layers": model.offloaded(),
        }));
    } else {
        show::device(&gpu);
        show::line("base", frozen.base.name());
        if !model.offloaded().is_empty() {
            show::line("offload", show::offloaded(&trainer.plan().offloaded));
        }
        show::line("adapter", name.as_deref().unwrap_or("none"));
        show::notices(&notices);
        table(&results, &files);
    }
    let lost: usize = results.iter().map(|r| r.total.not_finite).sum();
    if lost > 0 {
        bail!(
            "{lost} tokens overflow: their hidden states or logits are not finite, so that the loss means nothing. The \
             adapter has diverged, or a file is damaged"
        );
    }
    Ok(())
}

/// What one model makes of the samples.
struct Outcome {
    model: &'static str,
    total: LossTotals,
    /// By file.
    parts: Vec<LossTotals>,
}

impl Outcome {
    fn of(trainer: &Trainer, model: &'static str, files: &[ValidationFile]) -> Result<Outcome> {
        let (mut total, mut parts) = (LossTotals::default(), Vec::new());
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

/// One line a file and one for all, base and adapter side by side.
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
            format!("{} of {}", show::count(scores[0].tokens, "token"), show::count(samples, "sample"));
        let text = format!("{name}loss {loss}, perplexity {perplexity}, accuracy {accuracy} over {over}");
        show::line("validation", text);
    }
}
