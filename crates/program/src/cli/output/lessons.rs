//! Prints a teacher's choices for a sample, and a model's divergence from the teacher.

use std::collections::BTreeMap;

use rullama_train::data::batch::{Sample, targets};
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::train::TaughtToken;

use super::text;

/// Loss tokens of a sample that are shown.
const TOKENS: usize = 24;
/// Choices of the teacher that are shown for each.
const CHOICES: usize = 4;
/// Characters of a token that are shown.
const WIDTH: usize = 16;

/// Prints the first loss tokens of a sample, each with the teacher's first choices at its place.
pub fn choices(tokenizer: &Tokenizer, teacher: &str, sample: &Sample, lesson: &[TaughtToken]) {
    text(format_args!("\nfirst choices of {teacher} at the loss tokens:\n"));
    let shown = |id: u32| {
        let piece = format!("{:?}", tokenizer.decode(&[id]));
        if piece.chars().count() > WIDTH {
            piece.chars().take(WIDTH - 1).chain(['…']).collect()
        } else {
            piece
        }
    };
    for (label, token) in targets(&sample.labels).zip(lesson).take(TOKENS) {
        let choice = |(id, log): &(u32, f32)| format!("{} {:.1} %", shown(*id), 100.0 * log.exp());
        let choices: Vec<String> = token.row.tokens.iter().take(CHOICES).map(choice).collect();
        text(format_args!("  {:<WIDTH$}  {}", shown(label as u32), choices.join("  ")));
    }
    if lesson.len() > TOKENS {
        text(format_args!("  … {} more", super::grouped(lesson.len() - TOKENS)));
    }
}

/// The distance from the teacher, from metrics under TRL's names: `divergence 0.5123, the teacher's first choice 71.2 %`. `None` where there
/// is no teacher.
pub fn distance(metrics: &BTreeMap<String, f64>) -> Option<String> {
    let divergence = metrics.get("eval_distillation_loss")?;
    let agreement = metrics.get("eval_teacher_agreement").copied().unwrap_or(0.0);
    Some(format!("divergence {divergence:.4}, the teacher's first choice {:.1} %", 100.0 * agreement))
}

/// The distances before and after: `divergence 0.5123 → 0.2011, the teacher's first choice 71.2 % → 83.4 %`.
pub fn change(each: &[&BTreeMap<String, f64>]) -> Option<String> {
    let of = |name: &str, text: &dyn Fn(f64) -> String| {
        let values = each.iter().map(|metrics| metrics.get(name).copied().map(text));
        values.collect::<Option<Vec<String>>>().map(|values| values.join(" → "))
    };
    let divergence = of("eval_distillation_loss", &|x| format!("{x:.4}"))?;
    let agreement = of("eval_teacher_agreement", &|x| format!("{:.1} %", 100.0 * x))?;
    Some(format!("divergence {divergence}, the teacher's first choice {agreement}"))
}
