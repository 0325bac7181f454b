//! [`Fingerprint`]: two digests of a base's tensors, by which the base of an adapter is recognized.
//!
//! They cover the text model alone: not the file's name, its other metadata (such as a corrected chat template), the order of
//! its tensors, their names (llama.cpp's or Ollama's), or vision and audio towers. The vocabulary has a digest of its own.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use super::gguf::value::{Array, Value};
use super::{Error, Gguf, Tensor};
use crate::words::hex;

/// Prefix of a fingerprint: the version of the algorithm.
const VERSION: &str = "v1:";
/// Bytes of one digested piece. A tensor of up to four pieces is digested completely; a larger one at four positions, its
/// start and end included. Training or quantizing a model changes bytes everywhere, so it changes the pieces too.
const PIECE: u64 = 16 << 10;

/// The identity of a base. Bases with equal fingerprints are the same to an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Digest of the norms and layer scales. No quantization changes them, so it is equal in all quantizations of a checkpoint.
    pub model: String,
    /// Digest of every tensor in its stored format.
    pub weights: String,
}

/// Relation of a base to the base that an adapter was trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinship {
    /// Identical weights.
    Same,
    /// One checkpoint with other matrices: another quantization, or a merged adapter.
    OtherWeights,
    /// Another model.
    OtherModel,
}

impl Fingerprint {
    /// The fingerprint of the tensors of `gguf`, which need not be in memory. `vector` returns the values of a vector. At most 64 KiB of
    /// each tensor are read.
    pub(super) async fn read(
        gguf: &Gguf,
        tensors: &[Tensor<'_>],
        vector: impl Fn(&str) -> Vec<f32>,
    ) -> Result<Fingerprint, Error> {
        let (mut model, mut weights) = (Sha256::new(), Sha256::new());
        let ranges: Vec<Range<u64>> = tensors.iter().flat_map(|tensor| pieces(&tensor.range)).collect();
        let mut read = gguf.read(&ranges).await?.into_iter();
        for tensor in tensors {
            let head = format!("{} {}×{}", tensor.name, tensor.rows, tensor.cols);
            weights.update(format!("{head} {}\n", tensor.ty.name()));
            for piece in read.by_ref().take(pieces(&tensor.range).len()) {
                weights.update(piece);
            }
            if tensor.rows == 1 {
                model.update(format!("{head}\n"));
                model.update(bytemuck::cast_slice::<f32, u8>(&vector(tensor.name)));
            }
        }
        Ok(Fingerprint { model: half(model), weights: half(weights) })
    }

    /// Relation of the base with this fingerprint to `trained`, the base of an adapter.
    pub fn kinship(&self, trained: &Fingerprint) -> Kinship {
        match (self.model == trained.model, self.weights == trained.weights) {
            (true, true) => Kinship::Same,
            (true, false) => Kinship::OtherWeights,
            (false, _) => Kinship::OtherModel,
        }
    }
}

/// The text in adapter files: version and both digests.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{VERSION}{}-{}", self.model, self.weights)
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Fingerprint, String> {
        let digest = |d: &str| d.len() == 32 && d.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match text.strip_prefix(VERSION).and_then(|both| both.split_once('-')) {
            Some((model, weights)) if digest(model) && digest(weights) => {
                Ok(Fingerprint { model: model.into(), weights: weights.into() })
            }
            _ => Err(format!(
                "{text:?} is not a fingerprint, expected {VERSION} and two digests of 32 hexadecimal digits"
            )),
        }
    }
}

/// SHA-256 of a file's tokens and merges.
pub(super) fn vocabulary(gguf: &Gguf) -> String {
    let mut hash = Sha256::new();
    for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        if let Some(Value::Array(Array::String(texts))) = gguf.value(key) {
            for text in texts {
                hash.update((text.len() as u64).to_le_bytes());
                hash.update(text);
            }
        }
        hash.update(u64::MAX.to_le_bytes());
    }
    hex(&hash.finalize())
}

/// The byte ranges of a tensor that are digested.
fn pieces(range: &Range<u64>) -> Vec<Range<u64>> {
    let bytes = range.end - range.start;
    if bytes <= 4 * PIECE {
        return vec![range.clone()];
    }
    let last = bytes - PIECE;
    [0, last / 3, last / 3 * 2, last].map(|at| range.start + at..range.start + at + PIECE).to_vec()
}

/// Half of the SHA-256 in hexadecimal. Nobody forges a model, so 128 bits are plenty.
fn half(hash: Sha256) -> String {
    hex(&hash.finalize()[..16])
}
