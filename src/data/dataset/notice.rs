//! Notices: facts about a dataset that a user should know but that do not stop a run.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Container, Overlong};

/// A notice with its place.
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
    /// Keys that training ignores, with the number of records that have them, in order of appearance.
    IgnoredKeys {
        /// Each key with its number of records.
        keys: Vec<(String, usize)>,
        /// Container of the records.
        container: Container,
    },
    /// Samples longer than `max_seq_len`.
    Overlong {
        /// [`Overlong::Drop`] or [`Overlong::Truncate`].
        action: Overlong,
        /// Number of these samples.
        count: usize,
        /// Number of samples in the file, including these.
        total: usize,
        /// Number of tokens of the longest.
        longest: usize,
        /// The limit.
        max_seq_len: usize,
    },
    /// Records that cannot be used and were dropped, because of `invalid = "drop"`.
    Invalid {
        /// Number of these records.
        count: usize,
        /// Number of records in the file, including these.
        total: usize,
        /// Number of the first one, from 1.
        number: usize,
        /// Problem of the first one.
        problem: String,
        /// Container of the records.
        container: Container,
    },
    /// Number of samples whose `text` contains control tokens.
    ControlTokens(usize),
    /// Number of samples with text or reasoning that the chat template drops or changes.
    LeftOut(usize),
    /// The template writes the current date.
    Date(String),
    /// Samples that equal an earlier one, token by token.
    Duplicates {
        /// Number of duplicates.
        count: usize,
        /// Number of all samples.
        total: usize,
        /// Place of the first duplicate.
        first: String,
        /// Place of the sample that it equals.
        of: String,
    },
    /// Validation samples that are also training samples.
    Leaked {
        /// Number of these samples.
        count: usize,
        /// Number of all validation samples.
        total: usize,
        /// Place of the first one.
        first: String,
        /// Place of the training sample that it equals.
        of: String,
    },
    /// Files in a folder that contain no samples.
    Skipped(Vec<String>),
    /// A problem with the cache.
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
                write!(f, "control tokens in texts ({count} of them) are parsed as control tokens")
            }
            What::LeftOut(count) => write!(
                f,
                "the chat template drops or changes text or reasoning of {count} samples (reasoning before the last \
                 question is history, which no template shows)"
            ),
            What::Date(date) => {
                write!(f, "the chat template writes the date, {date}; on another day, the tokens differ")
            }
            What::Duplicates { count, total, first, of } => {
                write!(f, "{count} of {total} samples are exact duplicates; the first, {first}, equals {of}")
            }
            What::Leaked { count, total, first, of } => write!(
                f,
                "{count} of {total} validation samples are also training samples, so the validation loss is too low; the first, {first}, \
                 equals {of}"
            ),
            What::Skipped(files) => {
                write!(f, "skipped files without samples: {}", files.join(", "))
            }
            What::Cache(text) => f.write_str(text),
        }
    }
}
