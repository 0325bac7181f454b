//! Files to samples: six record shapes, one module each, in three kinds of containers.
//!
//! Parsing is strict: a record that cannot be used is an error that names file, record and field, and every skipped record is
//! reported as a [`Notice`]. [`parse`] is a pure function of bytes; only [`files`] and [`cache`] access the disk.

mod alpaca;
pub mod cache;
mod container;
mod duplicates;
mod error;
pub mod files;
mod input_ids;
mod messages;
mod notice;
#[cfg(feature = "parquet")]
mod parquet;
mod prompt_completion;
mod record;
mod shape;
mod sharegpt;
mod split;
mod text;
mod tools;

use rayon::prelude::*;
use serde_json::{Map, Value};

use crate::data::batch::Sample;
use crate::data::template::{Rendered, Template, TrainOn};
use crate::data::tokenizer::Tokenizer;

pub use container::{Compression, Container};
pub use duplicates::duplicates;
pub use error::{DatasetError, Problem};
pub use notice::{Notice, What};
pub use shape::Format;
pub use split::{Split, split};

/// Number of records that are parsed in parallel before errors are checked.
const RECORDS_AT_A_TIME: usize = 8192;

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

/// How a dataset is read.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Expected shape.
    pub format: Format,
    /// How conversations are rendered.
    pub template: &'a Template,
    /// Which messages have loss.
    pub train_on: TrainOn,
    /// Maximum tokens per sample.
    pub max_seq_len: usize,
    /// How longer samples are treated.
    pub overlong: Overlong,
    /// How records that cannot be used are treated.
    pub invalid: Invalid,
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

