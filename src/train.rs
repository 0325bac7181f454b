//! Optimizer steps: micro-batches forward and backward, one update, one read-back.

use std::collections::BTreeMap;

use crate::batch::{MicroBatch, Step};
use crate::config::Config;
use crate::gpu::{Gpu, GpuError, Recorder};
use crate::lora::{Adapter, Pair, Slot};
use crate::model::plan::Recompute;
use crate::model::{Activations, Head, Inputs, Losses, Model, Plan, Trainable};
use crate::ops::adamw::AdamW;
use crate::ops::dropout::Mask;

/// What stops a run.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The loss or the gradient is infinite or not a number. The adapter has not moved.
    #[error(
        "step {step}: the loss is {loss} and the gradient norm {grad_norm}, expected finite numbers; the adapter is as it \
         was before this step. Lower train.learning_rate, or set train.max_grad_norm"
    )]
    NotFinite {
        /// Optimizer step, from 1.
        step: u64,
        /// Mean loss.
        loss: f64,
        /// Before clipping.
        grad_norm: f64,
    },
    /// A step without a single loss-carrying token.
    #[error("step {step} holds no token that carries loss; remove the samples without labels")]
    NoLoss {
        /// Optimizer step, from 1.
        step: u64,
    },
}

/// How gradients become updates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// `None` for plain gradient descent.
    pub adam: Option<AdamW>,
    /// Of plain gradient descent; AdamW has its own.
    pub weight_decay: f64,
    /// Global clipping; 0: none.
    pub max_grad_norm: f64,
}

/// Dropout's probability and the seed of its masks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// In `[0, 1)`.
    pub probability: f64,
    /// Decides every mask.
    pub seed: u64,
}

impl Dropout {
    /// The mask of one micro-batch; the same wherever the run was interrupted.
    fn mask(&self, step: u64, micro_batch: usize) -> Option<Mask> {
        let key = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (step << 20) ^ micro_batch as u64;
        let key = key.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (self.probability > 0.0).then_some(Mask { probability: self.probability, key: (key >> 32) as u32 })
    }
}

/// What an optimizer step reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Mean over all loss-carrying tokens of the step, before the update.
    pub loss: f64,
    /// Global L2 norm before clipping.
    pub grad_norm: f64,
}

/// Mean loss over some micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Sum over all loss-carrying tokens.
    pub loss_sum: f64,
    /// Their number.
    pub tokens: usize,
}

impl Evaluation {
    /// Mean loss a token.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.tokens as f64
    }

    /// `e` to the mean loss.
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }
}

/// The largest micro-batch and step that a [`Trainer`] must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capacity {
    /// Tokens in a micro-batch.
    pub tokens: usize,
    /// Loss-carrying tokens in a micro-batch.
    pub loss_tokens: usize,
    /// Loss-carrying tokens in an optimizer step.
    pub step_loss_tokens: usize,
}

impl Capacity {
    /// Makes room for `step`.
    pub fn include(&mut self, step: &Step) {
        for batch in &step.micro_batches {
            self.tokens = self.tokens.max(batch.len());
            self.loss_tokens = self.loss_tokens.max(batch.loss_rows.len());
        }
        self.step_loss_tokens = self.step_loss_tokens.max(step.loss_tokens);
    }
}

/// A model, an adapter, and the buffers to train it.
pub struct Trainer<'a> {
    gpu: &'a Gpu,
    model: &'a Model<'a>,
    adapter: Trainable,
    activations: Activations,
    head: Head,
    losses: wgpu::Buffer,
    capacity: Capacity,
    dropout: Dropout,
    plan: Plan,
}

