//! Output norm, output projection, row status, softcap and cross entropy over the loss rows, a bounded chunk at a time.

use super::{Inputs, Model};
use crate::gpu::{Gpu, GpuError, Recorder};
use crate::memory::{Activations, Plan};
use crate::ops::act::Act;
use crate::ops::argmax::top;
use crate::ops::cross_entropy::{self, Chunk};
use crate::ops::distill::{self, Distill, Lesson, teacher};
use crate::ops::linear::cuda::{Panels, Way};
use crate::ops::pass::{Operands, Pass, Scratch};
use crate::ops::row_status::Verdicts;
use crate::ops::{Rows, embedding, linear, rms_norm};

/// Buffers of one chunk of `C` rows.
pub struct Head {
    rows: usize,
    hidden: Act,  // rows of the last stream [C, D]
    normed: Act,  // [C, D]
    dnormed: Act, // [C, D]
    dhidden: Act, // [C, D]
    logits: Rows, // [C, V]
    scratch: Scratch,
    panels: Option<[Panels; 2]>, // of the output projection, forward and backward, made once for all chunks
}

/// Buffers for losses and verdicts: one of each for each loss-carrying row of the optimizer step.
pub struct Losses<'a> {
    /// Losses, f32.
    pub buffer: &'a wgpu::Buffer,
    /// Verdicts, u32: see [`Verdicts`].
    pub verdicts: &'a wgpu::Buffer,
    /// Place of the micro-batch's first row.
    pub offset: usize,
    /// The logits are divided by it. A teacher's objective has its own.
    pub temperature: f32,
    /// The loss of objectives that have a teacher, and a buffer of two f32 for each row: see [`Lesson::results`].
    pub distill: Option<(Distill, &'a wgpu::Buffer)>,
}

/// The tokens that a teacher finds likeliest, in each loss row of a pass.
#[derive(Clone, Copy)]
pub struct Likeliest<'a> {
    /// Tokens of the vocabulary that count.
    pub count: usize,
    /// Tokens to find, at least 1.
    pub top: usize,
    /// The logits are divided by it in the sums.
    pub temperature: f64,
    /// Results of [`top::forward`].
    pub results: &'a wgpu::Buffer,
    /// Results of [`teacher::forward`].
    pub sums: &'a wgpu::Buffer,
}

impl Head {
    /// Buffers for chunks of `plan.head_rows` rows; `scratch` is that of the layers, whose panels it shares.
    pub fn new(gpu: &Gpu, model: &Model, plan: &Plan, scratch: &Scratch) -> Result<Head, GpuError> {
        let (rows, width, vocab) = (plan.head_rows, model.config().width, model.config().vocab);
        let act = |label: &str| Ok::<Act, GpuError>(Rows::new(gpu, label, rows, width)?.into());
        let operands = match &scratch.operands {
            None => None,
            Some(all) => {
                let operands = Operands::new(gpu, rows, width, vocab, 0)?;
                Some(operands.with_panels(all.panels.clone()))
            }
        };
        let panels = operands.as_ref().and_then(|o| o.panels.as_ref()?.both_ways(model.head_matrix()));
        Ok(Head {
            rows,
            panels,
            hidden: act("head input")?,
            normed: act("head normed")?,
            dnormed: act("head dnormed")?,
            dhidden: act("head gradient")?,
            logits: Rows::new(gpu, "logits", rows, vocab)?,
            scratch: Scratch::for_products(gpu, operands)?,
        })
    }

    /// The loss of every loss row.
    pub fn forward(
        &self,
        rec: &mut Recorder,
        model: &Model,
        inputs: &Inputs,
        acts: &Activations,
        losses: &Losses,
    ) {
        for first in (0..inputs.loss_tokens).step_by(self.rows) {
            let rows = self.rows.min(inputs.loss_tokens - first);
            let p = &mut self.pass(rec, rows);
            self.logits(p, model, acts, &inputs.loss_rows, first, inputs.tokens);
            let chunk = self.chunk(model, inputs, losses, first, rows);
            let verdicts = self.verdicts(losses, first);
            match lesson(inputs, losses) {
                Some(lesson) => distill::forward(p, &chunk, &lesson, &verdicts),
                None => cross_entropy::forward(p, &chunk, &verdicts),
            }
        }
    }

