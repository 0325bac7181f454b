//! Log-probabilities of samples under the reference, and the digest of the adapter that it has.

use sha2::{Digest, Sha256};

use crate::adapter::lora::Adapter;
use crate::words::hex;

/// Log-probabilities under the reference, one per sample; 0 for a sample that no step uses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct References {
    /// Those of the samples.
    pub samples: Vec<f64>,
    /// Those of the prompts with the answers of other samples.
    pub mismatched: Vec<f64>,
}

/// SHA-256 of an adapter's matrices.
pub fn digest(adapter: &Adapter) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{} {} {}", adapter.rank, adapter.alpha, adapter.rslora));
    for (slot, pair) in &adapter.pairs {
        hash.update(slot.name());
        hash.update(bytemuck::cast_slice::<f32, u8>(&pair.a));
        hash.update(bytemuck::cast_slice::<f32, u8>(&pair.b));
    }
    hex(&hash.finalize())
}
