//! The container of a file's records, and its compression. Compression, Parquet and JSON are recognized by the first bytes;
//! tables and plain text, which any bytes could be, by the file's ending.

use std::borrow::Cow;
use std::io::Read;
use std::path::Path;

use super::error::Problem;

/// Container that the ending of a file's name asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// `.csv` or `.tsv`, with the separator that the ending suggests.
    Table(u8),
    /// `.txt` or `.md`.
    Text,
    /// Anything else: the first bytes decide.
    Other,
}

impl Ending {
    /// Looks at a file's name, below `.gz` or `.zst`.
    pub fn of(name: &str) -> Ending {
        match ending(Path::new(name)).as_deref() {
            Some("csv") => Ending::Table(b','),
            Some("tsv" | "tab") => Ending::Table(b'\t'),
            Some("txt" | "md" | "markdown" | "text") => Ending::Text,
            _ => Ending::Other,
        }
    }
}

/// Endings of compressed files.
const COMPRESSED: [&str; 2] = ["gz", "zst"];

/// The ending of a file's name in lower case, below `.gz` or `.zst`.
pub(super) fn ending(path: &Path) -> Option<String> {
    let of = |path: &Path| path.extension().map(|e| e.to_string_lossy().to_lowercase());
    match of(path) {
        Some(last) if COMPRESSED.contains(&last.as_str()) => of(&path.with_extension("")),
        other => other,
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

/// Decompresses a file if it is compressed, to at most `most` bytes.
pub(super) fn unpack(bytes: &[u8], most: u64) -> Result<Unpacked<'_>, Problem> {
    let compression = match bytes {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
        _ => return Ok(Unpacked { bytes: bytes.into(), compression: None }),
    };
    let mut out = Vec::new();
    let one_more = most.saturating_add(1);
    let result = match compression {
        Compression::Gzip => flate2::read::MultiGzDecoder::new(bytes).take(one_more).read_to_end(&mut out),
        Compression::Zstd => unpack_zstd(bytes, one_more, &mut out),
    };
    match result {
        Ok(read) if read as u64 > most => {
            Err(Problem::TooLarge { what: "its decompressed text".into(), most })
        }
        Ok(_) => Ok(Unpacked { bytes: out.into(), compression: Some(compression) }),
        Err(error) => {
            Err(Problem::Compressed { compression: compression.name(), message: error.to_string() })
        }
    }
}

#[cfg(feature = "zstd")]
fn unpack_zstd(bytes: &[u8], most: u64, out: &mut Vec<u8>) -> std::io::Result<usize> {
    zstd::stream::Decoder::with_buffer(bytes)?.take(most).read_to_end(out)
}

#[cfg(not(feature = "zstd"))]
fn unpack_zstd(_: &[u8], _: u64, _: &mut Vec<u8>) -> std::io::Result<usize> {
    Err(std::io::Error::other(
        "this build does not support zstd; build it with the feature \"zstd\", or decompress the file",
    ))
}