    /// Computes the losses, and the gradient of `Σ coefficient·loss` with respect to the last stream, in `acts`.
    ///
    /// `coefficients`, f32, stand at the same places as the losses.
    pub fn backward(
        &self,
        rec: &mut Recorder,
        model: &Model,
        inputs: &Inputs,
        acts: &Activations,
        losses: &Losses,
        coefficients: &wgpu::Buffer,
    ) {
        let dstream = acts.dhidden.rows();
        rec.clear(&dstream.buffer, (inputs.tokens * dstream.stride * 4) as u64);
        for first in (0..inputs.loss_tokens).step_by(self.rows) {
            let rows = self.rows.min(inputs.loss_tokens - first);
            let p = &mut self.pass(rec, rows);
            self.logits(p, model, acts, &inputs.loss_rows, first, inputs.tokens);
            let chunk = self.chunk(model, inputs, losses, first, rows);
            let verdicts = self.verdicts(losses, first);
            let dlogits = match lesson(inputs, losses) {
                Some(lesson) => distill::backward(p, &chunk, &lesson, &verdicts, coefficients),
                None => cross_entropy::backward(p, &chunk, &verdicts, coefficients),
            };
            p.panels = self.panels(Way::Backward, first);
            linear::frozen_backward(p, &self.dnormed, &dlogits, model.head_matrix());
            rms_norm::backward(p, &self.dhidden, &self.dnormed, &self.hidden, &model.output_norm);
            embedding::backward(p.rec.now(), dstream, &inputs.loss_rows, first, self.dhidden.rows(), rows);
        }
    }

    /// The likeliest tokens of every loss row, and the sums that make their logits probabilities.
    pub fn likeliest(
        &self,
        rec: &mut Recorder,
        model: &Model,
        inputs: &Inputs,
        acts: &Activations,
        wanted: &Likeliest,
    ) {
        let Likeliest { count, top, temperature, results, sums } = *wanted;
        for first in (0..inputs.loss_tokens).step_by(self.rows) {
            let rows = self.rows.min(inputs.loss_tokens - first);
            self.logits(&mut self.pass(rec, rows), model, acts, &inputs.loss_rows, first, inputs.tokens);
            if let Some(softcap) = model.config().softcap {
                cross_entropy::cap(rec, &self.logits, model.config().vocab, softcap, rows);
            }
            top::forward(rec, &self.logits, count, &inputs.targets, results, first, top, rows);
            let found = teacher::Found { values: &self.logits, count, results, top, first };
            teacher::forward(rec, &found, temperature, sums, rows);
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
            self.logits(&mut self.pass(&mut rec, chunk.len()), model, acts, &ids, 0, acts.tokens);
            if let Some(softcap) = model.config().softcap {
                cross_entropy::cap(&mut rec, &self.logits, vocab, softcap, chunk.len());
            }
            rec.submit()?;
            let padded = gpu.read::<f32>(&self.logits.buffer, chunk.len() * stride).await?;
            logits.extend(padded.chunks_exact(stride).flat_map(|row| &row[..vocab]));
        }
        Ok(logits)
    }

    /// Logits before the softcap of the pass's rows: `rows[first]` and those behind it.
    fn logits(
        &self,
        p: &mut Pass,
        model: &Model,
        acts: &Activations,
        rows: &wgpu::Buffer,
        first: usize,
        tokens: usize,
    ) {
        let stream = acts.input(model.layers.len(), 0, true).rows().as_weight(tokens);
        embedding::forward(p.rec.now(), self.hidden.rows(), rows, first, &stream, 0, 1.0, p.tokens);
        rms_norm::forward(p, &self.normed, &self.hidden, &model.output_norm);
        p.panels = self.panels(Way::Forward, first);
        linear::frozen(p, &self.logits.clone().into(), &self.normed, model.head_matrix(), 1.0);
    }

    /// The panels of the chunk that starts at row `first`. The first one, which is the longest, makes them.
    fn panels(&self, way: Way, first: usize) -> Option<Panels> {
        let panels = &self.panels.as_ref()?[way as usize];
        Some(if first == 0 { panels.clone() } else { panels.as_made() })
    }

    fn pass<'p, 'g>(&'p self, rec: &'p mut Recorder<'g>, rows: usize) -> Pass<'p, 'g> {
        Pass::new(rec, rows, &self.scratch)
    }

    /// Destination of the verdicts of the chunk that starts at row `first`.
    fn verdicts<'a>(&'a self, losses: &'a Losses, first: usize) -> Verdicts<'a> {
        Verdicts { hidden: self.hidden.rows(), buffer: (losses.verdicts, losses.offset + first) }
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
            temperature: losses.temperature,
            targets: (&inputs.targets, first),
            losses: (losses.buffer, losses.offset + first),
        }
    }
}

/// The teacher's distributions of a micro-batch, where the objective has a teacher.
fn lesson<'a>(inputs: &'a Inputs, losses: &Losses<'a>) -> Option<Lesson<'a>> {
    let ((distill, results), teacher) = losses.distill.zip(inputs.teacher.as_ref())?;
    Some(Lesson { distill, top: teacher.top, ids: &teacher.ids, values: &teacher.values, results })
}
