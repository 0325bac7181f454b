//! Adapters: their paths, their effect, and the results of an export.

use rullama_train::adapter::AdapterPath;
use rullama_train::run::metrics::{Effects, Shift};
use rullama_train::verify::{Divergence, Effect, Exported, Fidelity, Written};
use rullama_train::words;
use serde_json::{Value, json};

use super::{count, line};

/// Adapters with their weights: `runs/a=0.7 + runs/b=0.3`.
pub fn adapters(paths: &[AdapterPath]) -> String {
    paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" + ")
}

/// Prints the effect of the adapter, and one line per exported format. `text`: what the logits were compared on. Returns the
/// first failure after printing the rest.
pub fn written(written: Written, text: &str) -> anyhow::Result<()> {
    line("effect", effect(&written.effect, text));
    exported(written)
}

/// Prints one line per exported format. Returns the first failure after printing the rest.
pub fn exported(written: Written) -> anyhow::Result<()> {
    let mut failed = None;
    for (format, result) in written.formats {
        match result {
            Ok(Exported { place, fidelity }) => {
                let found = self::fidelity(&fidelity);
                line("exported", format_args!("{}: {}, reloaded: {found}", place.display(), format.name()));
            }
            Err(error) => drop(failed.get_or_insert(error)),
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Prints what a trained adapter changes on the data and, beside it, on general questions, which took `seconds` to measure.
pub fn effects(effects: &Effects, seconds: Option<f64>) {
    if let Some(data) = &effects.data {
        line("your data", shift(data));
    }
    if let Some(general) = &effects.general {
        let took = seconds.map_or(String::new(), |seconds| format!("; measured in {seconds:.1} s"));
        line("general", shift(general) + &took);
    }
}

/// A change in one line: `changes the most likely token at 43 % of 736 places (…), KL divergence 0.9; lowers the loss there by 1.2`.
fn shift(shift: &Shift) -> String {
    let Shift { on, places, other_word, loss_change, kl } = shift;
    let verb = if *loss_change > 0.0 { "raises" } else { "lowers" };
    let [share, kl, by] = [100.0 * other_word, *kl, loss_change.abs()].map(words::short);
    let places = count(*places, "place");
    format!(
        "changes the most likely token at {share} % of {places} ({on}), KL divergence {kl}; {verb} the loss there by {by}"
    )
}

/// The effect of an adapter on its base: `changes the most likely token at 43 % of 736 places (…)`.
pub fn effect(effect: &Effect, text: &str) -> String {
    let verb = if effect.improvement < 0.0 { "raises" } else { "lowers" };
    let by = words::short(effect.improvement.abs());
    format!(
        "changes the most likely token at {}; {verb} the loss there by {by}",
        places(&effect.divergence, text)
    )
}

/// Fraction of places at which two models choose differently: `0.9 % of 116 places (…), KL divergence 0.0012`.
pub fn places(divergence: &Divergence, text: &str) -> String {
    let share = words::short(100.0 * (1.0 - divergence.top1));
    let places = count(divergence.tokens, "place");
    format!("{share} % of {places} ({text}), KL divergence {}", words::short(divergence.kl))
}

fn fidelity(fidelity: &Fidelity) -> String {
    match fidelity.difference {
        0.0 => "identical logits".into(),
        part => format!("rounding changes the adapter's effect by {} %", words::short(100.0 * part)),
    }
}

/// The raw figures of an effect.
pub fn effect_json(effect: &Effect) -> Value {
    let Divergence { kl, worst_kl, top1, tokens } = effect.divergence;
    json!({
        "kl": kl, "worst_kl": worst_kl, "same_top_token": top1, "loss_lowered_by": effect.improvement, "tokens": tokens,
    })
}
