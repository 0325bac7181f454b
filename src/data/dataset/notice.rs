//! Notices: things about a dataset that a user should know, but that do not stop a run.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Container, Overlong};

/// A skipped or remarkable record, with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// A file, or a key of the recipe.
    pub place: String,
    /// Content.
    pub what: What,
}

/// Content of a notice. Counts are of samples unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum What {
    /// Keys that play no part in training, with the number of records that have them, in order of appearance.
    IgnoredKeys {
        /// Key and records.
        keys: Vec<(String, usize)>,
        /// Word for the records.
        container: Container,
    },
    /// Samples longer than `max_seq_len`.
    Overlong {
        /// [`Overlong::Drop`] or [`Overlong::Truncate`].
        action: Overlong,
        /// How many of them.
        count: usize,
        /// How many samples the file has, these included.
        total: usize,
        /// Tokens of the longest.
        longest: usize,
        /// The limit.
        max_seq_len: usize,
    },
    /// Records that cannot be used and were dropped, because of `invalid = "drop"`.
    Invalid {
        /// How many of them.
        count: usize,
        /// How many records the file has, these included.
        total: usize,
        /// The first: its number, from 1.
        number: usize,
        /// Problem of the first.
        problem: String,
        /// Word for the records.
        container: Container,
    },
    /// `text` that spells control tokens.
    ControlTokens(usize),
    /// Words or thoughts that the chat template skips or changes.
    LeftOut(usize),
    /// The template writes the day's date.
    Date(String),
    /// Samples that equal an earlier one, token by token.
    Duplicates {
        /// How many.
        count: usize,
        /// Total number.
        total: usize,
        /// The first of them.
        first: String,
        /// Place of its duplicate.
        of: String,
    },
    /// Validation samples that are trained on, too.
    Leaked {
        /// How many.
        count: usize,
        /// Total number.
        total: usize,
        /// The first of them.
        first: String,
        /// Place of its duplicate.
        of: String,
    },
    /// Files of a folder that hold no samples.
    Skipped(Vec<String>),
    /// The cache could not be used as it should be.
    Cache(String),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        match &self.what {
            What::IgnoredKeys { keys, container } => {
                let records = |n: usize| format!("{n} {}{}", container.unit(), if n == 1 { "" } else { "s" });
                let keys: Vec<String> =
                    keys.iter().map(|(key, n)| format!("{key} ({})", records(*n))).collect();
                write!(f, "ignored keys: {}", keys.join(", "))
            }
            What::Overlong { action, count, total, longest, max_seq_len } => {
                let action = if *action == Overlong::Drop { "dropped" } else { "truncated" };
                write!(
                    f,
                    "{action} {count} of {total} samples, longer than max_seq_len = {max_seq_len} tokens (the longest has \
                     {longest})"
                )
            }
            What::Invalid { count, total, number, problem, container } => write!(
                f,
                "dropped {count} of {total} {}s that cannot be used; the first, {} {number}: {problem}",
                container.unit(),
                container.unit()
            ),
            What::ControlTokens(count) => {
                write!(
                    f,
                    "control tokens that are spelled in texts ({count} of them) are read as those tokens"
                )
            }
            What::LeftOut(count) => write!(
                f,
                "the chat layout leaves out or changes words or thoughts of {count} samples (thoughts before the last \
                 question are history, which no layout shows)"
            ),
            What::Date(date) => {
                write!(f, "the chat template writes the date, {date}; another day gives other tokens")
            }
            What::Duplicates { count, total, first, of } => {
                write!(f, "{count} of {total} samples are exact duplicates; the first, {first}, equals {of}")
            }
            What::Leaked { count, total, first, of } => write!(
                f,
                "{count} of {total} validation samples are trained on, too, so their loss is too low; the first, {first}, \
                 equals {of}"
            ),
            What::Skipped(files) => {
                write!(f, "no samples, skipped: {}", files.join(", "))
            }
            What::Cache(text) => f.write_str(text),
        }
    }
}
