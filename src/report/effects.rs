//! What the trained adapter changes on the data and on general questions, and the run in words.

use super::Report;
use super::text::{escape, grouped, number, percent};
use crate::run;
use crate::run::metrics::{Effects, Shift};

/// The run in a few sentences; empty before its end.
pub fn verdict(report: &Report) -> String {
    let Some(kept) = report.kept else { return String::new() };
    let sentences = run::verdict(report.history, kept);
    let items: String = sentences.iter().map(|text| format!("<p>{}.</p>", escape(text))).collect();
    format!("<section class=\"card verdict\">{items}</section>\n")
}

/// A figure for each text: name, value, and what it means.
pub fn figures(effects: &Effects) -> Vec<(&'static str, String, String)> {
    let differ = |shift: &Shift| format!("of {} places differ from the base", grouped(shift.places));
    let data = effects.data.iter().map(|data| ("Words changed", percent(data.other_word), differ(data)));
    let general = effects.general.iter().map(|general| {
        let under = format!(
            "loss there, {} of {} places differ",
            percent(general.other_word),
            grouped(general.places)
        );
        ("General questions", signed(general.loss_change), under)
    });
    data.chain(general).collect()
}

/// Both texts side by side; empty if only one was measured.
pub fn table(effects: Option<&Effects>) -> String {
    let Some(Effects { data: Some(data), general: Some(general), .. }) = effects else {
        return String::new();
    };
    let row = |name: &str, shift: &Shift| {
        format!(
            "<tr><td>{name} ({})</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&shift.on),
            grouped(shift.places),
            percent(shift.other_word),
            signed(shift.loss_change),
            number(shift.kl),
        )
    };
    format!(
        "<h2>Your data and general questions</h2>\n<div class=\"card scroll\"><table><tr><th>text<th>places<th>another word than the \
         base<th>change of the loss<th>KL divergence</tr>{}{}</table></div>\n",
        row("your data", data),
        row("general", general),
    )
}

fn signed(change: f64) -> String {
    let sign = if change < 0.0 { "−" } else { "+" };
    format!("{sign}{}", number(change.abs()))
}
