//! Output norm, output projection, verdict, softcap and cross entropy over the rows that carry loss, a bounded chunk at
//! a time.

use super::coop_products::Packs;
use super::{Activations, Inputs, Model, Plan};
use crate::gpu::{Gpu, GpuError, Recorder};
use crate::ops::Rows;
use crate::ops::cross_entropy::{self, Chunk};
use crate::ops::embedding;
use crate::ops::linear;
use crate::ops::rms_norm;
use crate::ops::row_status as verdict;
use crate::ops::row_status::Verdicts;

/// Buffers of one chunk.
pub struct Head {
    rows: usize,
    hidden: Rows,  // rows of the last stream [C, D]
    normed: Rows,  // [C, D]
    dnormed: Rows, // [C, D]
    dhidden: Rows, // [C, D]
    logits: Rows,  // [C, V]
    packs: Option<Packs>,
}

/// Where losses and verdicts go: one of each for each loss-carrying row of the optimizer step.
pub struct Losses<'a> {
    /// Losses, f32.
    pub buffer: &'a wgpu::Buffer,
    /// Verdicts, u32: see [`verdict`].
    pub verdicts: &'a wgpu::Buffer,
    /// Place of the micro-batch's first row.
    pub offset: usize,
}

impl Head {
    /// Buffers for chunks of `plan.head_rows` rows.
    pub fn new(gpu: &Gpu, model: &Model, plan: &Plan) -> Result<Head, GpuError> {
        let (c, d, vocab) = (plan.head_rows, model.config().width, model.config().vocab);
        Ok(Head {
            rows: c,
            hidden: Rows::new(gpu, "head input", c, d)?,
            normed: Rows::new(gpu, "head normed", c, d)?,
            dnormed: Rows::new(gpu, "head dnormed", c, d)?,
            dhidden: Rows::new(gpu, "head gradient", c, d)?,
            logits: Rows::new(gpu, "logits", c, vocab)?,
            packs: match plan.packs_width {
                0 => None,
                _ => Some(Packs::new_head(gpu, c, d, vocab)?),
            },
        })
    }

    /// The loss of every loss-carrying row.
    pub fn forward<'a>(
        &self,
        rec: &mut Recorder<'a>,
        model: &'a Model,
        inputs: &Inputs,
        acts: &Activations,
        losses: &Losses,
    ) {
        for first in (0..inputs.loss_tokens).step_by(self.rows) {
            let rows = self.rows.min(inputs.loss_tokens - first);
            self.logits(rec, model, acts, &inputs.loss_rows, first, rows, inputs.tokens);
            let chunk = self.chunk(model, inputs, losses, first, rows);
            verdict::rows(rec, &chunk, &self.verdicts(losses, first));
            chunk.forward(rec);
        }
    }

    /// Computes the losses, and the gradient of `Σ coefficient·loss` with respect to the last stream, in `acts`.
    ///
    /// `coefficients`, f32, stand at the same places as the losses.
    pub fn backward<'a>(
        &self,
        rec: &mut Recorder<'a>,
        model: &'a Model,
        inputs: &Inputs,
        acts: &Activations,
        losses: &Losses,
        coefficients: &wgpu::Buffer,
    ) {
        rec.clear(&acts.dhidden.buffer, (inputs.tokens * acts.dhidden.stride * 4) as u64);
        for first in (0..inputs.loss_tokens).step_by(self.rows) {
            let rows = self.rows.min(inputs.loss_tokens - first);
            self.logits(rec, model, acts, &inputs.loss_rows, first, rows, inputs.tokens);
            let (chunk, verdicts) =
                (self.chunk(model, inputs, losses, first, rows), self.verdicts(losses, first));
            let (dnormed, matrix) = (self.dnormed.all(), model.head_matrix());
            match &self.packs {
                Some(packs) => packs.head_backward(rec, dnormed, &chunk, &verdicts, matrix, coefficients),
                None => {
                    verdict::rows(rec, &chunk, &verdicts);
                    chunk.backward(rec, coefficients);
                    linear::backward(rec, dnormed, self.logits.all(), matrix, 1.0, None, rows, false);
                }
            }
            rms_norm::backward(
                rec,
                &self.dhidden,
                &self.dnormed,
                &self.hidden,
                &model.output_norm,
                rows,
                None,
            );
            embedding::backward(rec, &acts.dhidden, &inputs.loss_rows, first, &self.dhidden, rows);
        }
    }

    /// Logits after the softcap of up to a chunk of rows of the last stream, `rows.len()` times `[V]`.
    pub async fn read_logits(
        &self,
        gpu: &Gpu,
        model: &Model<'_>,
        acts: &Activations,
        rows: &[u32],
    ) -> Result<Vec<f32>, GpuError> {
        let (vocab, stride) = (model.config().vocab, self.logits.stride);
        let mut logits = Vec::with_capacity(rows.len() * vocab);
        for chunk in rows.chunks(self.rows) {
            let ids = gpu.upload("logit rows", chunk)?;
            let mut rec = Recorder::new(gpu);
            self.logits(&mut rec, model, acts, &ids, 0, chunk.len(), acts.tokens);
            if let Some(softcap) = model.config().softcap {
                cross_entropy::cap(&mut rec, &self.logits, vocab, softcap, chunk.len());
            }
            rec.submit()?;
            let padded = gpu.read::<f32>(&self.logits.buffer, chunk.len() * stride).await?;
            logits.extend(padded.chunks_exact(stride).flat_map(|row| &row[..vocab]));
        }
        Ok(logits)
    }

    /// Logits before the softcap of `count` rows, from `rows[first]` on.
    fn logits<'a>(
        &self,
        rec: &mut Recorder<'a>,
        model: &'a Model,
        acts: &Activations,
        rows: &wgpu::Buffer,
        first: usize,
        count: usize,
        tokens: usize,
    ) {
        embedding::forward(rec, &self.hidden, rows, first, &acts.output.as_weight(tokens), 0, 1.0, count);
        rms_norm::forward(rec, &self.normed, &self.hidden, &model.output_norm, None, 1.0, count);
        let (logits, matrix) = (self.logits.all(), model.head_matrix());
        match &self.packs {
            Some(packs) => packs.frozen(rec, logits, &self.normed, matrix, 1.0, count),
            None => linear::forward(rec, logits, self.normed.all(), matrix, 1.0, None, count),
        }
    }

    /// Where the verdicts of the chunk from row `first` on go. They must come before the softcap hides what is not finite.
    fn verdicts<'a>(&'a self, losses: &'a Losses, first: usize) -> Verdicts<'a> {
        Verdicts { hidden: &self.hidden, buffer: (losses.verdicts, losses.offset + first) }
    }

    fn chunk<'a>(
        &'a self,
        model: &Model,
        inputs: &'a Inputs,
        losses: &'a Losses,
        first: usize,
        rows: usize,
    ) -> Chunk<'a> {
        Chunk {
            logits: &self.logits,
            rows,
            vocab: model.config().vocab,
            softcap: model.config().softcap,
            targets: (&inputs.targets, first),
            losses: (losses.buffer, losses.offset + first),
        }
    }
}
