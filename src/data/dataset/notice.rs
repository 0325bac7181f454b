//! Notices: facts about a dataset that a user should know but that do not stop a run.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Container, Overlong};
use crate::data::template::LeftOut;

/// Number of characters of a system message that a notice shows.
const MOST_CHARS: usize = 200;
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
    /// A key that was read as the prompt of compared answers.
    Prompt {
        /// The key.
        key: String,
        /// Number of these samples.
        count: usize,
    },
    /// Number of samples of which nulls in declared functions, and in calls under the same names, were left out.
    Nulls(usize),
    /// Number of samples whose calls or results have nulls, which are trained.
    KeptNulls(usize),
    /// Number of values NaN and Infinity, which are read as null.
    NotNumbers(usize),
    /// Number of samples with an ignored "label" of 0 or 1.
    Binary(usize),
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
    /// Samples without a system message, which the template or Ollama adds.
    UnaskedSystem {
        /// Whether Ollama adds it in use, and not the chat template in training.
        ollama: bool,
        /// Its text.
        text: String,
        /// Number of these samples.
        count: usize,
        /// Number of all samples.
        total: usize,
    },
    /// Samples whose last answer ends in a token that ends no reply.
    OpenEnds {
        /// Number of these samples.
        count: usize,
        /// Number of all samples.
        total: usize,
        /// The last token of the first of them.
        found: String,
        /// A token that ends a reply.
        expected: String,
    },
    /// Tokens in a row, where the recipe does not set them.
    Row(usize),
    /// So few training samples that a run can hardly teach more than to repeat them.
    Few(usize),
    /// Number of samples whose `text` contains control tokens.
    ControlTokens(usize),
    /// Samples with parts that the chat template drops or changes.
    LeftOut {
        /// Number of these samples.
        count: usize,
        /// The parts.
        what: BTreeSet<LeftOut>,
    },
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
    /// A property of the base.
    Base(String),
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
            What::ControlTokens(count) => {
                write!(f, "control tokens in texts ({count} of them) are parsed as control tokens")
            }
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
            What::Cache(text) | What::Base(text) => f.write_str(text),
            _ => f.write_str(&self.reading()),
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
            What::Prompt { key, count } => {
                format!("\"{key}\" is read as the prompt of the answers ({})", samples(*count))
            }
            What::Nulls(count) => format!(
                "nulls in declared functions, and in calls under the same names, are left out, as tables write them for absent keys ({})",
                samples(*count)
            ),
            What::KeptNulls(count) => format!(
                "calls or results of {} have nulls, which are trained as values; leave those keys out if a table wrote them for absent \
                 ones",
                samples(*count)
            ),
            What::NotNumbers(1) => "NaN or Infinity, which JSON lacks, is read as null (1 value)".into(),
            What::NotNumbers(count) => {
                format!("NaN and Infinity, which JSON lacks, are read as null ({count} values)")
            }
            What::Binary(count) => format!(
                "\"label\" is ignored ({}); if it rates the answers, train.objective = \"kto\" learns from it, while \"sft\" imitates \
                 the bad ones too",
                samples(*count)
            ),
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
            What::UnaskedSystem { ollama, text, count, total } => {
                let all = of_all(*count, *total);
                let text = shortened(text);
                match ollama {
                    true => format!(
                        "Ollama's model has the system message {text}, which Ollama puts in front of every conversation, and training does \
                         not ({all} without one); set data.system to it"
                    ),
                    false => format!(
                        "the chat template adds a system message of its own to {all}: {text}; data.system replaces it"
                    ),
                }
            }
            What::OpenEnds { count, total, found, expected } => format!(
                "the answers of {} end in {found:?}, which ends no reply, so that the model goes on up to the limit in chat, generate, \
                 serve and Ollama; expected a chat template that ends answers in a token such as {expected}",
                of_all(*count, *total)
            ),
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
            What::LeftOut { count, what } => {
                let names: Vec<&str> = what.iter().map(|part| part_name(*part)).collect();
                let (last, before) =
                    names.split_last().map_or(("", vec![]), |(last, all)| (*last, all.to_vec()));
                let all =
                    if before.is_empty() { last.into() } else { format!("{} and {last}", before.join(", ")) };
                let history = match what.contains(&LeftOut::Reasoning) {
                    true => {
                        " (reasoning before the last question is history, which most templates do not show)"
                    }
                    false => "",
                };
                format!("the chat template drops or changes {all} of {}{history}", samples(*count))
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

/// A number of samples, which may be all.
fn of_all(count: usize, total: usize) -> String {
    if count == total { format!("all {}", samples(total)) } else { format!("{count} of {}", samples(total)) }
}

/// The start of a text in quotes.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{:?} …", &text[..end]),
        None => format!("{text:?}"),
    }
}

fn part_name(part: LeftOut) -> &'static str {
    match part {
        LeftOut::System => "the system message",
        LeftOut::Text => "text",
        LeftOut::Reasoning => "reasoning",
        LeftOut::Call => "a function call without loss",
        LeftOut::Function => "a function's declaration",
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
