//! The digest of every byte of a base's tensors.

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::{Base, Matrix};
use crate::words::hex;

impl Base {
    /// The SHA-256 of all tensors: unlike a [`super::Fingerprint`], it sees a change of any byte. Reads the whole file.
    ///
    /// # Panics
    /// If the file is not in memory ([`Base::stream`]).
    pub fn contents(&self) -> String {
        let tensors: Vec<Matrix> = self.matrices().collect();
        let digests: Vec<_> = tensors.par_iter().map(|tensor| Sha256::digest(tensor.data)).collect();
        let mut all = Sha256::new();
        for (tensor, digest) in tensors.iter().zip(digests) {
            all.update(format!("{} {}×{} {}\n", tensor.name, tensor.rows, tensor.cols, tensor.ty.name()));
            all.update(digest);
        }
        hex(&all.finalize())
    }
}
