//! Replies before and after training: to the recipe's prompts, and to general questions.

use std::fmt::Write;

use super::Report;
use super::text::escape;
use crate::run::metrics::{Evaluation, GeneralReply};
use crate::talk::ending::Ending;

/// The section of all replies; empty if there are none.
pub fn html(report: &Report) -> String {
    let last = report.last_evaluation().filter(|e| !e.replies.is_empty());
    let own = last.map_or(String::new(), |last| of_prompts(report, last));
    let general = report.history.effects().map_or(&[][..], |effects| &effects.replies);
    let general: String = general.iter().map(of_question).collect();
    match own.is_empty() && general.is_empty() {
        true => String::new(),
        false => format!("<h2>Replies</h2>\n<div class=replies>{own}{general}</div>\n"),
    }
}

/// Replies to the recipe's prompts, before, during and after training.
fn of_prompts(report: &Report, last: &Evaluation) -> String {
    let mut cards = String::new();
    for (i, after) in last.replies.iter().enumerate() {
        let reply_at = |e: &Evaluation| {
            let own = e.replies.iter().find(|r| r.prompt == after.prompt);
            own.map(|r| text(&r.reply, r.ending))
        };
        let before = report.history.evaluation(0).filter(|_| last.step > 0).and_then(reply_at);
        let before = before.map_or(String::new(), |text| said("", "before training", &text));
        let after_text =
            said("after", &format!("after step {}", last.step), &text(&after.reply, after.ending));
        let others = report.history.evaluations().filter(|e| e.step > 0 && e.step != last.step);
        let between: String = others
            .filter_map(|e| Some(format!("<small>step {}</small><p>{}</p>", e.step, reply_at(e)?)))
            .collect();
        let between = match between.is_empty() {
            true => String::new(),
            false => format!(
                "<details><summary>During training</summary><div class=between>{between}</div></details>"
            ),
        };
        let prompt = escape(&after.prompt);
        let _ = write!(
            cards,
            "<article class=\"card reply\" id=reply{i}><h3>{prompt}</h3><div>{before}{after_text}</div>{between}</article>"
        );
    }
    cards
}

/// The two replies to a general question.
fn of_question(reply: &GeneralReply) -> String {
    let base = said("", "the base alone", &text(&reply.base, reply.base_ending));
    let own = said("after", "with the adapter", &text(&reply.reply, reply.ending));
    let prompt = escape(&reply.prompt);
    format!(
        "<article class=\"card reply\"><h3>{prompt} <span class=note>general</span></h3><div>{base}{own}</div></article>"
    )
}

fn said(class: &str, when: &str, text: &str) -> String {
    format!("<div class=\"said {class}\"><small>{when}</small><p>{text}</p></div>")
}

/// A reply and its fault as HTML.
fn text(reply: &str, ending: Option<Ending>) -> String {
    let fault = ending.map_or(String::new(), |ending| format!(" <span class=fault>{}</span>", ending.text()));
    escape(reply) + &fault
}
