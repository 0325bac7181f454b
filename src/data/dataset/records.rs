//! The records of a file, one at a time, so that a small file cannot fill the memory.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::bytes::{Captures, Regex};
use serde_json::value::RawValue;

use super::container::Ending;
use super::error::Problem;
use super::kinds::{self, Container};
use super::record::{Numbered, Record};
use super::{record, table};

/// The records of a file.
pub(super) struct Records<'a> {
    pub container: Container,
    /// Keys beside the list of an object that wraps it.
    pub ignored: Vec<String>,
    pub iter: Box<dyn Iterator<Item = Numbered<'a>> + 'a>,
}

/// Keys under which a file may have its only list of records.
const WRAPPERS: [&str; 6] = ["data", "samples", "examples", "items", "records", "train"];

/// Words of Python's JSON that JSON lacks.
static NOT_NUMBERS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#""(?:[^"\\\n]|\\.)*"|-?\b(?:NaN|Infinity)\b"#).expect("valid"));

/// Replaces NaN and Infinity, as Python's json writes them, by null. Returns their number too.
pub(super) fn without_nan<'a>(bytes: &'a [u8], ending: Ending) -> (Cow<'a, [u8]>, usize) {
    let start = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes).trim_ascii_start();
    let is_json = ending == Ending::Other && start.starts_with(b"{") || start.starts_with(b"[");
    if !is_json || bytes.starts_with(b"PAR1") || !["NaN", "Infinity"].iter().any(|word| find(bytes, word)) {
        return (bytes.into(), 0);
    }
    let mut count = 0;
    let replaced = NOT_NUMBERS.replace_all(bytes, |found: &Captures| match &found[0] {
        text if text.starts_with(b"\"") => text.to_vec(),
        _ => {
            count += 1;
            b"null".to_vec()
        }
    });
    (replaced.into_owned().into(), count)
}

fn find(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

/// Splits the bytes of an uncompressed file into records. Accepts a byte order mark, CRLF line endings, and empty lines.
/// `most`: limit in bytes for what a Parquet file decompresses to.
pub(super) fn records(bytes: &[u8], ending: Ending, most: u64) -> Result<Records<'_>, Problem> {
    if bytes.starts_with(b"PAR1") {
        return Ok(records_of(Container::Parquet, rows(bytes, most)?));
    }
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes).trim_ascii_end();
    if let Ending::Table(separator) = ending
        && !starts_as_json(bytes)
    {
        return Ok(records_of(Container::Table, Box::new(table::rows(bytes, separator)?)));
    }
    let text = bytes.trim_ascii_start();
    if text.starts_with(b"[") && !first_line_is_value(bytes) {
        let start = bytes.len() - text.len() + 1;
        return Ok(records_of(Container::Array, Box::new(Values::items(bytes, start)?)));
    }
    if text.starts_with(b"{")
        && let Some(found) = objects(bytes)?
    {
        return Ok(found);
    }
    let lines = bytes.split(|&b| b == b'\n').enumerate();
    let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
    let lines = lines.map(|(index, line)| Ok((index + 1, Record::Text(line))));
    Ok(records_of(Container::Lines, Box::new(lines)))
}

/// Whether the first line is a JSON object or list, whatever the file's ending says.
pub(super) fn starts_as_json(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"{") && first_line_is_value(bytes.trim_ascii_start())
}

fn records_of<'a>(container: Container, iter: Box<dyn Iterator<Item = Numbered<'a>> + 'a>) -> Records<'a> {
    Records { container, ignored: Vec::new(), iter }
}

/// Whether the first line is a complete JSON value and more lines follow: such a file is JSON Lines.
fn first_line_is_value(bytes: &[u8]) -> bool {
    let mut lines = bytes.splitn(2, |&b| b == b'\n');
    let first = lines.next().unwrap_or_default();
    let more = lines.next().is_some() || first.starts_with(b"{");
    more && serde_json::from_slice::<&RawValue>(first).is_ok()
}

/// Objects that are not one per line, or one object around a list. `None` for JSON Lines, and for text whose first value is
/// broken: there an error with the number of the line is the most useful.
fn objects(bytes: &[u8]) -> Result<Option<Records<'_>>, Problem> {
    let mut values = Values::concatenated(bytes);
    let Some(Ok(first)) = values.next_value() else { return Ok(None) };
    let only = bytes[values.at..].trim_ascii().is_empty();
    if let Some((start, ignored)) = wrapped(bytes, first).filter(|_| only) {
        let items = Values::items(bytes, start)?;
        return Ok(Some(Records { container: Container::Array, ignored, iter: Box::new(items) }));
    }
    if let Some(key) = keyed(first).filter(|_| only) {
        return Err(Problem::Keyed(key));
    }
    let line_end = bytes.iter().position(|&b| b == b'\n').unwrap_or(bytes.len());
    if values.at <= line_end && bytes[values.at..line_end].trim_ascii().is_empty() {
        return Ok(None);
    }
    Ok(Some(records_of(Container::Objects, Box::new(Values::concatenated(bytes)))))
}

