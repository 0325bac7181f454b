//! Loss over the validation data.

use anyhow::{Result, bail};
use pollster::block_on;
use rullama_train::export::{self, AdapterPath};
use rullama_train::lora::Adapter;
use rullama_train::recipe::Recipe;
use rullama_train::run;
use serde_json::json;

use super::session::Session;
use super::show;

/// Evaluates the base, or the base with the sum of the adapters at `paths`.
pub fn run(recipe: &Recipe, paths: &[AdapterPath], as_json: bool) -> Result<()> {
    let session = Session::open(recipe)?;
    if session.validation.is_empty() {
        bail!(
            "there are no validation samples: data.valid is not set and data.val_size is 0; set one of them"
        );
    }
    let config = session.frozen.base.config();
    let slots = run::slots(recipe, config)?;
    let (adapter, notices) = match paths {
        [] => (Adapter::init(&slots, recipe.lora.rank, recipe.lora.alpha, recipe.lora.rslora, 0), vec![]),
        paths => {
            let allow = recipe.lora.allow_other_base.into();
            let loaded = export::load(paths, &session.frozen.base, Some(&slots), allow)?;
            (loaded.adapter, loaded.notices)
        }
    };
    let name = (!paths.is_empty()).then(|| show::adapters(paths));
    let gpu = Session::device(recipe)?;
    let model = session.model(&gpu)?;
    let trainer = session.trainer(recipe, &gpu, &model, &adapter)?;
    let evaluation = block_on(trainer.evaluate(&session.validation, |_| {}))?;
    let (loss, perplexity, tokens) = (evaluation.loss(), evaluation.perplexity(), evaluation.tokens);
    let samples = session.data.validation.len();
    if as_json {
        show::text(json!({
            "loss": loss, "perplexity": perplexity, "tokens": tokens, "samples": samples,
            "base": session.frozen.base.name(), "adapter": name, "notices": notices,
        }));
    } else {
        show::device(&gpu);
        show::line("base", session.frozen.base.name());
        show::line("adapter", name.as_deref().unwrap_or("none"));
        show::notices(&notices);
        let (tokens, samples) = (show::count(tokens, "token"), show::count(samples, "sample"));
        show::line(
            "validation",
            format_args!("loss {loss:.4}, perplexity {perplexity:.2} over {tokens} of {samples}"),
        );
    }
    Ok(())
}
