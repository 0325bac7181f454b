//! Notices: facts about a dataset that a user should know but that do not stop a run.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Container, Overlong};
use crate::data::template::LeftOut;

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
    /// Samples of which not all have a context, which only a teacher sees.
    Contexts {
        /// Number of samples with a context.
        with: usize,
        /// Number of samples with an empty one.
        empty: usize,
        /// Number of all samples.
        total: usize,
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
