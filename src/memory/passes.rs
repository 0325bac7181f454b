//! The passes that a plan is for.

use super::recompute::Recompute;
use crate::data::batch::Capacity;

/// The passes that a plan is for.
#[derive(Clone, Copy, Debug)]
pub struct Passes {
    /// Their largest micro-batch.
    pub capacity: Capacity,
    /// Whether adapters read inputs with dropout.
    pub masked: bool,
    /// Bound on what layers keep.
    pub recompute: Recompute,
}
