//! The own shares of a step, and their sum with those of other ranks.

use web_time::Instant;

use super::exchange::Exchange;
use super::ranks::{Slots, micro_batches};
use super::{TrainError, Trainer};
use crate::data::batch::Step;

impl Trainer<'_> {
    /// Computes the own shares, and leaves the sum of all in the gradients, and the losses of all.
    pub(super) async fn sum_shares(
        &self,
        exchange: &mut Exchange,
        step: &Step,
        number: u64,
    ) -> Result<(), TrainError> {
        if step.loss_tokens == 0 {
            return Err(TrainError::NoLoss { step: number });
        }
        let share_of = |share| micro_batches(share, exchange.shares, step.micro_batches.len());
        let mut slots = Slots::new(exchange.shares);
        let mut clock = Clock(Instant::now());
        let mut compute = 0.0;
        let shares = exchange.ranks.own_shares(exchange.shares);
        for share in shares.clone() {
            let own = share_of(share);
            if own.is_empty() {
                slots.push(share, None, |_, _| ());
                continue;
            }
            self.accumulate(step, number, own).await?;
            if share + 1 == shares.end {
                // While the device computes: after the exchange, it would wait for this.
                self.upload_announced().await?;
            }
            self.gpu.wait()?;
            compute += clock.lap();
            let slot = slots.place();
            self.adapter.copy_gradients(self.gpu, exchange.reduction.slot(slot)).await?;
            exchange.times.read += clock.lap();
            slots.push(share, Some(slot), |into, from| exchange.reduction.add(into, from));
            exchange.times.sum += clock.lap();
        }
        let sum = exchange.reduction.sum(&slots, &|share| share_of(share).is_empty())?;
        exchange.times.sum += clock.lap();
        self.adapter.set_gradients(self.gpu, sum).await?;
        exchange.times.write += clock.lap();
        self.share_rows(exchange, step, compute).await?;
        exchange.times.sum += clock.lap();
        exchange.times.steps += 1;
        Ok(())
    }

    /// Gives every rank the losses and verdicts of all rows of the step, and the seconds that each has computed.
    async fn share_rows(&self, exchange: &mut Exchange, step: &Step, compute: f64) -> Result<(), TrainError> {
        if exchange.ranks.size() == 1 {
            exchange.times.computes[0] += compute;
            return Ok(());
        }
        let own = exchange.own(step, exchange.ranks.rank());
        let rows = step.rows_before(own.start)..step.rows_before(own.end);
        let mut bytes = compute.to_le_bytes().to_vec();
        for buffer in [&self.losses, &self.row_status] {
            let found = self.gpu.read_at::<u32>(buffer, 4 * rows.start as u64, rows.len()).await?;
            bytes.extend(found.into_iter().flat_map(u32::to_le_bytes));
        }
        if self.objective.distill().is_some() {
            let own = self.gpu.read_at::<u32>(&self.lessons, 8 * rows.start as u64, 2 * rows.len()).await?;
            bytes.extend(own.into_iter().flat_map(u32::to_le_bytes));
        }
        let [mut losses, mut verdicts, mut lessons] = [Vec::new(), Vec::new(), Vec::new()];
        for (rank, bytes) in exchange.ranks.gather(&bytes)?.iter().enumerate() {
            let (words, _) = bytes.as_chunks::<4>();
            let (seconds, rows) = words.split_at(2);
            let seconds: [u8; 8] = seconds.as_flattened().try_into().expect("two words");
            exchange.times.computes[rank] += f64::from_le_bytes(seconds);
            let each = if self.objective.distill().is_some() { 4 } else { 2 };
            let (own_losses, rest) = rows.split_at(rows.len() / each);
            let (own_verdicts, own_lessons) = rest.split_at(rows.len() / each);
            lessons.extend(own_lessons.iter().map(|word| u32::from_le_bytes(*word)));
            losses.extend(own_losses.iter().map(|word| u32::from_le_bytes(*word)));
            verdicts.extend(own_verdicts.iter().map(|word| u32::from_le_bytes(*word)));
        }
        self.gpu.write(&self.losses, &losses);
        self.gpu.write(&self.row_status, &verdicts);
        if !lessons.is_empty() {
            self.gpu.write(&self.lessons, &lessons);
        }
        Ok(())
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
