//! SHA-256 of what a run depends on, to tell whether it is still the same.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::batch::Sample;
use crate::weights::value::{Array, Value};
use crate::weights::{Base, Gguf};

/// What the numbers of a run depend on beside its recipe, as digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Of the base's tensors.
    pub base: String,
    /// Of its vocabulary.
    pub tokenizer: String,
    /// Of the training samples as ids and labels, and of how often an epoch shows each.
    pub train: String,
    /// The same of the validation samples.
    pub validation: String,
}

impl Identity {
    /// Takes all four.
    pub fn of(base: &Base, train: &[Sample], weights: &[f64], validation: &[Sample]) -> Identity {
        Identity {
            base: tensors(base.gguf()),
            tokenizer: tokenizer(base.gguf()),
            train: samples(train, weights),
            validation: samples(validation, &[]),
        }
    }

    /// What is not the same as in `earlier`, as messages call it, with both digests shortened.
    pub fn changes_since(&self, earlier: &Identity) -> Vec<String> {
        let pairs = [
            ("the base", &earlier.base, &self.base),
            ("the base's tokenizer", &earlier.tokenizer, &self.tokenizer),
            ("the training samples (data.train)", &earlier.train, &self.train),
            ("the validation samples (data.valid)", &earlier.validation, &self.validation),
        ];
        let changed = pairs.into_iter().filter(|(_, was, is)| was != is);
        changed
            .map(|(what, was, is)| format!("{what} had digest {} and has {}", short(was), short(is)))
            .collect()
    }
}

/// Enough of a digest to tell two apart.
pub fn short(digest: &str) -> &str {
    &digest[..digest.len().min(12)]
}

/// In hexadecimal.
pub fn bytes(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes).as_slice())
}

/// Of ids, labels and weights; where the samples come from does not count.
pub fn samples(samples: &[Sample], weights: &[f64]) -> String {
    let mut hash = Sha256::new();
    for sample in samples {
        hash.update((sample.ids.len() as u64).to_le_bytes());
        sample.ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        sample.labels.iter().for_each(|label| hash.update(label.to_le_bytes()));
    }
    weights.iter().for_each(|weight| hash.update(weight.to_le_bytes()));
    hex(hash.finalize().as_slice())
}

/// A tensor of up to four such pieces is digested whole, of a larger one this many bytes at four places, the first and
/// the last among them: whatever trains or quantizes a model changes more than what lies between.
const PIECE: usize = 16 << 10;

/// Of every tensor's name, format, shape and, in parts, data.
fn tensors(gguf: &Gguf) -> String {
    let mut hash = Sha256::new();
    for tensor in gguf.tensors() {
        hash.update(format!("{} {} {:?}\n", tensor.name, tensor.ty.name(), tensor.shape));
        pieces(gguf.data(tensor)).iter().for_each(|piece| hash.update(piece));
    }
    hex(hash.finalize().as_slice())
}

fn pieces(data: &[u8]) -> Vec<&[u8]> {
    if data.len() <= 4 * PIECE {
        return vec![data];
    }
    let last = data.len() - PIECE;
    [0, last / 3, last / 3 * 2, last].map(|start| &data[start..start + PIECE]).to_vec()
}

/// Of the tokens, in their order, and of how they merge.
fn tokenizer(gguf: &Gguf) -> String {
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
    hex(hash.finalize().as_slice())
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha_256_of_the_standard() {
        // FIPS 180-4, "abc".
        assert_eq!(bytes(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn pieces_begin_and_end_with_the_tensor() {
        let data: Vec<u8> = (0..=255).cycle().take(5 * PIECE + 7).collect();
        assert_eq!(pieces(&data[..4 * PIECE]), [&data[..4 * PIECE]]);
        let found = pieces(&data);
        assert_eq!((found[0], found[3]), (&data[..PIECE], &data[data.len() - PIECE..]));
        assert!(found.iter().all(|piece| piece.len() == PIECE));
    }

    #[test]
    fn every_id_label_and_boundary_counts() {
        let sample = |ids: &[u32], labels: &[i32]| Sample {
            ids: ids.to_vec(),
            labels: labels.to_vec(),
            origin: "anywhere".into(),
        };
        let all = [
            vec![],
            vec![sample(&[1, 2], &[-100, 2])],
            vec![sample(&[1, 2], &[-100, -100])],
            vec![sample(&[1, 3], &[-100, 2])],
            vec![sample(&[1], &[-100]), sample(&[2], &[2])],
            vec![sample(&[2], &[2]), sample(&[1], &[-100])],
        ];
        let mut digests: Vec<String> = all.iter().map(|s| samples(s, &[])).collect();
        digests.push(samples(&all[1], &[1.0]));
        digests.push(samples(&all[1], &[2.0]));
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), all.len() + 2);
        let mut elsewhere = all[1].clone();
        elsewhere[0].origin = "elsewhere".into();
        assert_eq!(samples(&elsewhere, &[]), samples(&all[1], &[]));
    }
}
