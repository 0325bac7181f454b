//! Errors of datasets. Each message states the place, what was found and what was expected.

use super::{Container, Format};
use crate::data::template::{Role, TemplateError};

/// A problem with its place.
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
    /// A path, folder or pattern without data files.
    #[error("{0}")]
    NoFiles(String),
    /// A compressed file that cannot be decompressed.
    #[error("cannot be decompressed as {compression}: {message}")]
    Compressed {
        /// The compression, recognized by the first bytes.
        compression: &'static str,
        /// The library's message.
        message: String,
    },
    /// A Parquet file that cannot be read.
    #[error("cannot be read as Parquet: {0}")]
    Parquet(String),
    /// No sample remains.
    #[error("{}", no_samples(*.container, *.dropped, .invalid, *.max_seq_len))]
    NoSamples {
        /// Container of the records.
        container: Container,
        /// Number of samples that were too long.
        dropped: usize,
        /// The first unusable record and its problem.
        invalid: Option<(usize, String)>,
        /// The limit.
        max_seq_len: usize,
    },
    /// A line without text, followed by more lines.
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
        /// The parser's message.
        message: String,
    },
    /// Text that starts like a JSON array but is not valid.
    #[error("broken JSON at line {line}, column {column}: {message}; expected an array of objects")]
    JsonArray {
        /// Line, from 1.
        line: usize,
        /// Byte column, from 1.
        column: usize,
        /// The parser's message.
        message: String,
    },
    /// A value of the wrong type.
    #[error("expected {expected}, found {found}")]
    Type {
        /// The key and its expected type.
        expected: String,
        /// The type found.
        found: &'static str,
    },
    /// No shape fits.
    #[error("expected {}, found keys [{}]", expected_keys(*.format), .found.join(", "))]
    Shape {
        /// The requested format.
        format: Format,
        /// The record's keys.
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
    /// An unsupported key that changes the meaning of the sample.
    #[error(
        "the key \"{0}\" is not supported, but ignoring it would change the meaning of the sample; remove it"
    )]
    UnsupportedKey(String),
    /// A message without role or content.
    #[error("message {number}: expected keys \"role\" and \"content\", found [{}]", .found.join(", "))]
    MessageKeys {
        /// The message's number, from 1.
        number: usize,
        /// Its keys.
        found: Vec<String>,
    },
    /// An unknown role.
    #[error(
        "message {number}: unknown role \"{found}\"; expected \"system\", \"developer\", \"user\", \"assistant\" or \"tool\""
    )]
    Role {
        /// The message's number, from 1.
        number: usize,
        /// The role as written.
        found: String,
    },
    /// A key that messages of this role cannot have.
    #[error("message {number} is from the {role}; messages of this role cannot have \"{key}\"")]
    Misplaced {
        /// The message's number, from 1.
        number: usize,
        /// The key.
        key: &'static str,
        /// Role of the message.
        role: Role,
    },
    /// Content that is not text.
    #[error("message {number}: its \"content\" has a part of type \"{found}\"; expected only \"text\"")]
    Part {
        /// The message's number, from 1.
        number: usize,
        /// The type as written.
        found: String,
    },
    /// An invalid or contradictory loss flag.
    #[error(
        "message {number}: its loss flag is {found}; expected \"weight\": 0 or 1, or \"train\": true or false, not \
         both"
    )]
    Flag {
        /// The message's number, from 1.
        number: usize,
        /// The value as written.
        found: String,
    },
    /// A function call without the required fields.
    #[error(
        "message {number}: a function call {problem}; expected {{\"name\": \"…\", \"arguments\": {{…}}}}"
    )]
    Call {
        /// The message's number, from 1.
        number: usize,
        /// The problem.
        problem: &'static str,
    },
    /// A turn without a speaker or text.
    #[error("turn {number}: expected keys \"from\" and \"value\", found [{}]", .found.join(", "))]
    TurnKeys {
        /// The turn's number, from 1.
        number: usize,
        /// Its keys.
        found: Vec<String>,
    },
    /// An unknown speaker.
    #[error(
        "turn {number}: unknown \"from\": \"{found}\"; expected \"system\", \"human\", \"gpt\", \"function_call\" or \"observation\""
    )]
    From {
        /// The turn's number, from 1.
        number: usize,
        /// The speaker as written.
        found: String,
    },
    /// An empty document.
    #[error("\"text\" is empty; expected a document")]
    EmptyText,
    /// The conversation cannot be rendered.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// An empty list of ids.
    #[error("\"input_ids\" is empty; expected at least two token ids")]
    NoIds,
    /// A value that is not a token id.
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
    #[error("\"{key}\" has {found} values for {ids} \"input_ids\"; expected one per id")]
    Length {
        /// The list's key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// Number of ids.
        ids: usize,
    },
    /// An attention mask that hides tokens.
    #[error("\"attention_mask\" hides tokens; expected only 1: remove the padding")]
    AttentionMask,
    /// A sample without loss tokens.
    #[error(
        "none of the {length} tokens is a loss token; expected at least one label other than -100 after the first"
    )]
    NoLoss {
        /// Number of tokens in the sample.
        length: usize,
    },
    /// A sample that is too long.
    #[error(
        "the sample has {length} tokens, more than max_seq_len = {max_seq_len}; raise max_seq_len, shorten it, \
         or set overlong to \"drop\" or \"truncate\""
    )]
    Overlong {
        /// Number of tokens in the sample.
        length: usize,
        /// The limit.
        max_seq_len: usize,
    },
    /// A sample without loss tokens after truncation.
    #[error(
        "the sample has {length} tokens, but no loss token is left after truncation to max_seq_len = {max_seq_len}; \
         raise max_seq_len, or set overlong to \"drop\""
    )]
    TruncatedLoss {
        /// Number of tokens in the sample.
        length: usize,
        /// The limit.
        max_seq_len: usize,
    },
    /// A validation split of an impossible size.
    #[error(
        "val_size = {val_size} cannot be cut from {samples} sample{}; expected a fraction between 0 and 1 or a \
         whole number, with at least one sample on each side",
        if *.samples == 1 { "" } else { "s" }
    )]
    ValSize {
        /// The setting.
        val_size: f64,
        /// Number of samples to split.
        samples: usize,
    },
}

impl Problem {
    /// Whether the problem concerns a single record, which can be dropped. Overlong records have their own setting.
    pub(super) fn is_of_one_record(&self) -> bool {
        !matches!(self, Problem::Overlong { .. })
    }

    /// Adds the place.
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

/// Joins names: `a, b or c`.
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
            Container::Lines => "the file contains no sample; expected one JSON object per line".to_owned(),
            _ => format!("the {} contains no {unit}", container.name()),
        },
        (n, None) => {
            format!("all {n} samples are longer than max_seq_len = {max_seq_len} and were dropped; raise it")
        }
    }
}
