//! Errors of datasets. Each message states the place, what was found and what was expected.

use super::comparison_problem::ComparisonProblem;
use super::kinds::{Container, Format};
use super::wording::{expected_keys, gib, json_hint, names, no_samples, overlong};
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
    /// A table that cannot be read.
    #[error("cannot be read as a table: {0}")]
    Table(String),
    /// A file of a kind that is not read.
    #[error("the file is {kind}, which is not read; {advice}")]
    Foreign {
        /// The kind of file.
        kind: &'static str,
        /// The command or step that converts it.
        advice: &'static str,
    },
    /// UTF-16, which Windows programs write.
    #[error(
        "the file is UTF-16, as PowerShell's > and Notepad's \"Unicode\" write it; save it as UTF-8 (PowerShell: \
         Out-File -Encoding utf8)"
    )]
    Utf16,
    /// A compressed or Parquet file that would take too much memory.
    #[error(
        "{what} would take more than {} GiB; if you trust the file, raise data.max_file_size, otherwise split it",
        gib(*.most)
    )]
    TooLarge {
        /// The part of the file that is too large.
        what: String,
        /// The limit in bytes.
        most: u64,
    },
    /// A record that is too large.
    #[error("the record has {} MiB, expected at most {} MiB; split it into several", .bytes >> 20, .most >> 20)]
    LargeRecord {
        /// Size in bytes.
        bytes: usize,
        /// The limit in bytes.
        most: usize,
    },
    /// A file of plain text without text.
    #[error("the file contains no text")]
    EmptyFile,
    /// A file whose answers are all empty.
    #[error(
        "{}; a model trained on that learns to say nothing. Check which key or column holds the answers \
         (data.fields can name it)",
        if *.0 == 1 { "the answer of its only sample is empty".to_owned() }
        else { format!("the answers of all {} samples are empty", .0) }
    )]
    EmptyAnswers(usize),
    /// A record without a key that `data.fields` names.
    #[error("data.fields finds \"{key}\" under \"{from}\", but the record has the keys [{}]", .found.join(", "))]
    NoField {
        /// The key that is renamed.
        key: String,
        /// Its name in the records.
        from: String,
        /// The record's keys.
        found: Vec<String>,
    },
    /// Preference data.
    #[error(
        "the record has {0}: preference data; to train on it, set train.objective = \"{1}\" (see docs/preference.md); to \
         imitate the good answers, keep only them, as \"prompt\" and \"completion\""
    )]
    Preference(String, &'static str),
    /// A pair or a rating that cannot be used.
    #[error(transparent)]
    Comparison(#[from] ComparisonProblem),
    /// No sample remains.
    #[error("{}", no_samples(*container, invalid.as_ref(), *dropped, *longest, *max_seq_len, *context))]
    NoSamples {
        /// Container of the records.
        container: Container,
        /// Number of samples that were too long.
        dropped: usize,
        /// Number of tokens of the longest of these.
        longest: usize,
        /// The first unusable record and its problem.
        invalid: Option<(usize, String)>,
        /// The limit.
        max_seq_len: usize,
        /// The limit of the base.
        context: usize,
    },
    /// Not UTF-8.
    #[error("byte {0} is not UTF-8; save the file as UTF-8")]
    Utf8(usize),
    /// Records under keys instead of in a list.
    #[error(
        "the file is an object with a record under each key, such as {0:?}; expected a list of the records: \
         python -c \"import json,sys; json.dump(list(json.load(sys.stdin).values()), sys.stdout)\" < FILE > LIST"
    )]
    Keyed(String),
    /// Not JSON.
    #[error("broken JSON at column {column}: {message}{}", json_hint(.message))]
    Json {
        /// Byte column, from 1.
        column: usize,
        /// The parser's message.
        message: String,
    },
    /// Broken JSON that is not one object per line.
    #[error("broken JSON at line {line}, column {column}: {message}; expected {expected}")]
    JsonArray {
        /// Layout of the file.
        expected: &'static str,
        /// Line, from 1.
        line: usize,
        /// Byte column, from 1.
        column: usize,
        /// The parser's message.
        message: String,
    },
    /// A part without its content.
    #[error("message {number}: a part of type \"{kind}\" has no \"{expected}\"; found the keys [{}]", .found.join(", "))]
    PartKey {
        /// The message's number, from 1.
        number: usize,
        /// Type of the part.
        kind: String,
        /// The key that it needs.
        expected: &'static str,
        /// Its keys.
        found: Vec<String>,
    },
    /// Parts in an order that no template shows.
    #[error(
        "message {number}: its reasoning, text and function calls are not in this order, which is that of chat templates; expected \
         reasoning before text, and calls last"
    )]
    PartOrder {
        /// The message's number, from 1.
        number: usize,
    },
    /// Parts of which only some have loss.
    #[error(
        "message {number}: only some of its parts have loss; expected one loss flag for the whole message: give the excluded parts \
         a message of their own, or the sample as \"input_ids\" with \"labels\""
    )]
    PartFlags {
        /// The message's number, from 1.
        number: usize,
    },
    /// Text of the assistant behind its function calls.
    #[error(
        "turn {number}: an answer follows a \"function_call\" without its result; put an \"observation\" between them, or the answer \
         before the call"
    )]
    TextAfterCall {
        /// The turn's number, from 1.
        number: usize,
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
    #[error(
        "expected {}, found keys [{}]{}",
        expected_keys(*.format),
        .found.join(", "),
        .suggestion.as_ref().map_or(String::new(), |fields| format!("; set data.fields to say which is which, such as {fields}"))
    )]
    Shape {
        /// The requested format.
        format: Format,
        /// The record's keys.
        found: Vec<String>,
        /// A value of `data.fields` that would read the record.
        suggestion: Option<String>,
    },
    /// More than one shape fits.
    #[error("keys [{}] fit more than one shape; set format to {}", .found.join(", "), names(.fit))]
    Ambiguous {
        /// The record's keys.
        found: Vec<String>,
        /// The shapes.
        fit: Vec<Format>,
    },
    /// An unsupported key that changes the meaning of the sample, and the reason with the next step.
    #[error("the key \"{0}\" {1}")]
    UnsupportedKey(String, &'static str),
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
        "message {number}: unknown role \"{found}\"; expected \"system\", \"developer\", \"user\", \"assistant\" or \"tool\" (or \
         \"human\", \"model\", \"bot\")"
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
    #[error(
        "message {number}: its \"content\" has a part of type \"{found}\"; expected \"text\", \"reasoning\" or \"tool_call\""
    )]
    Part {
        /// The message's number, from 1.
        number: usize,
        /// The type as written.
        found: String,
    },
    /// An invalid or contradictory loss flag.
    #[error(
        "message {number}: its loss flag is {found}; expected \"weight\": 0 or 1, or \"train\": true or false, and no other flag \
         that differs"
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
        problem: String,
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
    /// Samples that are too long.
    #[error("{}", overlong([*count, *total], first, [*length, *longest], *max_seq_len, *context))]
    Overlong {
        /// Number of these samples.
        count: usize,
        /// Number of all samples of the file.
        total: usize,
        /// Place of the first one in the file.
        first: String,
        /// Its number of tokens.
        length: usize,
        /// Number of tokens of the longest.
        longest: usize,
        /// The limit.
        max_seq_len: usize,
        /// The limit of the base.
        context: usize,
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
    /// Adds the place.
    pub(super) fn at(self, place: impl Into<String>) -> DatasetError {
        DatasetError { place: place.into(), problem: self }
    }
}
