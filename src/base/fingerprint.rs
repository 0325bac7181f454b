//! What a base is recognized by: two digests of its text model's tensors.
//!
//! Neither depends on the file's name, its other metadata (a mended chat template), the order of its tensors, the names that
//! llama.cpp's and Ollama's converters give them, or on vision and audio towers.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use super::source::now;
use super::{Base, Error, Tensor};

/// Stands before a digest; another way of taking it would have another one.
const VERSION: &str = "v1:";
/// A tensor of up to four such pieces is digested whole, of a larger one this many bytes at four places, the first and the
/// last among them: whatever trains or quantizes a model changes more than what lies between.
const PIECE: u64 = 16 << 10;

/// The identity of a base. Two digests are equal exactly where the bases are, as far as an adapter can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Of the norms and layer scales, which no quantization touches: equal in all quantizations of one checkpoint.
    pub model: String,
    /// Of every tensor, as it is stored.
    pub weights: String,
}

/// How close a base is to the one that an adapter was trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinship {
    /// The same weights.
    Same,
    /// The same checkpoint with other matrices: another quantization, or something merged into them.
    OtherWeights,
    /// Another model.
    OtherModel,
}

impl Fingerprint {
    /// The fingerprint of `base`. At most 64 KiB of a tensor are read, once.
    pub fn of(base: &Base) -> Fingerprint {
        base.fingerprint()
    }

    /// The fingerprint of a base that is in memory.
    pub(super) fn of_memory(base: &Base) -> Fingerprint {
        now(Fingerprint::read(base)).expect("nothing can go wrong in memory")
    }

    /// The fingerprint of any base.
    pub(super) async fn read(base: &Base) -> Result<Fingerprint, Error> {
        let (mut model, mut weights) = (Sha256::new(), Sha256::new());
        let tensors: Vec<Tensor> = base.tensors().collect();
        let ranges: Vec<Range<u64>> = tensors.iter().flat_map(|tensor| pieces(&tensor.range)).collect();
        let mut read = base.gguf().read(&ranges).await?.into_iter();
        for tensor in &tensors {
            let head = format!("{} {}×{}", tensor.name, tensor.rows, tensor.cols);
            weights.update(format!("{head} {}\n", tensor.ty.name()));
            for piece in read.by_ref().take(pieces(&tensor.range).len()) {
                weights.update(piece);
            }
            if tensor.rows == 1 {
                model.update(format!("{head}\n"));
                model.update(bytemuck::cast_slice::<f32, u8>(&base.vector(tensor.name)));
            }
        }
        Ok(Fingerprint { model: hex(model), weights: hex(weights) })
    }

    /// What `self`, a base at hand, is to `trained`, that of an adapter.
    pub fn kinship(&self, trained: &Fingerprint) -> Kinship {
        match (self.model == trained.model, self.weights == trained.weights) {
            (true, true) => Kinship::Same,
            (true, false) => Kinship::OtherWeights,
            (false, _) => Kinship::OtherModel,
        }
    }
}

/// Both digests, as files hold them.
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
                "{text:?} is no fingerprint, expected {VERSION} and two digests of 32 hexadecimal digits"
            )),
        }
    }
}

/// The parts of a tensor that are digested.
fn pieces(range: &Range<u64>) -> Vec<Range<u64>> {
    let bytes = range.end - range.start;
    if bytes <= 4 * PIECE {
        return vec![range.clone()];
    }
    let last = bytes - PIECE;
    [0, last / 3, last / 3 * 2, last].map(|at| range.start + at..range.start + at + PIECE).to_vec()
}

/// Half of the digest, which is plenty where nobody forges a model.
fn hex(hash: Sha256) -> String {
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
