//! Charts, figures and completions of runs that learn from rewards.

use super::chart::{Chart, Series};
use super::text::{escape, grouped, number, percent};
use crate::run::RolloutLine;
use crate::run::metrics::{Evaluation, History};

/// Completions that are shown of the best, and of the worst.
const SHOWN: usize = 3;

/// Reward, lengths, and the part of completions that teach nothing.
pub fn charts(history: &History, last_step: f64) -> Vec<Chart<'static>> {
    let steps = |name: &str| -> Vec<(f64, f64)> {
        history.steps().filter_map(|s| Some((s.step as f64, *s.rewards.get(name)?))).collect()
    };
    let evaluations = |name: &str| -> Vec<(f64, f64)> {
        let found = history.evaluations();
        found.filter_map(|e| Some((e.step as f64, *e.preference.get(name)?))).collect()
    };
    if steps("reward").is_empty() {
        return Vec::new();
    }
    let chart = |title, note, series| Chart::of_run(title, note, series, last_step);
    let both = |name: &str| {
        let held_out = Series::validation(evaluations(&format!("eval_{name}")));
        vec![Series::line("each step", "raw", steps(name)), held_out]
    };
    let equal = vec![
        Series::line("equal rewards", "train", steps("frac_reward_zero_std")),
        Series::line("cut", "plain", steps("completions/clipped_ratio")),
    ];
    vec![
        Chart { class: "wide", ..chart("Reward", "mean of the completions", both("reward")) },
        chart("Length", "tokens of a completion", both("completions/mean_length")),
        Chart { format: percent, ..chart("Completions", "of all", equal) },
    ]
}

/// The reward of the validation prompts: name, value, and the value before.
pub fn figure(first: Option<&Evaluation>, last: &Evaluation) -> Option<(&'static str, String, String)> {
    let from = first.and_then(Evaluation::reward);
    let from = from.map_or(String::new(), |from| format!("from {}", number(from)));
    Some(("Validation reward", number(last.reward()?), from))
}

/// The best and the worst of some completions, best first: up to three of each, and each text once.
pub fn best_and_worst(lines: &[RolloutLine]) -> [Vec<&RolloutLine>; 2] {
    let mut judged: Vec<&RolloutLine> = lines.iter().filter(|line| line.reward.is_some()).collect();
    // Stable: of equal ones, the first.
    judged.sort_by(|a, b| b.reward.unwrap_or_default().total_cmp(&a.reward.unwrap_or_default()));
    judged.dedup_by(|a, b| (&a.prompt, &a.completion) == (&b.prompt, &b.completion));
    let shown = SHOWN.min(judged.len() / 2);
    [judged[..shown].to_vec(), judged[judged.len() - shown..].to_vec()]
}

/// The best and the worst of some completions; empty if there are none.
pub fn html(lines: &[RolloutLine]) -> String {
    let [best, worst] = best_and_worst(lines);
    let Some(step) = best.first().map(|line| line.step) else { return String::new() };
    let of = grouped(lines.len());
    let best: String = best.iter().map(|line| card("after", line)).collect();
    let worst: String = worst.iter().map(|line| card("", line)).collect();
    format!(
        "<h2>Completions of step {step}</h2>\n<p>The best and the worst of {of}.</p>\n<div class=replies>{best}{worst}</div>\n"
    )
}

fn card(class: &str, line: &RolloutLine) -> String {
    let reward = line.reward.map_or_else(String::new, number);
    let each =
        line.rewards.iter().filter_map(|(name, value)| Some(format!("{name} {}", number(value.as_f64()?))));
    let each = each.collect::<Vec<_>>().join(", ");
    format!(
        "<div class=card><b>{}</b><div class=\"said {class}\"><small>reward {reward} ({each})</small><p>{}</p></div></div>",
        escape(&line.prompt_text()),
        escape(&line.completion),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    #[test]
    fn the_best_and_the_worst_are_apart_and_each_text_is_shown_once() {
        let line = |text: &str, reward: Option<f64>| RolloutLine {
            step: 3,
            sample: "line 1".into(),
            prompt: "9 and 20?".into(),
            completion: text.into(),
            tokens: 4,
            finished: true,
            rewards: Map::new(),
            reward,
            advantage: 0.0,
        };
        let lines = [
            line("11", Some(0.0)),
            line("29", Some(1.0)),
            line("29", Some(1.0)),
            line("28", Some(0.5)),
            line("none", None),
        ];
        let texts = |lines: &[RolloutLine]| {
            best_and_worst(lines)
                .map(|all| all.into_iter().map(|line| line.completion.clone()).collect::<Vec<_>>())
        };
        assert_eq!(texts(&lines), [["29"], ["11"]]);
        assert_eq!(texts(&lines[..1]), [[""; 0], [""; 0]], "one is neither");
        let page = html(&lines);
        assert!(
            page.contains("Completions of step 3") && page.contains("The best and the worst of 5."),
            "{page}"
        );
    }
}
