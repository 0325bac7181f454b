//! The container of a file's records: JSON Lines, a JSON array (both optionally compressed by gzip or zstd), or Parquet.
//! Containers are recognized by their first bytes, not by file names.

use std::borrow::Cow;
use std::io::Read;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::error::Problem;
use super::record;

/// Container of a file's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Container {
    /// One JSON object per line.
    Lines,
    /// One JSON array of objects.
    Array,
    /// Rows of a Parquet file.
    Parquet,
}

impl Container {
    /// The name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Container::Lines => "JSON Lines",
            Container::Array => "JSON array",
            Container::Parquet => "Parquet",
        }
    }

    /// The word for one of its records in messages. Records count from 1.
    pub fn unit(self) -> &'static str {
        match self {
            Container::Lines => "line",
            Container::Array => "item",
            Container::Parquet => "row",
        }
    }
}

/// Compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Compression {
    /// gzip (RFC 1952), with one or several members.
    Gzip,
    /// zstd (RFC 8878).
    Zstd,
}

impl Compression {
    /// The name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }
}

/// A file's bytes, uncompressed.
pub(super) struct Unpacked<'a> {
    pub bytes: Cow<'a, [u8]>,
    pub compression: Option<Compression>,
}

/// Decompresses a file if it is compressed.
pub(super) fn unpack(bytes: &[u8]) -> Result<Unpacked<'_>, Problem> {
    let compression = match bytes {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
        _ => return Ok(Unpacked { bytes: bytes.into(), compression: None }),
    };
    let mut out = Vec::new();
    let result = match compression {
        Compression::Gzip => flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut out).map(drop),
        Compression::Zstd => unpack_zstd(bytes, &mut out),
    };
    match result {
        Ok(()) => Ok(Unpacked { bytes: out.into(), compression: Some(compression) }),
        Err(error) => {
            Err(Problem::Compressed { compression: compression.name(), message: error.to_string() })
        }
    }
}

#[cfg(feature = "zstd")]
fn unpack_zstd(bytes: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
    zstd::stream::copy_decode(bytes, out)
}

#[cfg(not(feature = "zstd"))]
fn unpack_zstd(_: &[u8], _: &mut Vec<u8>) -> std::io::Result<()> {
    Err(std::io::Error::other(
        "this build does not support zstd; build it with the feature \"zstd\", or decompress the file",
    ))
}

/// The records of a file, in order.
pub(super) enum Records<'a> {
    /// JSON texts, one per object.
    Texts(Container, Vec<&'a [u8]>),
    /// Rows as JSON objects.
    Rows(Vec<Map<String, Value>>),
}

impl Records<'_> {
    pub fn container(&self) -> Container {
        match self {
            Records::Texts(container, _) => *container,
            Records::Rows(_) => Container::Parquet,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Records::Texts(_, texts) => texts.len(),
            Records::Rows(rows) => rows.len(),
        }
    }

    /// The record at `index`, from 0.
    pub fn get(&self, index: usize) -> Result<Cow<'_, Map<String, Value>>, Problem> {
        match self {
            Records::Texts(_, texts) => record::object(texts[index]).map(Cow::Owned),
            Records::Rows(rows) => Ok(Cow::Borrowed(&rows[index])),
        }
    }
}

/// Splits a file into records. Accepts a byte order mark, CRLF line endings, and empty lines at the end.
pub(super) fn records<'a>(unpacked: &'a Unpacked) -> Result<Records<'a>, Problem> {
    if unpacked.bytes.starts_with(b"PAR1") {
        return rows(&unpacked.bytes).map(Records::Rows);
    }
    let bytes = &unpacked.bytes;
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes).trim_ascii_end();
    if bytes.trim_ascii_start().starts_with(b"[") && !is_line(bytes) {
        return array(bytes).map(|items| Records::Texts(Container::Array, items));
    }
    // `split` on an empty text yields one empty line.
    let lines = bytes.split(|&b| b == b'\n').filter(|_| !bytes.is_empty()).collect();
    Ok(Records::Texts(Container::Lines, lines))
}

/// Whether the first line is a complete JSON array and more lines follow: such a file is JSON Lines whose records are not
/// objects, which is an error.
fn is_line(bytes: &[u8]) -> bool {
    let mut lines = bytes.splitn(2, |&b| b == b'\n');
    let first = lines.next().unwrap_or_default();
    lines.next().is_some() && serde_json::from_slice::<&RawValue>(first).is_ok()
}

fn array(bytes: &[u8]) -> Result<Vec<&[u8]>, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|error| Problem::Utf8(error.valid_up_to() + 1))?;
    let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| Problem::JsonArray {
        line: error.line(),
        column: error.column(),
        message: record::message(&error),
    })?;
    Ok(items.into_iter().map(|item| item.get().as_bytes()).collect())
}

#[cfg(feature = "parquet")]
fn rows(bytes: &[u8]) -> Result<Vec<Map<String, Value>>, Problem> {
    super::parquet::rows(bytes)
}

#[cfg(not(feature = "parquet"))]
fn rows(_: &[u8]) -> Result<Vec<Map<String, Value>>, Problem> {
    Err(Problem::Parquet("this build does not support Parquet; build it with the feature \"parquet\"".into()))
}
