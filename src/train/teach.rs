//! What a model would teach another one: its likeliest tokens at every loss token.

use rayon::prelude::*;

use super::Trainer;
use crate::data::batch::MicroBatch;
use crate::data::teacher::TaughtRow;
use crate::gpu::{GpuError, Recorder};
use crate::model::{Inputs, Likeliest};
use crate::ops::argmax::top::{self, RowTop};

/// Least log-probability of all tokens that a list lacks together.
const LEAST_REST: f64 = -50.0;

/// A loss token under the teacher.
#[derive(Clone, Debug, PartialEq)]
pub struct TaughtToken {
    /// The teacher's distribution at its place.
    pub row: TaughtRow,
    /// The teacher's cross entropy.
    pub loss: f32,
}

impl Trainer<'_> {
    /// The `top` likeliest of the first `count` tokens of the vocabulary at each loss token of `batch`, likeliest first, at a temperature.
    /// `whole`: they are all of the student's tokens, so that no other ones are left. Values that are not finite come from a damaged model.
    pub async fn teach(
        &self,
        batch: &MicroBatch,
        (top, count): (usize, usize),
        whole: bool,
        temperature: f64,
    ) -> Result<Vec<TaughtToken>, GpuError> {
        self.assert_fits(std::slice::from_ref(batch));
        let rows = batch.loss_rows.len();
        let inputs = Inputs::upload(self.gpu, self.model, batch).await?;
        let mut rec = Recorder::new(self.gpu);
        self.model.forward(&mut rec, &inputs, &self.adapter, &self.activations, None).await?;
        if whole {
            rec.submit()?;
            return self.teach_all(batch, count, temperature).await;
        }
        let words = rows * top::words(top);
        let results = self.gpu.buffer("likeliest tokens", (4 * words) as u64)?;
        let sums = self.gpu.buffer("sums of the teacher", (8 * rows) as u64)?;
        let wanted = Likeliest { count, top, temperature, results: &results, sums: &sums };
        self.head.likeliest(&mut rec, self.model, &inputs, &self.activations, &wanted);
        rec.submit()?;
        let found = top::read(&self.gpu.read::<u32>(&results, words).await?, top);
        let sums = self.gpu.read::<f32>(&sums, 2 * rows).await?;
        let (sums, _) = sums.as_chunks::<2>();
        Ok(found.iter().zip(sums).map(|(found, sums)| token(found, *sums, temperature)).collect())
    }

    /// All tokens, from logits that are there.
    async fn teach_all(
        &self,
        batch: &MicroBatch,
        count: usize,
        temperature: f64,
    ) -> Result<Vec<TaughtToken>, GpuError> {
        let rows = &batch.loss_rows;
        let logits = self.head.read_logits(self.gpu, self.model, &self.activations, rows).await?;
        let vocab = self.config().vocab;
        let each = logits.par_chunks(vocab).zip(&batch.targets);
        Ok(each.map(|(logits, &target)| whole(&logits[..count], target, temperature)).collect())
    }
}

fn token(found: &RowTop, [sum, rest]: [f32; 2], temperature: f64) -> TaughtToken {
    let log = |value: f32| (f64::from(value) / temperature - f64::from(sum)) as f32;
    let tokens = found.top.iter().map(|found| (found.index, log(found.value))).collect();
    let rest = (f64::from(rest) - f64::from(sum)).max(LEAST_REST) as f32;
    let loss = f64::from(found.largest) + f64::from(found.sum).ln() - f64::from(found.target);
    TaughtToken { row: TaughtRow { tokens, rest: Some(rest) }, loss: loss as f32 }
}

fn whole(logits: &[f32], target: u32, temperature: f64) -> TaughtToken {
    let largest = f64::from(logits.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x)));
    let sum =
        |warmth: f64| logits.iter().map(|&x| ((f64::from(x) - largest) * warmth).exp()).sum::<f64>().ln();
    let (cold, warm) = (sum(1.0), sum(1.0 / temperature));
    let mut tokens: Vec<(u32, f32)> = (logits.iter().enumerate())
        .map(|(id, &x)| (id as u32, ((f64::from(x) - largest) / temperature - warm) as f32))
        .collect();
    tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let loss = largest + cold - logits.get(target as usize).map_or(f64::NAN, |&x| f64::from(x));
    TaughtToken { row: TaughtRow { tokens, rest: None }, loss: loss as f32 }
}
