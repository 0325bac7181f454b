//! Changes inputs with knowledge of their structure: lengths, counts, offsets, types, nesting, NaN, huge shapes, duplicate names,
//! bombs.

mod bytes;
mod gguf;
mod json;
mod text;

use std::io::{Read, Write};

pub use gguf::GgufWriter;

use crate::rng::Rng;
use crate::targets::files::{pack, unpack};

/// The structure of an input.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Numbers and arrays in binary.
    Bytes,
    /// Lines, keys and numbers.
    Text,
    /// One JSON value.
    Json,
    /// A GGUF file.
    Gguf,
    /// A safetensors file.
    SafeTensors,
    /// A file compressed by gzip.
    Gzip,
    /// A file compressed by zstd.
    Zstd,
    /// Several files: see [`pack`].
    Files(&'static [Kind]),
}

/// Largest input: bombs must be small to count.
pub const MOST_BYTES: usize = 256 << 10;

/// A changed copy of `input`.
pub fn mutate(rng: &mut Rng, kind: Kind, input: &[u8]) -> Vec<u8> {
    let mut changed = input.to_vec();
    for _ in 0..[1, 1, 1, 2, 2, 3, 5][rng.below(7)] {
        changed = once(rng, kind, changed);
        changed.truncate(MOST_BYTES);
    }
    changed
}

fn once(rng: &mut Rng, kind: Kind, input: Vec<u8>) -> Vec<u8> {
    let is_plain = rng.once_in(4);
    match kind {
        Kind::Text if !is_plain => text::mutate(rng, input),
        Kind::Json if !is_plain => json::mutate(rng, input),
        Kind::Gguf if !is_plain => gguf::mutate(rng, input),
        Kind::SafeTensors if !is_plain => safetensors(rng, input),
        Kind::Gzip if !is_plain => {
            let mut inside = Vec::new();
            let _ = flate2::read::MultiGzDecoder::new(&input[..])
                .take(MOST_BYTES as u64)
                .read_to_end(&mut inside);
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            out.write_all(&inside_of_archive(rng, inside)).expect("in memory");
            out.finish().expect("in memory")
        }
        Kind::Zstd if !is_plain => {
            let mut inside = Vec::new();
            if let Ok(decoder) = zstd::Decoder::new(&input[..]) {
                let _ = decoder.take(MOST_BYTES as u64).read_to_end(&mut inside);
            }
            zstd::encode_all(&inside_of_archive(rng, inside)[..], 1).expect("in memory")
        }
        Kind::Files(kinds) => {
            let mut files: Vec<Vec<u8>> =
                unpack(&input, kinds.len()).iter().map(|file| file.unwrap_or_default().to_vec()).collect();
            let at = rng.below(files.len());
            match rng.below(12) {
                0 => files[at].clear(),
                1 => files.truncate(at),
                2 => {
                    let other = rng.below(files.len());
                    files[at] = files[other].clone();
                }
                _ => files[at] = once(rng, kinds[at], std::mem::take(&mut files[at])),
            }
            pack(&files)
        }
        _ => bytes::mutate(rng, input),
    }
}

/// Changed lines, or a bomb of up to 64 MiB: much that compresses to little.
fn inside_of_archive(rng: &mut Rng, inside: Vec<u8>) -> Vec<u8> {
    if rng.once_in(1000) {
        let units = [&b"\n"[..], b"0", b"[", b"0,", b"{\"text\": \"a\"}\n"];
        let unit = units[rng.below(units.len())];
        return unit.repeat((1 << (16 + rng.below(11))) / unit.len());
    }
    text::mutate(rng, inside)
}

/// Changes the header of a safetensors file, and makes its length right again.
fn safetensors(rng: &mut Rng, input: Vec<u8>) -> Vec<u8> {
    let length = input.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    let Some(header) = input.get(8..).and_then(|rest| rest.get(..length)) else {
        return bytes::mutate(rng, input);
    };
    let (header, data) = (header.to_vec(), input[8 + length..].to_vec());
    if rng.once_in(4) {
        let data = bytes::mutate(rng, data);
        return [&input[..8 + length], &data].concat();
    }
    let header = json::mutate(rng, header);
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
