//! Rewards of a completion's text: patterns, equality, and the format of thoughts.

use regex::Regex;

use super::columns::texts;
use super::{Completion, Judge, RewardError, Values};
use crate::talk::metrics::Metric;

/// The text after the last `marker`; `None` if the marker is not in the text.
pub(super) fn judged<'a>(text: &'a str, marker: Option<&str>) -> Option<&'a str> {
    match marker {
        None => Some(text),
        Some(marker) => text.rfind(marker).map(|start| &text[start + marker.len()..]),
    }
}

/// 1 or 0.
pub(super) fn value(holds: bool) -> Option<f64> {
    Some(f64::from(u8::from(holds)))
}

/// The reward `regex`.
pub(super) struct Pattern {
    regex: Regex,
    /// Whether the pattern has to match the whole text, without white space at both ends.
    full_match: bool,
    after: Option<String>,
}

impl Pattern {
    pub fn new(
        name: &str,
        pattern: &str,
        full_match: bool,
        after: Option<String>,
    ) -> Result<Pattern, RewardError> {
        let wrong = |error: regex::Error| RewardError::Key {
            reward: name.into(),
            key: "pattern",
            message: error.to_string(),
        };
        let regex = match full_match {
            false => Regex::new(pattern),
            // A line break ends the comment that a verbose pattern may end with.
            true => Regex::new(&format!(r"\A(?:{pattern})\z"))
                .or_else(|_| Regex::new(&format!("\\A(?:{pattern}\n)\\z"))),
        };
        Ok(Pattern { regex: regex.map_err(wrong)?, full_match, after })
    }

    fn holds(&self, text: &str) -> bool {
        let Some(text) = judged(text, self.after.as_deref()) else { return false };
        self.regex.is_match(if self.full_match { text.trim() } else { text })
    }
}

impl Judge for Pattern {
    fn score(&mut self, completions: &[Completion<'_>]) -> Result<Values, RewardError> {
        Ok(completions.iter().map(|completion| value(self.holds(completion.text))).collect())
    }
}

/// The reward `exact_match`.
pub(super) struct Exact {
    pub name: String,
    pub column: String,
    pub after: Option<String>,
}

impl Judge for Exact {
    fn score(&mut self, completions: &[Completion<'_>]) -> Result<Values, RewardError> {
        completions
            .iter()
            .map(|completion| {
                let expected = texts(completion.row, &self.column, &self.name)?;
                if expected.is_empty() {
                    return Ok(None);
                }
                let Some(text) = judged(completion.text, self.after.as_deref()) else { return Ok(Some(0.0)) };
                let scores = expected.iter().map(|expected| Metric::ExactMatch.score(text, expected, None));
                Ok(Some(scores.fold(0.0, f64::max)))
            })
            .collect()
    }
}

/// The reward `think_format`.
pub(super) struct ThinkFormat;

impl Judge for ThinkFormat {
    fn score(&mut self, completions: &[Completion<'_>]) -> Result<Values, RewardError> {
        Ok(completions.iter().map(|completion| value(thinks(completion.text))).collect())
    }
}

/// TRL's pattern `^<think>(?!.*<think>)(.*?)</think>.*$`, where a dot matches line breaks.
fn thinks(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("<think>") else { return false };
    !rest.contains("<think>") && rest.contains("</think>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_searched_or_match_the_whole_text() {
        let cases = [
            (r"\d+", false, None, "it is 42.", true),
            (r"\d+", true, None, "it is 42.", false),
            (r"\d+", true, None, " 42\n", true),
            ("yes|no", true, None, "no", true),
            ("yes|no", true, None, "yes no", false),
            ("a|ab", true, None, "ab", true),
            ("(?i)YES", true, None, "yes", true),
            ("(?x) a b # a comment", true, None, "ab", true),
            ("(?x) a b # a comment", true, None, "abc", false),
            ("^b$", false, None, "a\nb", false),
            ("(?m)^b$", false, None, "a\nb", true),
            ("a.c", false, None, "", false),
            ("", true, None, "  ", true),
            ("5", false, Some("</think>"), "<think>5</think>6", false),
            ("5", false, Some("</think>"), "<think>6</think>5", true),
            ("5", false, Some("</think>"), "5", false),
        ];
        for (pattern, full_match, after, text, expected) in cases {
            let after = after.map(str::to_owned);
            let found = Pattern::new("regex", pattern, full_match, after).expect("a pattern").holds(text);
            assert_eq!(found, expected, "{pattern:?}, {full_match}, {text:?}");
        }
        assert!(Pattern::new("regex", "(", false, None).is_err());
    }

    /// Results of Python's `re.match(pattern, text, re.DOTALL | re.MULTILINE)`.
    #[test]
    fn thoughts_have_the_form_of_trl() {
        let cases = [
            ("<think>a</think>b", true),
            ("<think></think>", true),
            ("<think>\na\n</think>\n\nb\n", true),
            ("<think>a</think>b</think>", true),
            ("<think>a", false),
            ("a<think>b</think>", false),
            (" <think>a</think>", false),
            ("\n<think>a</think>", false),
            ("<think><think>a</think>", false),
            ("<think>a</think><think>b</think>", false),
            ("</think><think>", false),
            ("", false),
        ];
        for (text, expected) in cases {
            assert_eq!(thinks(text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_last_marker_counts() {
        assert_eq!(judged("a", None), Some("a"));
        assert_eq!(judged("a|b|c", Some("|")), Some("c"));
        assert_eq!(judged("a|", Some("|")), Some(""));
        assert_eq!(judged("a", Some("|")), None);
    }
}