/// Parses the bytes of a file. `name`: the file's name in messages. Returns the first error in file order.
pub fn parse(
    bytes: &[u8],
    name: &str,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<Dataset, DatasetError> {
    let unpacked = container::unpack(bytes).map_err(|problem| problem.at(name))?;
    let records = container::records(&unpacked).map_err(|problem| problem.at(name))?;
    let container = records.container();
    let mut tally = Tally::default();
    let mut samples = Vec::with_capacity(records.len());
    let numbers: Vec<usize> = (0..records.len()).collect();
    for numbers in numbers.chunks(RECORDS_AT_A_TIME) {
        let one = |&index: &usize| records.get(index).and_then(|object| sample(&object, tokenizer, options));
        let parsed: Vec<Result<Read, Problem>> = numbers.par_iter().map(one).collect();
        for (&index, parsed) in numbers.iter().zip(parsed) {
            let origin = || format!("{name} {} {}", container.unit(), index + 1);
            match parsed {
                Ok(read) => {
                    if let Some(rendered) = tally.count(read) {
                        let Rendered { ids, labels, .. } = rendered;
                        samples.push(Sample { ids, labels, origin: origin() });
                    }
                }
                Err(problem) if options.invalid == Invalid::Drop && problem.is_of_one_record() => {
                    tally.invalid.0 += 1;
                    tally.invalid.1.get_or_insert((index + 1, problem.to_string()));
                }
                Err(problem) => return Err(problem.at(origin())),
            }
        }
    }
    if samples.is_empty() {
        let (invalid, max_seq_len) = (tally.invalid.1, options.max_seq_len);
        return Err(Problem::NoSamples { container, dropped: tally.overlong, invalid, max_seq_len }.at(name));
    }
    let found = Found { container, compression: unpacked.compression, shapes: tally.shapes.clone() };
    let notices = tally.notices(options, container, records.len());
    let notices = notices.into_iter().map(|what| Notice { place: name.to_owned(), what }).collect();
    Ok(Dataset { samples, notices, found })
}

/// Result of one record.
struct Read {
    /// `None`: dropped, because it is too long.
    rendered: Option<Rendered>,
    shape: Format,
    /// Number of tokens before truncation.
    length: usize,
    overlong: bool,
    control_tokens: bool,
    left_out: bool,
    ignored: Vec<String>,
}

/// Results of a file's records.
#[derive(Default)]
struct Tally {
    total: usize,
    shapes: Vec<(Format, usize)>,
    overlong: usize,
    longest: usize,
    control_tokens: usize,
    left_out: usize,
    ignored: Vec<(String, usize)>,
    invalid: (usize, Option<(usize, String)>),
}

impl Tally {
    fn count(&mut self, read: Read) -> Option<Rendered> {
        self.total += 1;
        if read.overlong {
            self.overlong += 1;
            self.longest = self.longest.max(read.length);
        }
        self.control_tokens += usize::from(read.control_tokens);
        self.left_out += usize::from(read.left_out);
        read.ignored.into_iter().for_each(|key| increment(&mut self.ignored, key));
        if read.rendered.is_some() {
            increment(&mut self.shapes, read.shape);
        }
        read.rendered
    }

    fn notices(self, options: &Options, container: Container, records: usize) -> Vec<What> {
        let mut notices = Vec::new();
        let (total, max_seq_len) = (self.total, options.max_seq_len);
        if self.overlong > 0 {
            let (action, count, longest) = (options.overlong, self.overlong, self.longest);
            notices.push(What::Overlong { action, count, total, longest, max_seq_len });
        }
        if let (count, Some((number, problem))) = self.invalid {
            notices.push(What::Invalid { count, total: records, number, problem, container });
        }
        if self.control_tokens > 0 {
            notices.push(What::ControlTokens(self.control_tokens));
        }
        if self.left_out > 0 {
            notices.push(What::LeftOut(self.left_out));
        }
        if !self.ignored.is_empty() {
            notices.push(What::IgnoredKeys { keys: self.ignored, container });
        }
        notices
    }
}

fn increment<T: PartialEq>(counts: &mut Vec<(T, usize)>, key: T) {
    match counts.iter_mut().find(|(seen, _)| *seen == key) {
        Some((_, count)) => *count += 1,
        None => counts.push((key, 1)),
    }
}

/// Converts one record to a sample.
fn sample(object: &Map<String, Value>, tokenizer: &Tokenizer, options: &Options) -> Result<Read, Problem> {
    let mut ignored = record::Ignored::default();
    let mut control_tokens = false;
    let shape = shape::shape(object, options.format)?;
    let conversation = match shape {
        Format::Messages | Format::Auto => Some(messages::conversation(object, "messages", &mut ignored)?),
        Format::PromptCompletion => Some(prompt_completion::conversation(object, &mut ignored)?),
        Format::Alpaca => Some(alpaca::conversation(object, &mut ignored)?),
        Format::Sharegpt => Some(sharegpt::conversation(object, &mut ignored)?),
        Format::Text | Format::InputIds => None,
    };
    let rendered = match conversation {
        Some(conversation) => options.template.render(tokenizer, &conversation, options.train_on)?,
        None if shape == Format::Text => {
            let (rendered, spelled) = text::sample(object, tokenizer, &mut ignored)?;
            control_tokens = spelled;
            rendered
        }
        None => input_ids::sample(object, tokenizer, &mut ignored)?,
    };
    let (length, left_out) = (rendered.ids.len(), rendered.left_out);
    if !record::has_loss(&rendered) {
        return Err(Problem::NoLoss { length });
    }
    let (overlong, rendered) = (length > options.max_seq_len, fit(rendered, options)?);
    Ok(Read { rendered, shape, length, overlong, control_tokens, left_out, ignored: ignored.0 })
}

/// Truncates an overlong sample. Returns `None` if it is dropped.
fn fit(mut rendered: Rendered, options: &Options) -> Result<Option<Rendered>, Problem> {
    let (length, max_seq_len) = (rendered.ids.len(), options.max_seq_len);
    if length <= max_seq_len {
        return Ok(Some(rendered));
    }
    match options.overlong {
        Overlong::Error => Err(Problem::Overlong { length, max_seq_len }),
        Overlong::Drop => Ok(None),
        Overlong::Truncate => {
            rendered.ids.truncate(max_seq_len);
            rendered.labels.truncate(max_seq_len);
            if !record::has_loss(&rendered) {
                return Err(Problem::TruncatedLoss { length, max_seq_len });
            }
            Ok(Some(rendered))
        }
    }
}

/// The conversation of a record in the `messages` shape, before rendering.
pub fn conversation(object: &Map<String, Value>) -> Result<crate::data::template::Conversation, Problem> {
    messages::conversation(object, "messages", &mut record::Ignored::default())
}
