//! Notices: facts about a dataset that a user should know but that do not stop a run.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Container, Overlong};

/// Number of ignored keys that a notice names.
const MOST_KEYS: usize = 20;

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
    /// Plain text that was cut into parts.
    Parts {
        /// Number of files.
        files: usize,
        /// Number of parts.
        parts: usize,
        /// Number of tokens.
        tokens: usize,
        /// The limit.
        max_seq_len: usize,
    },
    /// Keys that were read as prompt and completion.
    Pair {
        /// The key of the prompt.
        prompt: String,
        /// The key of the completion.
        completion: String,
        /// Number of these samples.
        count: usize,
    },
    /// Samples with an empty answer.
    EmptyAnswers {
        /// Number of these samples.
        count: usize,
        /// Number of samples in the file.
        total: usize,
        /// Number of the first one, from 1.
        number: usize,
        /// Container of the records.
        container: Container,
    },
    /// Samples that `data.system` was not added to.
    System {
        /// Number of samples with a system message of their own.
        own: usize,
        /// Number of samples that are no conversations.
        no_conversation: usize,
    },
    /// Tokens in a row, where the recipe does not set them.
    Row(usize),
    /// So few training samples that a run can hardly teach more than to repeat them.
    Few(usize),
    /// Number of samples whose `text` contains control tokens.
    ControlTokens(usize),
    /// Number of samples with text or reasoning that the chat template drops or changes.
    LeftOut(usize),
    /// Samples with bytes that the vocabulary cannot write.
    Unwritten {
        /// Number of these samples.
        count: usize,
        /// Number of the first one, from 1.
        number: usize,
        /// The bytes.
        bytes: BTreeSet<u8>,
        /// Container of the records.
        container: Container,
    },
    /// A property of the base's vocabulary.
    Vocabulary(String),
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
    /// Reference answers that are longer than a generated answer may be.
    LongAnswers {
        /// Number of these answers.
        count: usize,
        /// Number of all reference answers.
        total: usize,
        /// Number of tokens of the longest.
        longest: usize,
        /// The limit.
        max_new_tokens: usize,
    },
    /// Files in a folder that contain no samples.
    Skipped(Vec<String>),
    /// A problem with the cache.
    Cache(String),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        self.what.fmt(f)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::IgnoredKeys { keys, container } => {
                let records = |n: usize| format!("{n} {}{}", container.unit(), if n == 1 { "" } else { "s" });
                let one = |(key, n): &(String, usize)| format!("{key} ({})", records(*n));
                let shown: Vec<String> = keys.iter().take(MOST_KEYS).map(one).collect();
                write!(f, "ignored keys: {}", shown.join(", "))?;
                match keys.len().saturating_sub(MOST_KEYS) {
                    0 => Ok(()),
                    more => write!(f, ", and {more} more"),
                }
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
            What::Parts { .. }
            | What::Pair { .. }
            | What::EmptyAnswers { .. }
            | What::System { .. }
            | What::Unwritten { .. }
            | What::Row(_)
            | What::Few(_) => f.write_str(&self.reading()),
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
            What::LongAnswers { count, total, longest, max_new_tokens } => write!(
                f,
                "{count} of {total} reference answers are longer than max_new_tokens = {max_new_tokens} tokens (the longest has \
                 {longest}), so generated answers cannot equal them; raise it"
            ),
            What::Skipped(files) => {
                write!(f, "skipped files without samples: {}", files.join(", "))
            }
            What::Cache(text) | What::Vocabulary(text) => f.write_str(text),
        }
    }
}

impl What {
    /// The text of a notice about how samples were read.
    fn reading(&self) -> String {
        match self {
            What::Parts { files, parts, tokens, max_seq_len } => {
                let files = match files {
                    1 => format!("the text ({tokens} tokens) was"),
                    n => format!("the texts of {n} files ({tokens} tokens) were"),
                };
                format!(
                    "{files} cut into {parts} parts of at most max_seq_len = {max_seq_len} tokens, at line \
                     ends where possible"
                )
            }
            What::Pair { prompt, completion, count } => {
                format!(
                    "\"{prompt}\" and \"{completion}\" are read as prompt and completion ({})",
                    samples(*count)
                )
            }
            What::EmptyAnswers { count, total, number, container } => format!(
                "{count} of {total} samples have an empty answer, which teaches the model to say nothing; the first is {} {number}",
                container.unit()
            ),
            What::System { own, no_conversation } => {
                let own = match own {
                    0 => None,
                    1 => Some("1 sample with a system message of its own".into()),
                    n => Some(format!("{n} samples with a system message of their own")),
                };
                let others = match no_conversation {
                    0 => None,
                    1 => Some("1 sample that is no conversation".into()),
                    n => Some(format!("{n} samples that are no conversations")),
                };
                let both: Vec<String> = own.into_iter().chain(others).collect();
                format!("data.system was not added to {}", both.join(" and "))
            }
            What::Unwritten { count, number, bytes, container } => {
                let bytes: Vec<String> = bytes.iter().map(|byte| format!("0x{byte:02X}")).collect();
                format!(
                    "{} {} bytes that the vocabulary cannot write: {}; they become its unknown token, or are left out if it has none; \
                     the first is {} {number}",
                    samples(*count),
                    if *count == 1 { "has" } else { "have" },
                    bytes.join(", "),
                    container.unit()
                )
            }
            What::Row(tokens) => {
                format!("not set; rows have {tokens} tokens, which is what samples and base allow")
            }
            What::Few(count) => format!(
                "there {} only {} to train on: expect the model to repeat them word by word; a style takes about 50, a task some \
                 hundreds",
                if *count == 1 { "is" } else { "are" },
                samples(*count)
            ),
            other => unreachable!("{other:?} is described elsewhere"),
        }
    }
}

fn samples(count: usize) -> String {
    format!("{count} sample{}", if count == 1 { "" } else { "s" })
}

/// The notices of one source. Notices about cut texts become one, so that a folder of texts has one notice.
pub fn merged(notices: Vec<Notice>, place: &str) -> Vec<Notice> {
    let of = |notice: &Notice| match notice.what {
        What::Parts { files, parts, tokens, max_seq_len } => Some((files, parts, tokens, max_seq_len)),
        _ => None,
    };
    let cut: Vec<_> = notices.iter().filter_map(of).collect();
    if cut.len() < 2 {
        return notices;
    }
    let sum = |value: fn(&(usize, usize, usize, usize)) -> usize| cut.iter().map(value).sum();
    let what = What::Parts {
        files: sum(|cut| cut.0),
        parts: sum(|cut| cut.1),
        tokens: sum(|cut| cut.2),
        max_seq_len: cut[0].3,
    };
    let mut merged = vec![Notice { place: place.to_owned(), what }];
    merged.extend(notices.into_iter().filter(|notice| of(notice).is_none()));
    merged
}
