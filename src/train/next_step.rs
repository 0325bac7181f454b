//! The step that follows, as far as it is known, and what is done for it already.

use std::ops::Range;
use std::sync::Mutex;

use crate::data::batch::{MicroBatch, Step};
use crate::model::Inputs;

/// All that is known of the step that follows, and done for it.
#[derive(Default)]
pub struct Following {
    pub announced: Mutex<Option<Announced>>,
    /// A micro-batch that is on the device already.
    pub uploaded: Mutex<Option<(MicroBatch, Inputs)>>,
    pub begun: Mutex<Option<Begun>>,
}

/// A step that was announced.
pub struct Announced {
    /// Its first micro-batch on this rank.
    pub first: MicroBatch,
    pub loss_tokens: usize,
    /// Whether nothing comes between it and the step before.
    pub at_once: bool,
}

/// A step whose gradients are those of its first micro-batch so far.
pub struct Begun {
    pub number: u64,
    pub first: MicroBatch,
    pub loss_tokens: usize,
}

impl Begun {
    /// Whether it is step `number` from the first micro-batch on.
    pub fn is(&self, step: &Step, number: u64, micro_batches: &Range<usize>) -> bool {
        self.number == number
            && self.loss_tokens == step.loss_tokens
            && micro_batches.start == 0
            && step.micro_batches[micro_batches.clone()].first() == Some(&self.first)
    }
}

impl Following {
    /// Keeps a micro-batch that is on the device.
    pub fn keep(&self, batch: &MicroBatch, inputs: Inputs) {
        *self.uploaded.lock().expect("lock is not poisoned") = Some((batch.clone(), inputs));
    }

    /// Lets the next step begin anew: the adapter, or what the begun step has left in the trainer's buffers, changes.
    pub fn forget_begun(&self) {
        *self.begun.lock().expect("lock is not poisoned") = None;
    }
}
