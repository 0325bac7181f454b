//! The words of notices.

use std::fmt;

use super::Overlong;
use super::notice::{Notice, What};
use crate::data::template::LeftOut;

/// Number of characters of a system message that a notice shows.
const MOST_CHARS: usize = 200;
/// Number of ignored keys that a notice names.
const MOST_KEYS: usize = 20;

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
            What::Contexts { with, empty, total } => {
                let of_empty = match empty {
                    0 => String::new(),
                    count => format!("; it is empty in {}", samples(*count)),
                };
                format!(
                    "{with} of {total} samples have a \"context\"{of_empty}: in the others the teacher reads what the student reads"
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
