//! The shares of an optimizer step: each is computed from zero, and their gradients are added in the order of a fixed tree.

use std::ops::Range;
use std::rc::Rc;

use web_time::Instant;

use super::ranks::{Ranks, Reduction, Slots, micro_batches};
use super::{TrainError, Trainer};
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
    ranks: Rc<Ranks>,
    shares: usize,
    reduction: Reduction,
    times: Times,
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
    fn own(&self, step: &Step, rank: usize) -> Range<usize> {
        let own = super::ranks::shares_of(rank, self.ranks.size(), self.shares);
        let of = step.micro_batches.len();
        micro_batches(own.start, self.shares, of).start..micro_batches(own.end - 1, self.shares, of).end
    }

    /// Computes the own shares, and leaves the sum of all in `trainer`'s gradients, and the losses of all.
    pub(super) async fn sum(
        &mut self,
        trainer: &Trainer<'_>,
        step: &Step,
        number: u64,
    ) -> Result<(), TrainError> {
        if step.loss_tokens == 0 {
            return Err(TrainError::NoLoss { step: number });
        }
        let share_of = |share| micro_batches(share, self.shares, step.micro_batches.len());
        let mut slots = Slots::new(self.shares);
        let mut clock = Clock(Instant::now());
        let mut compute = 0.0;
        let shares = self.ranks.own_shares(self.shares);
        for share in shares.clone() {
            let own = share_of(share);
            if own.is_empty() {
                slots.push(share, None, |_, _| ());
                continue;
            }
            trainer.accumulate(step, number, own).await?;
            if share + 1 == shares.end {
                // While the device computes: after the exchange, it would wait for this.
                trainer.upload_announced().await?;
            }
            trainer.gpu.wait()?;
            compute += clock.lap();
            let slot = slots.place();
            trainer.adapter.copy_gradients(trainer.gpu, self.reduction.slot(slot)).await?;
            self.times.read += clock.lap();
            slots.push(share, Some(slot), |into, from| self.reduction.add(into, from));
            self.times.sum += clock.lap();
        }
        let sum = self.reduction.sum(&slots, &|share| share_of(share).is_empty())?;
        self.times.sum += clock.lap();
        trainer.adapter.set_gradients(trainer.gpu, sum).await?;
        self.times.write += clock.lap();
        self.share_rows(trainer, step, compute).await?;
        self.times.sum += clock.lap();
        self.times.steps += 1;
        Ok(())
    }

    /// Gives every rank the losses and verdicts of all rows of the step, and the seconds that each has computed.
    async fn share_rows(
        &mut self,
        trainer: &Trainer<'_>,
        step: &Step,
        compute: f64,
    ) -> Result<(), TrainError> {
        if self.ranks.size() == 1 {
            self.times.computes[0] += compute;
            return Ok(());
        }
        let own = self.own(step, self.ranks.rank());
        let rows = step.rows_before(own.start)..step.rows_before(own.end);
        let mut bytes = compute.to_le_bytes().to_vec();
        for buffer in [&trainer.losses, &trainer.row_status] {
            let found = trainer.gpu.read_at::<u32>(buffer, 4 * rows.start as u64, rows.len()).await?;
            bytes.extend(found.into_iter().flat_map(u32::to_le_bytes));
        }
        let [mut losses, mut verdicts] = [Vec::new(), Vec::new()];
        for (rank, bytes) in self.ranks.gather(&bytes)?.iter().enumerate() {
            let (words, _) = bytes.as_chunks::<4>();
            let (seconds, rows) = words.split_at(2);
            let seconds: [u8; 8] = seconds.as_flattened().try_into().expect("two words");
            self.times.computes[rank] += f64::from_le_bytes(seconds);
            let (own_losses, own_verdicts) = rows.split_at(rows.len() / 2);
            losses.extend(own_losses.iter().map(|word| u32::from_le_bytes(*word)));
            verdicts.extend(own_verdicts.iter().map(|word| u32::from_le_bytes(*word)));
        }
        trainer.gpu.write(&trainer.losses, &losses);
        trainer.gpu.write(&trainer.row_status, &verdicts);
        Ok(())
    }

    /// Fails where the ranks disagree about the norms of step `number`, as their adapters would drift apart.
    pub(super) fn check(&self, number: u64, state: &ClipState) -> Result<(), TrainError> {
        let what = format!("step {number}: the result");
        Ok(self.ranks.check_same(&what, bytemuck::bytes_of(state))?)
    }
}

/// Measures the time from one lap to the next.
struct Clock(Instant);

impl Clock {
    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let seconds = (now - self.0).as_secs_f64();
        self.0 = now;
        seconds
    }
}
