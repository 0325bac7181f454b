//! Files to samples: seven record shapes of examples, one module each, and two of preferences, in six kinds of containers.
//!
//! Parsing is strict: a record that cannot be used is an error that names file, record and field, and every skipped record is
//! reported as a [`Notice`]. [`parse`] is a pure function of bytes; only [`files`] and [`cache`] access the disk.

mod alpaca;
mod beside;
pub mod cache;
mod comparison_problem;
mod container;
mod context;
mod conversation;
mod document;
mod duplicates;
mod error;
mod fields;
mod file_kind;
pub mod files;
mod flags;
mod gemini;
mod input_ids;
mod kinds;
mod messages;
mod notice;
mod notice_words;
#[cfg(feature = "parquet")]
mod parquet;
mod parts;
mod preference;
mod prompt_completion;
mod prompts;
mod record;
mod records;
mod sample;
mod shape;
mod sharegpt;
mod split;
mod stats;
mod table;
mod text;
mod tools;
mod wording;

use rayon::prelude::*;
use serde_json::{Map, Value};

use crate::data::batch::Sample;
use crate::data::compare::{Side, Supervision};
use crate::data::template::{Rendered, Template, TrainOn};
use crate::data::tokenizer::Tokenizer;

use container::Ending;
use record::Record;
use records::Records;
use sample::{Read, sample};
use stats::Tally;

pub use comparison_problem::ComparisonProblem;
pub use container::Compression;
pub use context::{CONTEXT, PROMPT};
pub use duplicates::duplicates;
pub use error::{DatasetError, Problem};
pub use fields::{FIELDS, Field};
pub use kinds::{Container, Format};
pub use notice::{Notice, What, merged};
pub use split::{Split, held_out, split};

/// Number of records that are parsed in parallel before errors are checked.
const RECORDS_AT_A_TIME: usize = 8192;
/// Size of these records in bytes, at most, unless it is one record.
const BYTES_AT_A_TIME: usize = 4 << 20;
/// Largest record in bytes. As values, which take up to 40 times as much, a longer one would fill the memory; it fits no model's
/// context.
const LARGEST_RECORD: usize = 4 << 20;
/// Files below this size may decompress to half of what others may: they are rather traps than samples.
const SMALL_FILE: usize = 4 << 20;
/// Bytes of a sample in memory besides its tokens and its origin: three allocations, in a list that may be half empty.
const SAMPLE_OVERHEAD: usize = 2 * size_of::<Sample>() + 64;
/// Default of [`Options::max_file_size`].
pub const MAX_FILE_SIZE: u64 = 512 << 20;

/// Treatment of a sample longer than `max_seq_len`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlong {
    /// It is an error.
    #[default]
    Error,
    /// It is skipped and counted.
    Drop,
    /// Its end is cut off, and it is counted. It is an error if no loss token is left.
    Truncate,
}

/// Treatment of a record that cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Invalid {
    /// It is an error.
    #[default]
    Error,
    /// It is skipped and counted.
    Drop,
}

/// A system message that nobody wrote into the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unasked<'a> {
    /// Whether Ollama adds it in use, and not the chat template in training.
    pub ollama: bool,
    /// Its text.
    pub text: &'a str,
}

/// Settings for reading a dataset.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Kind of the records.
    pub supervision: Supervision,
    /// Expected shape.
    pub format: Format,
    /// Template that renders conversations.
    pub template: &'a Template,
    /// Which messages have loss.
    pub train_on: TrainOn,
    /// Maximum tokens per sample.
    pub max_seq_len: usize,
    /// Treatment of longer samples.
    pub overlong: Overlong,
    /// Treatment of records that cannot be used.
    pub invalid: Invalid,
    /// Keys that the records have under other names.
    pub fields: &'a [Field],
    /// System message of conversations that have none.
    pub system: Option<&'a str>,
    /// A system message that conversations without one have in use.
    pub unasked: Option<Unasked<'a>>,
    /// The user's message that shows a teacher the text under "context", with [`PROMPT`] and [`CONTEXT`]; `None` without a teacher.
    pub teacher_prompt: Option<&'a str>,
    /// Maximum bytes of a compressed or Parquet file once decompressed, and of its samples. Small files may take half of it.
    pub max_file_size: u64,
    /// Most tokens of the completion of a prompt, which count as part of it.
    pub completion: usize,
    /// Largest `max_seq_len` that the base takes, for messages.
    pub context: usize,
}

