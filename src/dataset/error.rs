//! What can be wrong with a dataset, and how it is said: place, what was found, what was expected.

use super::Format;
use crate::template::TemplateError;

/// A problem and its place.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct DatasetError {
    /// File, or file and line: `datasets/pirate.jsonl line 12`.
    pub place: String,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(String),
    /// No sample is left.
    #[error("{}", no_samples(*.dropped, *.max_seq_len))]
    NoSamples {
        /// How many were too long.
        dropped: usize,
        /// The limit.
        max_seq_len: usize,
    },
    /// A line without text, and lines after it.
    #[error("the line is empty; expected a JSON object (empty lines are accepted only at the end)")]
    EmptyLine,
    /// Not UTF-8.
    #[error("byte {0} is not UTF-8; save the file as UTF-8")]
    Utf8(usize),
    /// Not JSON.
    #[error("broken JSON at column {column}: {message}")]
    Json {
        /// Byte column, from 1.
        column: usize,
        /// The parser's words.
        message: String,
    },
    /// A value of the wrong type.
    #[error("expected {expected}, found {found}")]
    Type {
        /// Key and type.
        expected: String,
        /// The type that is there.
        found: &'static str,
    },
    /// No shape fits.
    #[error("expected {}, found keys [{}]", expected_keys(*.format), .found.join(", "))]
    Shape {
        /// The format asked for.
        format: Format,
        /// The line's keys.
        found: Vec<String>,
    },
    /// More than one shape fits.
    #[error(
        "keys [{}] fit more than one shape; set format to \"messages\", \"prompt_completion\" or \"input_ids\"",
        .found.join(", ")
    )]
    Ambiguous {
        /// The line's keys.
        found: Vec<String>,
    },
    /// A key that changes what would be trained.
    #[error(
        "the key \"{0}\" is not supported, and without it the sample would mean something else; remove it"
    )]
    UnsupportedKey(String),
    /// A message without role or content.
    #[error("message {number}: expected keys \"role\" and \"content\", found [{}]", .found.join(", "))]
    MessageKeys {
        /// Which message, from 1.
        number: usize,
        /// Its keys.
        found: Vec<String>,
    },
    /// A role that is none.
    #[error(
        "message {number}: unknown role \"{found}\"; expected \"system\", \"developer\", \"user\" or \"assistant\""
    )]
    Role {
        /// Which message, from 1.
        number: usize,
        /// The role as written.
        found: String,
    },
    /// The conversation cannot be rendered.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// No ids.
    #[error("\"input_ids\" is empty; expected at least two token ids")]
    NoIds,
    /// An id that is no token.
    #[error("\"input_ids\"[{index}] is {found}, expected a token id from 0 to {}", .vocab - 1)]
    Id {
        /// Position in the list, from 0.
        index: usize,
        /// The value as written.
        found: String,
        /// Vocabulary size.
        vocab: usize,
    },
    /// A label that is neither a token nor −100.
    #[error("\"labels\"[{index}] is {found}, expected a token id from 0 to {}, or -100 for no loss", .vocab - 1)]
    Label {
        /// Position in the list, from 0.
        index: usize,
        /// The value as written.
        found: String,
        /// Vocabulary size.
        vocab: usize,
    },
    /// Lists of different lengths.
    #[error("\"{key}\" has {found} values for {ids} \"input_ids\"; expected one under each")]
    Length {
        /// The list's key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// How many ids there are.
        ids: usize,
    },
    /// A mask that hides tokens.
    #[error("\"attention_mask\" hides tokens; expected only 1: give the sample without padding")]
    AttentionMask,
    /// Nothing to learn.
    #[error(
        "none of the {length} tokens carries loss; expected at least one label other than -100 after the first"
    )]
    NoLoss {
        /// Tokens of the sample.
        length: usize,
    },
    /// Too long.
    #[error(
        "the sample has {length} tokens, more than max_seq_len = {max_seq_len}; raise max_seq_len, shorten it, \
         or set overlong to \"drop\" or \"truncate\""
    )]
    Overlong {
        /// Tokens of the sample.
        length: usize,
        /// The limit.
        max_seq_len: usize,
    },
    /// Cut so short that there is nothing to learn.
    #[error(
        "the sample has {length} tokens, and cut to max_seq_len = {max_seq_len} none of them carries loss; \
         raise max_seq_len, or set overlong to \"drop\""
    )]
    TruncatedLoss {
        /// Tokens of the sample.
        length: usize,
        /// The limit.
        max_seq_len: usize,
    },
    /// A validation part that cannot be cut off.
    #[error(
        "val_size = {val_size} cannot be cut from {samples} sample{}; expected a fraction between 0 and 1 or a \
         whole number, with at least one sample on each side",
        if *.samples == 1 { "" } else { "s" }
    )]
    ValSize {
        /// The setting.
        val_size: f64,
        /// Samples to split.
        samples: usize,
    },
}

impl Problem {
    /// The problem at a place.
    pub(super) fn at(self, place: impl Into<String>) -> DatasetError {
        DatasetError { place: place.into(), problem: self }
    }
}

fn expected_keys(format: Format) -> &'static str {
    match format {
        Format::Auto => "\"messages\", \"prompt\" + \"completion\" or \"input_ids\"",
        Format::Messages => "\"messages\"",
        Format::PromptCompletion => "\"prompt\" + \"completion\"",
        Format::InputIds => "\"input_ids\"",
    }
}

fn no_samples(dropped: usize, max_seq_len: usize) -> String {
    match dropped {
        0 => "the file holds no sample; expected one JSON object a line".to_owned(),
        n => {
            format!("all {n} samples are longer than max_seq_len = {max_seq_len} and were dropped; raise it")
        }
    }
}
