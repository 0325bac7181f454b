//! Metrics of generated answers: how well they agree with the reference answers of the samples.

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data::batch::{IGNORE, Sample};
use crate::data::tokenizer::Tokenizer;

/// A metric. Its value for one answer is from 0 to 1, and for several the mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Whether the answer equals the reference, without white space at both ends.
    ExactMatch,
    /// Whether the pattern occurs in the answer.
    Regex,
    /// Whether answer and reference are equal as JSON: the order of keys and white space do not count.
    Json,
    /// ROUGE-L of Lin 2004: F1 of the longest common subsequence of words, as the package rouge-score computes `rougeL` without
    /// stemming. Words are lowercase runs of letters and digits.
    RougeL,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Metric; 4] = [Metric::ExactMatch, Metric::Regex, Metric::Json, Metric::RougeL];

    /// Its name in a recipe and in files.
    pub fn name(self) -> &'static str {
        match self {
            Metric::ExactMatch => "exact_match",
            Metric::Regex => "regex",
            Metric::Json => "json",
            Metric::RougeL => "rouge_l",
        }
    }

    /// Its name in text.
    pub fn title(self) -> &'static str {
        match self {
            Metric::ExactMatch => "exact match",
            Metric::Regex => "regex",
            Metric::Json => "JSON",
            Metric::RougeL => "ROUGE-L",
        }
    }

    /// A value as text: a percentage of the answers, or ROUGE-L as the usual number.
    pub fn text(self, value: f64) -> String {
        match self {
            Metric::RougeL => format!("{value:.3}"),
            _ => format!("{:.1} %", 100.0 * value),
        }
    }

    /// The value for one answer. `pattern`: that of [`Metric::Regex`].
    pub fn score(self, answer: &str, reference: &str, pattern: Option<&Regex>) -> f64 {
        let holds = match self {
            Metric::RougeL => return rouge_l(answer, reference),
            Metric::ExactMatch => answer.trim() == reference.trim(),
            Metric::Regex => pattern.is_some_and(|pattern| pattern.is_match(answer)),
            Metric::Json => json(reference).is_some_and(|reference| json(answer) == Some(reference)),
        };
        f64::from(u8::from(holds))
    }
}

/// Parses JSON between white space.
pub fn json(text: &str) -> Option<Value> {
    serde_json::from_str(text.trim()).ok()
}

/// F1 of the longest common subsequence of words; 0 if one of the texts has no words.
pub fn rouge_l(answer: &str, reference: &str) -> f64 {
    let (answer, reference) = (words(answer), words(reference));
    let common = longest_common(&answer, &reference) as f64;
    if common == 0.0 {
        return 0.0;
    }
    let (precision, recall) = (common / answer.len() as f64, common / reference.len() as f64);
    2.0 * precision * recall / (precision + recall)
}

fn words(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Length of the longest common subsequence, by dynamic programming over one row.
fn longest_common(a: &[String], b: &[String]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for word in a {
        let mut diagonal = 0;
        for (i, other) in b.iter().enumerate() {
            let above = row[i + 1];
            row[i + 1] = if word == other { diagonal + 1 } else { above.max(row[i]) };
            diagonal = above;
        }
    }
    row[b.len()]
}

/// A question of the validation data, and its reference answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The tokens before the answer.
    pub prompt: Vec<u32>,
    /// The text of the answer, with control tokens spelled out as in a reply.
    pub reference: String,
    /// Number of tokens of the answer, with the one that ends it.
    pub tokens: usize,
}

impl Question {
    /// The last answer of a sample: its last run of loss tokens. `None` if nothing is before it, as in plain text.
    pub fn of(sample: &Sample, tokenizer: &Tokenizer) -> Option<Question> {
        let has_loss = |&t: &usize| sample.labels[t] != IGNORE;
        let end = (1..sample.ids.len()).rfind(has_loss)? + 1;
        let start = (1..end).rev().take_while(has_loss).last()?;
        if start == 1 {
            return None;
        }
        let ended = sample.ids[start..end].iter().rposition(|id| !tokenizer.eos().contains(id));
        let answer = &sample.ids[start..start + ended.map_or(0, |last| last + 1)];
        Some(Question {
            prompt: sample.ids[..start].to_vec(),
            reference: tokenizer.decode(answer),
            tokens: end - start,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of rouge-score 0.1.2: `RougeScorer(["rougeL"]).score(reference, answer)["rougeL"].fmeasure`.
    #[test]
    fn rouge_l_is_that_of_rouge_score() {
        let cases = [
            ("the cat sat on the mat", "the cat sat on the mat", 1.0),
            ("The cat, sat!", "the CAT sat on the mat", 2.0 / 3.0),
            ("police kill the gunman", "police killed the gunman", 0.75),
            ("the gunman kill police", "police killed the gunman", 0.5),
            ("a-b-c", "a b c d", 6.0 / 7.0),
            ("", "a", 0.0),
            ("?!", "?!", 0.0),
            ("x", "y", 0.0),
        ];
        for (answer, reference, expected) in cases {
            let found = rouge_l(answer, reference);
            assert!((found - expected).abs() < 1e-12, "{answer:?}, {reference:?}: {found}");
        }
        assert_eq!(rouge_l("Über Öl", "über öl"), 1.0);
    }

    #[test]
    fn the_other_metrics_hold_or_do_not() {
        let pattern = Regex::new(r"^\d+ is").expect("a pattern");
        let score = |metric: Metric, answer, reference| metric.score(answer, reference, Some(&pattern));
        assert_eq!(score(Metric::ExactMatch, " a b\n", "a b"), 1.0);
        assert_eq!(score(Metric::ExactMatch, "A b", "a b"), 0.0);
        assert_eq!(score(Metric::Regex, "15 is more", ""), 1.0);
        assert_eq!(score(Metric::Regex, "it: 15 is more", ""), 0.0);
        assert_eq!(score(Metric::Json, "{\"b\": [1, 2], \"a\": null} ", "{\"a\":null,\"b\":[1,2]}"), 1.0);
        assert_eq!(score(Metric::Json, "[2, 1]", "[1, 2]"), 0.0);
        assert_eq!(score(Metric::Json, "[1, 2", "[1, 2]"), 0.0);
        assert_eq!(score(Metric::Json, "no", "no"), 0.0, "what is no JSON equals nothing");
        assert_eq!(
            Metric::ALL.map(|metric| serde_json::to_value(metric).expect("text")),
            Metric::ALL.map(|m| m.name())
        );
    }
}