impl<'a> Options<'a> {
    /// The defaults: any shape, loss on answers, samples of any length, and errors for records that cannot be used.
    pub const fn new(template: &'a Template) -> Options<'a> {
        Options {
            supervision: Supervision::Examples,
            format: Format::Auto,
            template,
            train_on: TrainOn::Assistant,
            max_seq_len: usize::MAX,
            overlong: Overlong::Error,
            invalid: Invalid::Error,
            fields: &[],
            system: None,
            unasked: None,
            teacher_prompt: None,
            completion: 0,
            max_file_size: MAX_FILE_SIZE,
            context: usize::MAX,
        }
    }
}

/// The samples of a file, in file order.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// At least one sample, each with loss tokens and at most `max_seq_len` tokens.
    pub samples: Vec<Sample>,
    /// Samples and records that were skipped.
    pub notices: Vec<Notice>,
    /// Detected container and shapes.
    pub found: Found,
}

/// Detected container, compression and shapes of a file.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Found {
    /// Container of the records.
    pub container: Container,
    /// Compression, if any.
    pub compression: Option<Compression>,
    /// Shapes, each with its number of samples.
    pub shapes: Vec<(Format, usize)>,
}

/// Parses the bytes of a file. `name`: the file's name in messages, whose ending tells tables and plain text from JSON. Returns
/// the first error in file order.
pub fn parse(
    bytes: &[u8],
    name: &str,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<Dataset, DatasetError> {
    let failed = |problem: Problem| problem.at(name);
    file_kind::check(bytes).map_err(failed)?;
    let most = if bytes.len() < SMALL_FILE { options.max_file_size / 2 } else { options.max_file_size };
    let unpacked = container::unpack(bytes, most).map_err(failed)?;
    let compression = unpacked.compression;
    if compression.is_some() {
        file_kind::check(&unpacked.bytes).map_err(failed)?;
    }
    let ending = Ending::of(name);
    let (container, tally, samples) = if ending == Ending::Text && !records::starts_as_json(&unpacked.bytes) {
        let mut tally = Tally::default();
        let parts = document::parts(&unpacked.bytes, tokenizer, options).map_err(failed)?;
        let samples = tally.parts(parts, name);
        (Container::Text, tally, samples)
    } else {
        let (text, not_numbers) = records::without_nan(&unpacked.bytes, ending);
        let records = records::records(&text, ending, most).map_err(failed)?;
        let expands = compression.is_some() || records.container == Container::Parquet;
        let reader = Reader { name, tokenizer, options, most: expands.then_some(most) };
        let container = records.container;
        let (mut tally, samples) = reader.read(records)?;
        tally.not_numbers = not_numbers;
        (container, tally, samples)
    };
    tally.check(options, container, samples.len()).map_err(failed)?;
    let found = Found { container, compression, shapes: tally.shapes.clone() };
    let notices = tally.notices(options, container);
    let notices = notices.into_iter().map(|what| Notice { place: name.to_owned(), what }).collect();
    Ok(Dataset { samples, notices, found })
}

/// Reads the records of one file.
struct Reader<'a> {
    name: &'a str,
    tokenizer: &'a Tokenizer,
    options: &'a Options<'a>,
    /// Maximum size of all samples in memory, in bytes.
    most: Option<u64>,
}

