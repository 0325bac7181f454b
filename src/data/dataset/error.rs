//! Errors of datasets. Messages have the place, what was found, and what was expected.

use super::{Container, Format};
use crate::data::template::{Role, TemplateError};

/// A problem and its place.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct DatasetError {
    /// File, or file and line: `datasets/pirate.jsonl line 12`.
    pub place: String,
    /// The problem.
    pub problem: Problem,
}

/// The problem.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(String),
    /// No such file.
    #[error("{0}")]
    NoFiles(String),
    /// A compressed file that cannot be uncompressed.
    #[error("cannot be unpacked as {compression}: {message}")]
    Compressed {
        /// By its first bytes.
        compression: &'static str,
        /// The library's words.
        message: String,
    },
    /// A Parquet file that cannot be read.
    #[error("cannot be read as Parquet: {0}")]
    Parquet(String),
    /// No sample is left.
    #[error("{}", no_samples(*.container, *.dropped, .invalid, *.max_seq_len))]
    NoSamples {
        /// Container of the records.
        container: Container,
        /// How many were too long.
        dropped: usize,
        /// The first that cannot be used, and why.
        invalid: Option<(usize, String)>,
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
    /// Text that starts as a JSON array and is not one.
    #[error("broken JSON at line {line}, column {column}: {message}; expected an array of objects")]
    JsonArray {
        /// From 1.
        line: usize,
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
    #[error("keys [{}] fit more than one shape; set format to {}", .found.join(", "), names(.fit))]
    Ambiguous {
        /// The record's keys.
        found: Vec<String>,
        /// The shapes.
        fit: Vec<Format>,
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
    /// An unknown role.
    #[error(
        "message {number}: unknown role \"{found}\"; expected \"system\", \"developer\", \"user\", \"assistant\" or \"tool\""
    )]
    Role {
        /// Which message, from 1.
        number: usize,
        /// The role as written.
        found: String,
    },
    /// A key that means nothing in a message of this role.
    #[error("message {number} is from the {role}, whose messages have no \"{key}\"")]
    Misplaced {
        /// Which message, from 1.
        number: usize,
        /// The key.
        key: &'static str,
        /// Whose it is.
        role: Role,
    },
    /// Content that is no text.
    #[error("message {number}: its \"content\" has a part of type \"{found}\"; expected only \"text\"")]
    Part {
        /// Which message, from 1.
        number: usize,
        /// The type as written.
        found: String,
    },
    /// A flag that is neither yes nor no.
    #[error(
        "message {number}: its loss flag is {found}; expected \"weight\": 0 or 1, or \"train\": true or false, not \
         both"
    )]
    Flag {
        /// Which message, from 1.
        number: usize,
        /// The value as written.
        found: String,
    },
    /// A function call without the required fields.
    #[error(
        "message {number}: a function call {problem}; expected {{\"name\": \"…\", \"arguments\": {{…}}}}"
    )]
    Call {
        /// Which message, from 1.
        number: usize,
        /// The problem.
        problem: &'static str,
    },
    /// A turn without speaker or words.
    #[error("turn {number}: expected keys \"from\" and \"value\", found [{}]", .found.join(", "))]
    TurnKeys {
        /// Which turn, from 1.
        number: usize,
        /// Its keys.
        found: Vec<String>,
    },
    /// An unknown speaker.
    #[error(
        "turn {number}: unknown \"from\": \"{found}\"; expected \"system\", \"human\", \"gpt\", \"function_call\" or \"observation\""
    )]
    From {
        /// Which turn, from 1.
        number: usize,
        /// The speaker as written.
        found: String,
    },
    /// A document without words.
    #[error("\"text\" is empty; expected a document")]
    EmptyText,
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
    /// A label that is neither a token id nor −100.
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
        "none of the {length} tokens is a loss token; expected at least one label other than -100 after the first"
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
        "the sample has {length} tokens, and cut to max_seq_len = {max_seq_len} none of them is a loss token; \
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
    /// Whether dropping the record helps: an overlong one has a setting of its own.
    pub(super) fn is_of_one_record(&self) -> bool {
        !matches!(self, Problem::Overlong { .. })
    }

    /// The problem at a place.
    pub(super) fn at(self, place: impl Into<String>) -> DatasetError {
        DatasetError { place: place.into(), problem: self }
    }
}

fn expected_keys(format: Format) -> String {
    let quoted =
        |shape: &Format| shape.keys().iter().map(|key| format!("\"{key}\"")).collect::<Vec<_>>().join(" + ");
    match format {
        Format::Auto => either(Format::SHAPES.iter().map(quoted)),
        shape => quoted(&shape),
    }
}

fn names(formats: &[Format]) -> String {
    either(formats.iter().map(|format| format!("\"{}\"", format.name())))
}

/// `a, b or c`.
fn either(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

fn no_samples(
    container: Container,
    dropped: usize,
    invalid: &Option<(usize, String)>,
    max_seq_len: usize,
) -> String {
    let unit = container.unit();
    match (dropped, invalid) {
        (_, Some((number, problem))) => {
            format!("no {unit} can be used; the first problem, in {unit} {number}: {problem}")
        }
        (0, None) => match container {
            Container::Lines => "the file holds no sample; expected one JSON object a line".to_owned(),
            _ => format!("the {} holds no {unit}", container.name()),
        },
        (n, None) => {
            format!("all {n} samples are longer than max_seq_len = {max_seq_len} and were dropped; raise it")
        }
    }
}
