//! JSON Lines to samples: one JSON object a line, in one of three shapes, each in a file of its own.
//!
//! Strict: what cannot be used is refused with file and line, and whatever is left out is returned as a [`Notice`].

mod error;
mod input_ids;
mod line;
mod messages;
mod prompt_completion;
mod split;

use std::fmt;
use std::path::Path;

use serde_json::{Map, Value};

use crate::batch::Sample;
use crate::template::{Layout, Rendered};
use crate::tokenizer::Tokenizer;

pub use error::{DatasetError, Problem};
pub use split::{Split, split};

/// Which shape the lines have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Whichever of the three each line's keys show; shapes may be mixed.
    #[default]
    Auto,
    /// `{"messages": [{"role", "content"}, …]}`.
    Messages,
    /// `{"prompt", "completion"}`: two strings, rendered as one user and one assistant turn, or two message lists.
    PromptCompletion,
    /// `{"input_ids": […], "labels": […]}`, taken as they are.
    InputIds,
}

/// What happens to a sample longer than `max_seq_len`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlong {
    /// It is refused.
    #[default]
    Error,
    /// It is left out, and counted.
    Drop,
    /// Its end is cut off, and it is counted; refused where no loss is left.
    Truncate,
}

/// How a dataset is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Expected shape.
    pub format: Format,
    /// The model's chat layout.
    pub layout: Layout,
    /// Longest sample, in tokens.
    pub max_seq_len: usize,
    /// What happens to longer ones.
    pub overlong: Overlong,
}

/// Something that was left out, to be shown to the user.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// Keys that play no part in training, with the number of lines that have them, in order of appearance.
    IgnoredKeys {
        /// File name.
        file: String,
        /// Key and lines.
        keys: Vec<(String, usize)>,
    },
    /// Samples longer than `max_seq_len`.
    Overlong {
        /// File name.
        file: String,
        /// [`Overlong::Drop`] or [`Overlong::Truncate`].
        action: Overlong,
        /// How many of them.
        count: usize,
        /// How many samples the file has, these included.
        total: usize,
        /// Tokens of the longest.
        longest: usize,
        /// The limit.
        max_seq_len: usize,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::IgnoredKeys { file, keys } => {
                let lines = |n: usize| if n == 1 { "line" } else { "lines" };
                let keys: Vec<String> =
                    keys.iter().map(|(key, n)| format!("{key} ({n} {})", lines(*n))).collect();
                write!(f, "{file}: ignored keys: {}", keys.join(", "))
            }
            Notice::Overlong { file, action, count, total, longest, max_seq_len } => {
                let action = if *action == Overlong::Drop { "dropped" } else { "truncated" };
                write!(
                    f,
                    "{file}: {action} {count} of {total} samples, longer than max_seq_len = {max_seq_len} tokens \
                     (the longest has {longest})"
                )
            }
        }
    }
}

/// The samples of a file, in its order.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// At least one sample, each with loss and at most `max_seq_len` tokens.
    pub samples: Vec<Sample>,
    /// What was left out.
    pub notices: Vec<Notice>,
}

/// Reads a `.jsonl` file; the only function here that touches the disk.
pub fn read_path(path: &Path, tokenizer: &Tokenizer, options: &Options) -> Result<Dataset, DatasetError> {
    let name = path.display().to_string();
    match std::fs::read(path) {
        Ok(bytes) => parse(&bytes, &name, tokenizer, options),
        Err(error) => Err(Problem::Read(error.to_string()).at(name)),
    }
}

/// Parses the bytes of a `.jsonl` file; `name` stands in messages. A byte order mark, CRLF and empty lines at the
/// end are accepted.
pub fn parse(
    bytes: &[u8],
    name: &str,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<Dataset, DatasetError> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes).trim_ascii_end();
    let mut samples = Vec::new();
    let mut ignored = line::Ignored::default();
    let (mut total, mut overlong, mut longest) = (0, 0, 0);
    // Splitting nothing gives one empty line, which an empty file does not have.
    for (index, line) in bytes.split(|&b| b == b'\n').enumerate().take_while(|_| !bytes.is_empty()) {
        let origin = format!("{name} line {}", index + 1);
        let parsed = line::object(line).and_then(|object| {
            let rendered = sample(&object, tokenizer, options, &mut ignored)?;
            total += 1;
            let length = rendered.ids.len();
            if length > options.max_seq_len {
                (overlong, longest) = (overlong + 1, longest.max(length));
            }
            fit(rendered, options)
        });
        match parsed {
            Ok(Some(Rendered { ids, labels })) => samples.push(Sample { ids, labels, origin }),
            Ok(None) => {}
            Err(problem) => return Err(problem.at(origin)),
        }
        ignored.end_line();
    }
    if samples.is_empty() {
        return Err(Problem::NoSamples { dropped: overlong, max_seq_len: options.max_seq_len }.at(name));
    }
    let mut notices = Vec::new();
    let file = name.to_owned();
    if overlong > 0 {
        let Options { overlong: action, max_seq_len, .. } = *options;
        let file = file.clone();
        notices.push(Notice::Overlong { file, action, count: overlong, total, longest, max_seq_len });
    }
    if !ignored.keys.is_empty() {
        notices.push(Notice::IgnoredKeys { file, keys: ignored.keys });
    }
    Ok(Dataset { samples, notices })
}

/// One line's sample, at its full length.
fn sample(
    object: &Map<String, Value>,
    tokenizer: &Tokenizer,
    options: &Options,
    ignored: &mut line::Ignored,
) -> Result<Rendered, Problem> {
    let layout = options.layout;
    let rendered = match shape(object, options.format)? {
        Format::InputIds => input_ids::sample(object, tokenizer, ignored)?,
        Format::PromptCompletion => prompt_completion::sample(object, tokenizer, layout, ignored)?,
        Format::Messages | Format::Auto => messages::sample(object, tokenizer, layout, ignored)?,
    };
    if !line::has_loss(&rendered) {
        return Err(Problem::NoLoss { length: rendered.ids.len() });
    }
    Ok(rendered)
}

/// The shape that a line's keys show, or the one that is asked for.
fn shape(object: &Map<String, Value>, format: Format) -> Result<Format, Problem> {
    let shapes: [(Format, &[&str]); 3] = [
        (Format::Messages, &["messages"]),
        (Format::PromptCompletion, &["prompt", "completion"]),
        (Format::InputIds, &["input_ids"]),
    ];
    let found: Vec<Format> = shapes
        .into_iter()
        .filter(|(shape, keys)| {
            let asked_for = matches!(format, Format::Auto) || format == *shape;
            asked_for && keys.iter().all(|&key| object.contains_key(key))
        })
        .map(|(shape, _)| shape)
        .collect();
    match found[..] {
        [shape] => Ok(shape),
        [] => Err(Problem::Shape { format, found: object.keys().cloned().collect() }),
        _ => Err(Problem::Ambiguous { found: object.keys().cloned().collect() }),
    }
}

/// The sample as it will be trained, or `None` where it is dropped.
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
            if !line::has_loss(&rendered) {
                return Err(Problem::TruncatedLoss { length, max_seq_len });
            }
            Ok(Some(rendered))
        }
    }
}
