//! Digests of what a run depends on, to refuse resuming with another base or other samples.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::base::Base;
use crate::data::batch::Sample;
use crate::data::compare::Side;
use crate::words::hex;

/// SHA-256 digests of everything that, besides the recipe, decides the results of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Digest of the base's weights: that of its [`crate::base::Fingerprint`].
    pub base: String,
    /// Digest of every byte of the base's tensors, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<String>,
    /// Digest of the base's tokens and merges.
    pub tokenizer: String,
    /// Digest of the training samples, as ids and labels, and of their weights.
    pub train: String,
    /// Digest of the validation samples, as ids and labels.
    pub validation: String,
    /// Digest of the adapter that training started from, if the objective compares with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial: Option<String>,
    /// Digest of the teacher's weights, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<String>,
}

impl Identity {
    /// The identity of a run on `base`. `weights` says how often an epoch shows each sample of `train`.
    pub fn of(base: &Base, train: &[Sample], weights: &[f64], validation: &[Sample]) -> Identity {
        Identity {
            base: base.fingerprint().weights,
            contents: None,
            tokenizer: base.vocabulary().to_owned(),
            train: samples(train, weights),
            validation: samples(validation, &[]),
            initial: None,
            teacher: None,
        }
    }

    /// Describes each difference from `earlier`, with both digests shortened.
    pub fn changes_since(&self, earlier: &Identity) -> Vec<String> {
        let pairs = [
            ("the base", &earlier.base, &self.base),
            ("the base's tokenizer", &earlier.tokenizer, &self.tokenizer),
            ("the training samples (data.train)", &earlier.train, &self.train),
            ("the validation samples (data.valid)", &earlier.validation, &self.validation),
        ];
        let contents = self.contents.as_ref().zip(earlier.contents.as_ref());
        let initial = self.initial.as_ref().zip(earlier.initial.as_ref());
        let initial =
            initial.map(|(is, was)| ("the adapter of lora.init_from, which is the reference,", was, is));
        let teacher = self.teacher.as_ref().zip(earlier.teacher.as_ref());
        let teacher = teacher.map(|(is, was)| ("the teacher (distill.teacher)", was, is));
        let pairs = pairs
            .into_iter()
            .chain(initial)
            .chain(teacher)
            .chain(contents.map(|(is, was)| ("the base's contents", was, is)));
        let changed = pairs.filter(|(_, was, is)| was != is);
        changed
            .map(|(what, was, is)| format!("{what} had digest {} and now has {}", short(was), short(is)))
            .collect()
    }
}

/// The first characters of a digest, enough to tell two apart.
pub fn short(digest: &str) -> &str {
    &digest[..digest.len().min(12)]
}

/// The SHA-256 of `bytes`, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes).as_slice())
}

/// The digest of samples and weights. Where the samples come from does not count.
fn samples(samples: &[Sample], weights: &[f64]) -> String {
    let mut hash = Sha256::new();
    for sample in samples {
        hash.update((sample.ids.len() as u64).to_le_bytes());
        sample.ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        sample.labels.iter().for_each(|label| hash.update(label.to_le_bytes()));
        if sample.side != Side::Example {
            hash.update(sample.side.name());
        }
        if let Some(taught) = &sample.taught {
            hash.update("taught");
            taught.ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        }
        if let Some(row) = &sample.row {
            hash.update("row");
            hash.update(serde_json::to_string(&row.columns).expect("columns are plain values"));
        }
    }
    weights.iter().for_each(|weight| hash.update(weight.to_le_bytes()));
    hex(hash.finalize().as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha_256_of_the_standard() {
        // FIPS 180-4, "abc".
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn every_id_label_and_boundary_counts() {
        let sample = |ids: &[u32], labels: &[i32]| Sample {
            ids: ids.to_vec(),
            labels: labels.to_vec(),
            origin: "anywhere".into(),
            ..Sample::default()
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