/// The first key of an object whose values are records.
fn keyed(object: &[u8]) -> Option<String> {
    let members = record::members(object)?;
    let is_record = |value: &RawValue| {
        let members = record::members(value.get().as_bytes()).unwrap_or_default();
        let keys: Vec<&str> = members.iter().map(|(key, _)| key.as_str()).collect();
        kinds::identifies(&keys) || keys.contains(&"chosen")
    };
    members.iter().all(|(_, value)| is_record(value)).then(|| members.first().map(|(key, _)| key.clone()))?
}

/// If an object is no sample but holds one list of them: the offset in the file after the list's bracket, and its other keys.
fn wrapped(bytes: &[u8], object: &[u8]) -> Option<(usize, Vec<String>)> {
    let members: Vec<(String, &RawValue)> = record::members(object)?;
    let keys: Vec<&str> = members.iter().map(|(key, _)| key.as_str()).collect();
    if kinds::identifies(&keys) {
        return None;
    }
    let is_list = |value: &RawValue| {
        let text = value.get();
        text.starts_with('[') && text[1..].trim_start().starts_with(['{', ']'])
    };
    let mut lists = members.iter().filter(|(key, value)| WRAPPERS.contains(&key.as_str()) && is_list(value));
    let ((name, list), None) = (lists.next()?, lists.next()) else { return None };
    let start = list.get().as_ptr() as usize - bytes.as_ptr() as usize + 1;
    let others = keys.iter().filter(|key| *key != name).map(|key| (*key).to_owned());
    Some((start, others.collect()))
}

/// JSON values one after another, or the items of a list.
struct Values<'a> {
    bytes: &'a [u8],
    /// Offset of the next value.
    at: usize,
    /// Number of values so far.
    count: usize,
    /// Whether commas separate the values and a bracket ends them.
    list: bool,
    ended: bool,
}

impl<'a> Values<'a> {
    fn concatenated(bytes: &'a [u8]) -> Values<'a> {
        Values { bytes, at: 0, count: 0, list: false, ended: false }
    }

    /// The items of a list. `at`: offset after its bracket.
    fn items(bytes: &'a [u8], at: usize) -> Result<Values<'a>, Problem> {
        std::str::from_utf8(bytes).map_err(|error| Problem::Utf8(error.valid_up_to() + 1))?;
        Ok(Values { bytes, at, count: 0, list: true, ended: false })
    }

    /// The text of the next value.
    fn next_value(&mut self) -> Option<Result<&'a [u8], Problem>> {
        self.skip_space();
        let rest = &self.bytes[self.at..];
        let end = if self.list { rest.first() == Some(&b']') } else { rest.is_empty() };
        if self.ended || end {
            self.ended = true;
            return None;
        }
        if self.list && self.count > 0 {
            if rest[..1.min(rest.len())] != *b"," {
                return Some(Err(self.broken(self.at, "expected `,` or `]`")));
            }
            self.at += 1;
            self.skip_space();
        }
        let rest = &self.bytes[self.at..];
        let mut stream = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>();
        match stream.next() {
            Some(Ok(value)) => {
                let start = value.get().as_ptr() as usize - self.bytes.as_ptr() as usize;
                self.at += stream.byte_offset();
                self.count += 1;
                Some(Ok(&self.bytes[start..start + value.get().len()]))
            }
            Some(Err(error)) => {
                let before: usize =
                    rest.split_inclusive(|&b| b == b'\n').take(error.line() - 1).map(<[_]>::len).sum();
                let at = self.at + before + error.column().saturating_sub(1);
                Some(Err(self.broken(at, &record::message(&error))))
            }
            None => Some(Err(self.broken(self.at, "EOF while parsing a list"))),
        }
    }

    fn skip_space(&mut self) {
        let rest = &self.bytes[self.at..];
        self.at += rest.len() - rest.trim_ascii_start().len();
    }

    /// The error at an offset, after which nothing more is read.
    fn broken(&mut self, at: usize, message: &str) -> Problem {
        self.ended = true;
        let before = &self.bytes[..at.min(self.bytes.len())];
        let line = before.iter().filter(|&&b| b == b'\n').count() + 1;
        let column = before.len() - before.iter().rposition(|&b| b == b'\n').map_or(0, |n| n + 1) + 1;
        let expected = if self.list { "an array of objects" } else { "objects" };
        Problem::JsonArray { expected, line, column, message: message.into() }
    }
}

impl<'a> Iterator for Values<'a> {
    type Item = Numbered<'a>;

    fn next(&mut self) -> Option<Numbered<'a>> {
        let value = self.next_value()?;
        Some(value.map(|text| (self.count, Record::Text(text))))
    }
}

#[cfg(feature = "parquet")]
fn rows<'a>(bytes: &[u8], most: u64) -> Result<Box<dyn Iterator<Item = Numbered<'a>>>, Problem> {
    super::parquet::rows(bytes, most)
}

#[cfg(not(feature = "parquet"))]
fn rows<'a>(_: &[u8], _: u64) -> Result<Box<dyn Iterator<Item = Numbered<'a>>>, Problem> {
    let advice = match cfg!(target_arch = "wasm32") {
        true => "a page does not read Parquet; save the table as JSON Lines or CSV, or use the program",
        false => "this build does not support Parquet; build it with the feature \"parquet\"",
    };
    Err(Problem::Parquet(advice.into()))
}
