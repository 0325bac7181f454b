//! The shares of an optimizer step: each is computed from zero, and their gradients are added in the order of a fixed tree.

use std::ops::Range;
use std::rc::Rc;

use super::TrainError;
use super::ranks::{Ranks, Reduction, micro_batches};
use crate::data::batch::Step;
use crate::ops::adamw::ClipState;

/// Seconds that the parts of all steps so far took on this rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// Forward and backward of each rank's shares.
    pub computes: Vec<f64>,
    /// Copying gradients off the device.
    pub read: f64,
    /// Adding them up, and waiting for slower ranks.
    pub sum: f64,
    /// Copying the sum onto the device.
    pub write: f64,
    /// Steps.
    pub steps: usize,
}

impl Times {
    /// Everything but the computation.
    pub fn exchange(&self) -> f64 {
        self.read + self.sum + self.write
    }
}

/// Combines the gradients of all shares of a step. Afterwards every rank holds the same ones, as one process would compute them.
pub struct Exchange {
    pub(super) ranks: Rc<Ranks>,
    pub(super) shares: usize,
    pub(super) reduction: Reduction,
    pub(super) times: Times,
}

impl Exchange {
    /// An exchange of `values` values. `ranks` divide `shares`.
    pub(super) fn new(ranks: Rc<Ranks>, shares: usize, values: usize) -> Result<Exchange, TrainError> {
        assert!(shares.is_multiple_of(ranks.size()), "every rank has as many shares");
        let reduction = Reduction::new(&ranks, shares, values)?;
        let times = Times { computes: vec![0.0; ranks.size()], ..Times::default() };
        Ok(Exchange { ranks, shares, reduction, times })
    }

    /// The time that it took so far.
    pub(super) fn times(&self) -> &Times {
        &self.times
    }

    /// The first micro-batch of this rank.
    pub(super) fn first(&self, step: &Step) -> usize {
        self.own(step, self.ranks.rank()).start
    }

    /// The micro-batches of a rank.
    pub(super) fn own(&self, step: &Step, rank: usize) -> Range<usize> {
        let own = super::ranks::shares_of(rank, self.ranks.size(), self.shares);
        let of = step.micro_batches.len();
        micro_batches(own.start, self.shares, of).start..micro_batches(own.end - 1, self.shares, of).end
    }

    /// Fails where the ranks disagree about the norms of step `number`, as their adapters would drift apart.
    pub(super) fn check(&self, number: u64, state: &ClipState) -> Result<(), TrainError> {
        let what = format!("step {number}: the result");
        Ok(self.ranks.check_same(&what, bytemuck::bytes_of(state))?)
    }
}
