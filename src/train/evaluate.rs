//! Forward passes without an update: evaluation, a trial pass, logits; and the experts that passes chose.

use super::objective::PreferenceMetrics;
use super::{TrainError, Trainer};
use crate::data::batch::{MicroBatch, Step};
use crate::gpu::{GpuError, Recorder};
use crate::model::{Inputs, Loads, Losses};
use crate::ops::row_status;

/// Loss and accuracy, summed over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossTotals {
    /// Sum of the losses of all loss tokens.
    pub loss_sum: f64,
    /// Loss tokens.
    pub tokens: usize,
    /// Loss tokens whose target was the most likely token.
    pub right: usize,
    /// Loss tokens whose hidden state or logits are not finite. Above 0, the loss is meaningless.
    pub not_finite: usize,
    /// Sum of the divergences of all loss tokens from the teacher; 0 without a teacher.
    pub divergence_sum: f64,
    /// Loss tokens at whose place the model and its teacher find the same token the likeliest.
    pub agreeing: usize,
}

impl std::ops::AddAssign for LossTotals {
    fn add_assign(&mut self, other: LossTotals) {
        self.loss_sum += other.loss_sum;
        self.tokens += other.tokens;
        self.right += other.right;
        self.not_finite += other.not_finite;
        self.divergence_sum += other.divergence_sum;
        self.agreeing += other.agreeing;
    }
}

impl LossTotals {
    /// Mean loss per token.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.tokens as f64
    }

    /// Length of [`LossTotals::to_bytes`].
    pub(crate) const BYTES: usize = 48;

    /// For another process.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let counts = [self.tokens, self.right, self.not_finite, self.agreeing].map(|count| count as u64);
        let sums = [self.loss_sum, self.divergence_sum].map(f64::to_bits);
        let words = sums.into_iter().chain(counts);
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Reads the bytes of [`LossTotals::to_bytes`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> LossTotals {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        LossTotals {
            loss_sum: f64::from_bits(word(0)),
            divergence_sum: f64::from_bits(word(1)),
            tokens: word(2) as usize,
            right: word(3) as usize,
            not_finite: word(4) as usize,
            agreeing: word(5) as usize,
        }
    }

    /// Mean divergence from the teacher per token.
    pub fn divergence(&self) -> f64 {
        self.divergence_sum / self.tokens as f64
    }

    /// Measurements of training with a teacher, besides the loss.
    pub fn lesson(&self) -> PreferenceMetrics {
        PreferenceMetrics {
            distillation_loss: Some(self.divergence()),
            nll_loss: Some(self.loss()),
            teacher_agreement: Some(self.agreeing as f64 / self.tokens as f64),
            ..PreferenceMetrics::default()
        }
    }

    /// `e` to the mean loss.
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }

    /// Fraction of tokens whose target was the most likely token.
    pub fn accuracy(&self) -> f64 {
        self.right as f64 / self.tokens as f64
    }
}

impl Trainer<'_> {
    /// Runs micro-batches forward and backward without updating the adapter, so that running out of memory or losing the
    /// device happens before the first step.
    pub async fn dry_pass(&self, batches: &[MicroBatch]) -> Result<LossTotals, TrainError> {
        let mut totals = LossTotals::default();
        for batch in batches {
            let step = Step::of(batch.clone());
            self.accumulate_mean(&step, 0, 0..1).await?;
            totals += self.read_totals(step.loss_tokens).await?;
        }
        Ok(totals)
    }

    /// Loss and accuracy over `batches`, without dropout. `progress` is called with the number of batches done.
    pub async fn evaluate(
        &self,
        batches: &[MicroBatch],
        mut progress: impl FnMut(usize),
    ) -> Result<LossTotals, GpuError> {
        self.assert_fits(batches);
        self.following.forget_begun(); // its losses are overwritten
        let mut totals = LossTotals::default();
        for (i, batch) in batches.iter().enumerate() {
            let mut rec = Recorder::recurring(self.gpu);
            let inputs = Inputs::upload(self.gpu, self.model, batch).await?;
            let losses = self.losses(0);
            self.model.forward(&mut rec, &inputs, &self.adapter, &self.activations, None).await?;
            self.head.forward(&mut rec, self.model, &inputs, &self.activations, &losses);
            rec.submit()?;
            totals += self.read_totals(inputs.loss_tokens).await?;
            progress(i + 1);
        }
        Ok(totals)
    }

    /// Logits after the softcap for the given rows of a micro-batch, `rows.len()` times `[V]`.
    pub async fn logits(&self, batch: &MicroBatch, rows: &[u32]) -> Result<Vec<f32>, GpuError> {
        self.assert_fits(std::slice::from_ref(batch));
        let mut rec = Recorder::recurring(self.gpu);
        let inputs = Inputs::upload(self.gpu, self.model, batch).await?;
        self.model.forward(&mut rec, &inputs, &self.adapter, &self.activations, None).await?;
        rec.submit()?;
        self.head.read_logits(self.gpu, self.model, &self.activations, rows).await
    }

    /// Reads back the first `rows` losses and their status.
    pub(super) async fn read_totals(&self, rows: usize) -> Result<LossTotals, GpuError> {
        let losses = self.gpu.read::<f32>(&self.losses, rows).await?;
        let status = self.gpu.read::<u32>(&self.row_status, rows).await?;
        let count = |which: u32| status.iter().filter(|&&found| found == which).count();
        let results = match self.objective.distill() {
            Some(_) => self.gpu.read::<f32>(&self.lessons, 2 * rows).await?,
            None => Vec::new(),
        };
        let (results, _) = results.as_chunks::<2>();
        Ok(LossTotals {
            divergence_sum: results.iter().map(|&[divergence, _]| f64::from(divergence)).sum(),
            agreeing: results.iter().filter(|&&[_, agrees]| agrees > 0.5).count(),
            loss_sum: losses.iter().map(|&l| f64::from(l)).sum(),
            tokens: rows,
            right: count(row_status::RIGHT),
            not_finite: count(row_status::NOT_FINITE),
        })
    }

    /// Buffers into which a micro-batch writes its losses, from row `offset` of the step on.
    pub(super) fn losses(&self, offset: usize) -> Losses<'_> {
        let distill = self.objective.distill().map(|distill| (distill, &self.lessons));
        let temperature = self.objective.temperature() as f32;
        Losses { buffer: &self.losses, verdicts: &self.row_status, offset, temperature, distill }
    }

    /// Distribution of the last micro-batch's tokens over the experts; `None` for dense models.
    pub async fn expert_loads(&self) -> Result<Option<Loads>, GpuError> {
        Loads::read(self.gpu, self.activations.first_experts()).await
    }

    /// By layer with experts, those that each token of the last micro-batch chose, `[T, used]`, and behind them any. Only layers whose
    /// activations are kept have their own.
    pub async fn chosen_experts(&self) -> Result<Vec<Vec<u32>>, GpuError> {
        let mut layers = Vec::new();
        for chunks in self.activations.chunks_of_experts() {
            let mut chosen = Vec::new();
            for groups in chunks.iter().map(|acts| &acts.groups) {
                let choices = self.plan().chunk.min(self.plan().tokens) * groups.experts.used;
                chosen.extend(self.gpu.read::<u32>(&groups.chosen.buffer, choices).await?);
            }
            layers.push(chosen);
        }
        Ok(layers)
    }
}