impl Reader<'_> {
    fn read(&self, mut records: Records) -> Result<(Tally, Vec<Sample>), DatasetError> {
        let Reader { name, tokenizer, options, most } = *self;
        let unit = records.container.unit();
        let mut tally = Tally::default();
        tally.ignored.extend(std::mem::take(&mut records.ignored).into_iter().map(|key| (key, 1)));
        let (mut samples, mut size) = (Vec::new(), 0u64);
        loop {
            let (chunk, failure) = chunk(&mut records);
            let ended = chunk.is_empty();
            let one = |(number, record): (usize, Record)| (number, one(record, tokenizer, options));
            let parsed: Vec<(usize, Result<Read, Problem>)> = chunk.into_par_iter().map(one).collect();
            for (number, parsed) in parsed {
                let origin = || format!("{name} {unit} {number}");
                match parsed {
                    Ok(mut read) => {
                        let (mut taught, row) = (read.taught.take(), read.row.take());
                        for (side, rendered) in tally.count(number, read) {
                            let sample = one_sample(rendered, taught.take(), side, origin());
                            let sample = Sample { row: row.clone(), ..sample };
                            size += sample_bytes(&sample);
                            samples.push(sample);
                        }
                    }
                    Err(problem) if options.invalid == Invalid::Drop => tally.drop(number, problem),
                    Err(problem) => return Err(problem.at(origin())),
                }
            }
            if let Some(most) = most.filter(|most| size > *most) {
                return Err(Problem::TooLarge { what: "the tokens of its samples".into(), most }.at(name));
            }
            match failure {
                Some(problem) => return Err(problem.at(name)),
                None if ended => return Ok((tally, samples)),
                None => {}
            }
        }
    }
}

/// A sample with the row that a teacher reads in its place, if it is another one.
fn one_sample(rendered: Rendered, taught: Option<Rendered>, side: Side, origin: String) -> Sample {
    let Rendered { ids, labels, .. } = rendered;
    let taught = taught.map(|taught| Box::new(one_sample(taught, None, side, origin.clone())));
    Sample { ids, labels, origin, side, taught, row: None }
}

/// Bytes of a sample in memory.
fn sample_bytes(sample: &Sample) -> u64 {
    let taught = sample.taught.as_deref().map_or(0, sample_bytes);
    // As values, columns take several times as much as their text.
    let row = sample
        .row
        .as_ref()
        .map_or(0, |row| 8 * row.columns.values().map(|value| value.to_string().len()).sum::<usize>());
    taught + (SAMPLE_OVERHEAD + sample.origin.len() + 8 * sample.ids.len() + row) as u64
}

/// The next records, and the error that ends the file after them.
fn chunk<'a>(records: &mut Records<'a>) -> (Vec<(usize, Record<'a>)>, Option<Problem>) {
    let (mut chunk, mut size) = (Vec::new(), 0);
    while chunk.len() < RECORDS_AT_A_TIME && size < BYTES_AT_A_TIME {
        match records.iter.next() {
            Some(Ok(record)) => {
                size += record.1.len();
                chunk.push(record);
            }
            Some(Err(problem)) => return (chunk, Some(problem)),
            None => break,
        }
    }
    (chunk, None)
}

/// Parses one record.
fn one(record: Record, tokenizer: &Tokenizer, options: &Options) -> Result<Read, Problem> {
    match record.len() {
        bytes if bytes > LARGEST_RECORD => Err(Problem::LargeRecord { bytes, most: LARGEST_RECORD }),
        _ if options.supervision == Supervision::Prompts => {
            prompts::read(record.object()?, tokenizer, options)
        }
        _ if options.supervision != Supervision::Examples => {
            preference::read(record.object()?, tokenizer, options)
        }
        _ => sample(record.object()?, tokenizer, options),
    }
}

/// The conversation of a record in the `messages` shape, before rendering.
pub fn conversation(object: &Map<String, Value>) -> Result<crate::data::template::Conversation, Problem> {
    conversation::read(object, "messages", &mut record::Ignored::default())
}