impl<'a> Trainer<'a> {
    /// Allocates everything that steps up to `capacity` need.
    pub fn new(
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        adapter: &Adapter,
        capacity: Capacity,
        dropout: Dropout,
        recompute: Recompute,
    ) -> Result<Trainer<'a>, GpuError> {
        let adapter = Trainable::new(gpu, adapter, model.config().layers.len())?;
        let masked = dropout.probability > 0.0;
        let plan = Plan::new(gpu, model, &adapter, capacity.tokens, capacity.loss_tokens, masked, recompute);
        Ok(Trainer {
            gpu,
            model,
            activations: Activations::new(gpu, &plan)?,
            head: Head::new(gpu, model, &plan)?,
            losses: gpu.buffer("losses", (capacity.step_loss_tokens.max(1) * 4) as u64)?,
            adapter,
            capacity,
            dropout,
            plan,
        })
    }

    /// The memory plan that was carried out.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// One optimizer step, `number` counted from 1.
    pub async fn step(
        &self,
        step: &Step,
        number: u64,
        optimizer: &Optimizer,
        learning_rate: f64,
    ) -> Result<StepReport, TrainError> {
        self.forward_backward(step, number)?;
        let mut rec = Recorder::new(self.gpu);
        let (adam, decay) = (optimizer.adam.as_ref(), optimizer.weight_decay);
        self.adapter.update(&mut rec, adam, decay, optimizer.max_grad_norm, learning_rate, number);
        rec.submit()?;
        let loss = self.mean_loss(step).await?;
        let clip = self.gpu.read::<f32>(&self.adapter.clip.state, 3).await?;
        let grad_norm = f64::from(clip[0]);
        if clip[2] == 0.0 || !loss.is_finite() {
            return Err(TrainError::NotFinite { step: number, loss, grad_norm });
        }
        Ok(StepReport { loss, grad_norm })
    }

    /// Mean loss and every gradient of a step, without moving the adapter. Dropout is that of step `number`.
    pub async fn gradients(
        &self,
        step: &Step,
        number: u64,
    ) -> Result<(f64, BTreeMap<Slot, Pair>), TrainError> {
        self.forward_backward(step, number)?;
        Ok((self.mean_loss(step).await?, self.adapter.read_gradients(self.gpu).await?))
    }

    fn forward_backward(&self, step: &Step, number: u64) -> Result<(), TrainError> {
        if step.loss_tokens == 0 {
            return Err(TrainError::NoLoss { step: number });
        }
        self.assert_fits(&step.micro_batches);
        let mut rec = Recorder::new(self.gpu);
        self.adapter.zero_gradients(&mut rec);
        let factor = 1.0 / step.loss_tokens as f32;
        let mut offset = 0;
        for (i, batch) in step.micro_batches.iter().enumerate() {
            let inputs = Inputs::upload(self.gpu, self.model, batch)?;
            let losses = Losses { buffer: &self.losses, offset };
            let mask = self.dropout.mask(number, i);
            let (adapter, acts) = (&self.adapter, &self.activations);
            self.model.forward(&mut rec, &inputs, adapter, acts, mask);
            self.head.backward(&mut rec, self.model, &inputs, acts, &losses, factor);
            self.model.backward(&mut rec, &inputs, adapter, acts, mask);
            rec.submit()?;
            offset += inputs.loss_tokens;
        }
        Ok(())
    }

    async fn mean_loss(&self, step: &Step) -> Result<f64, GpuError> {
        let losses = self.gpu.read::<f32>(&self.losses, step.loss_tokens).await?;
        Ok(losses.iter().map(|&l| f64::from(l)).sum::<f64>() / step.loss_tokens as f64)
    }

    /// Loss over `batches`, without dropout. `progress` hears how many are done.
    pub async fn evaluate(
        &self,
        batches: &[MicroBatch],
        mut progress: impl FnMut(usize),
    ) -> Result<Evaluation, GpuError> {
        self.assert_fits(batches);
        let mut evaluation = Evaluation::default();
        for (i, batch) in batches.iter().enumerate() {
            let mut rec = Recorder::new(self.gpu);
            let inputs = Inputs::upload(self.gpu, self.model, batch)?;
            let losses = Losses { buffer: &self.losses, offset: 0 };
            self.model.forward(&mut rec, &inputs, &self.adapter, &self.activations, None);
            self.head.forward(&mut rec, self.model, &inputs, &self.activations, &losses);
            rec.submit()?;
            let losses = self.gpu.read::<f32>(&self.losses, inputs.loss_tokens).await?;
            evaluation.loss_sum += losses.iter().map(|&l| f64::from(l)).sum::<f64>();
            evaluation.tokens += inputs.loss_tokens;
            progress(i + 1);
        }
        Ok(evaluation)
    }

    /// Logits after the softcap of the given rows of a micro-batch, `rows.len()` times `[V]`.
    pub async fn logits(&self, batch: &MicroBatch, rows: &[u32]) -> Result<Vec<f32>, GpuError> {
        self.assert_fits(std::slice::from_ref(batch));
        let mut rec = Recorder::new(self.gpu);
        let inputs = Inputs::upload(self.gpu, self.model, batch)?;
        self.model.forward(&mut rec, &inputs, &self.adapter, &self.activations, None);
        rec.submit()?;
        self.head.read_logits(self.gpu, self.model, &self.activations, rows).await
    }

    /// Puts another adapter of the same slots and rank in the place of the adapter; gradients and moments stay.
    pub fn set_adapter(&mut self, adapter: &Adapter) {
        self.adapter.set(self.gpu, adapter);
    }

    /// What it can hold.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Whether its products run on cooperative matrices, with operands in f16.
    pub fn cooperative(&self) -> bool {
        self.gpu.cooperative()
    }

    /// The shape of its model.
    pub fn config(&self) -> &Config {
        self.model.config()
    }

    /// The adapter's matrices as they are now.
    pub async fn adapter(&self) -> Result<BTreeMap<Slot, Pair>, GpuError> {
        self.adapter.read(self.gpu).await
    }

    fn assert_fits(&self, batches: &[MicroBatch]) {
        for batch in batches {
            assert!(batch.len() <= self.capacity.tokens, "capacity covers every micro-batch");
            assert!(batch.loss_rows.len() <= self.capacity.step_loss_tokens, "capacity covers every loss");
        }
    }
}
