//! Optimizer steps: micro-batches forward and backward, one update, one read-back.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::base::config::Config;
use crate::data::batch::{MicroBatch, Step};
use crate::gpu::{Gpu, GpuError, Recorder, Tier};
use crate::model::plan::{Passes, Recompute};
use crate::model::{Activations, Head, Inputs, Loads, Losses, Model, Plan, Trainable};
use crate::ops::adamw::{AdamW, ClipState};
use crate::ops::dropout::Mask;
use crate::ops::row_status as verdict;
use crate::ops::update_norm::Taken;
use crate::train::objective::Objective;

/// What stops a run.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The loss, the gradient or a hidden state is infinite or not a number. The adapter has not moved.
    #[error(
        "step {step}: the loss is {loss}, the gradient norm {grad_norm}, and {rows} of {loss_tokens} tokens that carry loss \
         overflowed, expected finite numbers; the adapter is as it was before this step. Lower train.learning_rate, set \
         train.max_grad_norm, or let such steps be left out with train.max_skipped_steps"
    )]
    NotFinite {
        /// Optimizer step, from 1.
        step: u64,
        /// Mean loss. It can look sound: the softcap hides what overflowed before it.
        loss: f64,
        /// Before clipping.
        grad_norm: f64,
        /// Tokens whose hidden state or logits are not finite.
        rows: usize,
        /// Tokens that carry loss.
        loss_tokens: usize,
    },
    /// A hidden state of the longest batch is infinite or not a number.
    #[error(
        "{rows} of {tokens} tokens of the longest batch overflow before the first step: their hidden states or logits are not \
         finite. The base's file is damaged, or the adapter of lora.init_from does not belong to it"
    )]
    LongestNotFinite {
        /// Tokens whose hidden state or logits are not finite.
        rows: usize,
        /// Tokens that carry loss.
        tokens: usize,
    },
    /// A hidden state of the validation samples is infinite or not a number.
    #[error(
        "validation after step {step}: {rows} of {tokens} tokens overflow, their hidden states or logits are not finite, so \
         that the loss means nothing. Lower train.learning_rate"
    )]
    ValidationNotFinite {
        /// Optimizer steps so far.
        step: usize,
        /// Tokens whose hidden state or logits are not finite.
        rows: usize,
        /// Tokens that carry loss.
        tokens: usize,
    },
    /// No step has moved the adapter.
    #[error(
        "training changed nothing: the adapter equals its start. Check train.learning_rate, and that the run has more than \
         its warm-up steps"
    )]
    Unmoved,
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
    /// Every value passes.
    pub const NONE: Dropout = Dropout { probability: 0.0, seed: 0 };

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
    /// Share of the loss-carrying tokens that were the likeliest ones, before the update.
    pub accuracy: f64,
    /// Global L2 norm before clipping.
    pub grad_norm: f64,
    /// L2 norm of the update over that of the adapter after it.
    pub update_ratio: f64,
}

/// Loss and accuracy over some micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Sum over all loss-carrying tokens.
    pub loss_sum: f64,
    /// Their number.
    pub tokens: usize,
    /// Those that were the likeliest ones.
    pub right: usize,
    /// Those whose hidden state or logits are not finite: above 0, the loss means nothing.
    pub not_finite: usize,
}

impl std::ops::AddAssign for Evaluation {
    fn add_assign(&mut self, other: Evaluation) {
        self.loss_sum += other.loss_sum;
        self.tokens += other.tokens;
        self.right += other.right;
        self.not_finite += other.not_finite;
    }
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

    /// Share of the tokens that were the likeliest ones.
    pub fn accuracy(&self) -> f64 {
        self.right as f64 / self.tokens as f64
    }
}

/// The largest micro-batch and step that a [`Trainer`] must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capacity {
    /// Tokens in a micro-batch.
    pub tokens: usize,
    /// Tokens of its longest sample: nothing but what a plan keeps depends on it.
    pub longest: usize,
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
            self.longest = self.longest.max(batch.longest());
            self.loss_tokens = self.loss_tokens.max(batch.loss_rows.len());
        }
        self.step_loss_tokens = self.step_loss_tokens.max(step.loss_tokens);
    }
}

/// Everything that an optimizer step changes, in host memory: what a checkpoint holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The adapter's matrices.
    pub parameters: BTreeMap<Slot, Pair>,
    /// AdamW's first moments; zero for plain gradient descent.
    pub first: BTreeMap<Slot, Pair>,
    /// AdamW's second moments; zero for plain gradient descent.
    pub second: BTreeMap<Slot, Pair>,
    /// Updates so far: AdamW's step count.
    pub updates: u64,
}

/// A model, an adapter, and the buffers to train it.
pub struct Trainer<'a> {
    gpu: &'a Gpu,
    model: &'a Model<'a>,
    adapter: Trainable,
    activations: Activations,
    head: Head,
    losses: wgpu::Buffer,
    verdicts: wgpu::Buffer,
    coefficients: wgpu::Buffer,
    announced: Mutex<Option<MicroBatch>>,
    ready: Mutex<Option<(MicroBatch, Inputs)>>,
    /// Steps that were not finite are none of them.
    updates: AtomicU64,
    capacity: Capacity,
    dropout: Dropout,
    plan: Plan,
}

impl<'a> Trainer<'a> {
    /// Allocates everything that steps up to `capacity` need; nothing where that is more than `recompute` allows.
    pub fn new(
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        adapter: &Adapter,
        capacity: Capacity,
        dropout: Dropout,
        recompute: Recompute,
    ) -> Result<Trainer<'a>, GpuError> {
        let adapter = Trainable::new(gpu, adapter, model.config().layers.len())?;
        let passes = Passes { capacity, masked: dropout.probability > 0.0, recompute };
        let plan = Plan::new(gpu, model, &adapter, passes);
        if let Recompute::Within(limit) = recompute
            && plan.total() > limit
        {
            return Err(GpuError::OverLimit { needed: plan.total(), limit });
        }
        Ok(Trainer {
            gpu,
            model,
            activations: Activations::new(gpu, &plan)?,
            head: Head::new(gpu, model, &plan)?,
            losses: gpu.buffer("losses", (capacity.step_loss_tokens.max(1) * 4) as u64)?,
            verdicts: gpu.buffer("verdicts", (capacity.step_loss_tokens.max(1) * 4) as u64)?,
            coefficients: gpu.buffer("coefficients", (capacity.step_loss_tokens.max(1) * 4) as u64)?,
            announced: Mutex::new(None),
            ready: Mutex::new(None),
            updates: AtomicU64::new(0),
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

    /// Says what will follow the next step: its first micro-batch goes to the device while that step is computed there.
    /// Changes nothing but the time that is waited for it.
    pub fn announce(&self, step: &Step) {
        *self.announced.lock().expect("no thread died here") = step.micro_batches.first().cloned();
    }

    /// `batch` on the device, where it may lie already.
    async fn inputs(&self, batch: &MicroBatch) -> Result<Inputs, GpuError> {
        let ready = self.ready.lock().expect("no thread died here").take_if(|(of, _)| of == batch);
        match ready {
            Some((_, inputs)) => Ok(inputs),
            None => Inputs::upload(self.gpu, self.model, batch).await,
        }
    }

    async fn make_ready(&self) -> Result<(), GpuError> {
        let Some(batch) = self.announced.lock().expect("no thread died here").take() else { return Ok(()) };
        let inputs = Inputs::upload(self.gpu, self.model, &batch).await?;
        *self.ready.lock().expect("no thread died here") = Some((batch, inputs));
        Ok(())
    }

    /// One optimizer step, `number` counted from 1.
    pub async fn step(
        &self,
        step: &Step,
        number: u64,
        optimizer: &Optimizer,
        learning_rate: f64,
    ) -> Result<StepReport, TrainError> {
        self.forward_backward(step, number).await?;
        let mut rec = Recorder::new(self.gpu);
        let update = self.update(&mut rec, step.loss_tokens, optimizer, learning_rate);
        rec.submit()?;
        self.make_ready().await?;
        let loss = self.mean_loss(step).await?;
        let state = self.gpu.read::<ClipState>(&self.adapter.clip.state, 1).await?[0];
        let grad_norm = f64::from(state.norm);
        if state.finite == 0.0 {
            let (rows, loss_tokens) = (state.not_finite as usize, step.loss_tokens);
            return Err(TrainError::NotFinite { step: number, loss, grad_norm, rows, loss_tokens });
        }
        self.updates.store(update, Ordering::Relaxed);
        let accuracy = f64::from(state.right) / step.loss_tokens as f64;
        let update_ratio = f64::from(state.update_norm) / f64::from(state.parameter_norm);
        Ok(StepReport { loss, accuracy, grad_norm, update_ratio })
    }

    /// How the router spread the tokens of the last micro-batch over the experts; `None` in dense models.
    pub async fn expert_loads(&self) -> Result<Option<Loads>, GpuError> {
        Loads::read(self.gpu, self.activations.first_experts()).await
    }

    /// Runs micro-batches forward and backward without moving the adapter: what does not fit, or takes the device down,
    /// shows before the first step.
    pub async fn dry_pass(&self, batches: &[MicroBatch]) -> Result<Evaluation, TrainError> {
        let mut evaluation = Evaluation::default();
        for batch in batches {
            let step = Step { loss_tokens: batch.loss_rows.len(), micro_batches: vec![batch.clone()] };
            self.forward_backward(&step, 0).await?;
            evaluation += self.read_evaluation(step.loss_tokens).await?;
        }
        Ok(evaluation)
    }

    /// Mean loss and every gradient of a step, without moving the adapter. Dropout is that of step `number`.
    pub async fn gradients(
        &self,
        step: &Step,
        number: u64,
    ) -> Result<(f64, BTreeMap<Slot, Pair>), TrainError> {
        self.forward_backward(step, number).await?;
        Ok((self.mean_loss(step).await?, self.adapter.read_gradients(self.gpu).await?))
    }

    /// Compiles what steps with `optimizer` and evaluations over `batches` run, side by side; how many kernels these are.
    /// Batches of other sizes may need a few more, which are compiled when they come.
    pub async fn compile(&self, batches: &[MicroBatch], optimizer: &Optimizer) -> Result<usize, GpuError> {
        self.assert_fits(batches);
        let mut rec = Recorder::ahead(self.gpu);
        self.adapter.zero_gradients(&mut rec);
        for batch in batches {
            let inputs = self.inputs(batch).await?;
            let losses = Losses { buffer: &self.losses, verdicts: &self.verdicts, offset: 0 };
            let mask = self.dropout.mask(0, 0);
            self.record(&mut rec, &inputs, &losses, mask).await?;
            if mask.is_some() {
                self.model.forward(&mut rec, &inputs, &self.adapter, &self.activations, None).await?;
            }
            self.head.forward(&mut rec, self.model, &inputs, &self.activations, &losses);
            *self.ready.lock().expect("no thread died here") = Some((batch.clone(), inputs));
        }
        self.update(&mut rec, self.capacity.step_loss_tokens, optimizer, 0.0);
        rec.compile()
    }

    /// One micro-batch forward and backward.
    async fn record<'r>(
        &'r self,
        rec: &mut Recorder<'r>,
        inputs: &Inputs,
        losses: &Losses<'_>,
        mask: Option<Mask>,
    ) -> Result<(), GpuError> {
        let (adapter, acts) = (&self.adapter, &self.activations);
        self.model.forward(rec, inputs, adapter, acts, mask).await?;
        self.head.backward(rec, self.model, inputs, acts, losses, &self.coefficients);
        self.model.backward(rec, inputs, adapter, acts, mask).await
    }

    /// The update of a step with `loss_tokens`; its number.
    fn update(
        &self,
        rec: &mut Recorder,
        loss_tokens: usize,
        optimizer: &Optimizer,
        learning_rate: f64,
    ) -> u64 {
        let adam = optimizer.adam.as_ref();
        let weight_decay = adam.map_or(optimizer.weight_decay, |a| a.weight_decay);
        let update = self.updates.load(Ordering::Relaxed) + 1;
        let taken = Taken { adam, weight_decay, learning_rate, update };
        self.adapter.update(rec, (&self.verdicts, loss_tokens), optimizer.max_grad_norm, &taken);
        update
    }

    async fn forward_backward(&self, step: &Step, number: u64) -> Result<(), TrainError> {
        if step.loss_tokens == 0 {
            return Err(TrainError::NoLoss { step: number });
        }
        self.assert_fits(&step.micro_batches);
        let mut rec = Recorder::new(self.gpu);
        self.adapter.zero_gradients(&mut rec);
        self.gpu.write(&self.coefficients, &Objective::CrossEntropy.coefficients(step.loss_tokens));
        let mut offset = 0;
        for (i, batch) in step.micro_batches.iter().enumerate() {
            let inputs = self.inputs(batch).await?;
            let losses = Losses { buffer: &self.losses, verdicts: &self.verdicts, offset };
            self.record(&mut rec, &inputs, &losses, self.dropout.mask(number, i)).await?;
            rec.submit()?;
            offset += inputs.loss_tokens;
        }
        Ok(())
    }

    async fn mean_loss(&self, step: &Step) -> Result<f64, GpuError> {
        let losses = self.gpu.read::<f32>(&self.losses, step.loss_tokens).await?;
        Ok(losses.iter().map(|&l| f64::from(l)).sum::<f64>() / step.loss_tokens as f64)
    }

    /// What the first `rows` losses and verdicts say.
    async fn read_evaluation(&self, rows: usize) -> Result<Evaluation, GpuError> {
        let losses = self.gpu.read::<f32>(&self.losses, rows).await?;
        let verdicts = self.gpu.read::<u32>(&self.verdicts, rows).await?;
        let count = |which: u32| verdicts.iter().filter(|&&v| v == which).count();
        Ok(Evaluation {
            loss_sum: losses.iter().map(|&l| f64::from(l)).sum(),
            tokens: rows,
            right: count(verdict::RIGHT),
            not_finite: count(verdict::NOT_FINITE),
        })
    }

    /// Loss and accuracy over `batches`, without dropout. `progress` hears how many are done.
    pub async fn evaluate(
        &self,
        batches: &[MicroBatch],
        mut progress: impl FnMut(usize),
    ) -> Result<Evaluation, GpuError> {
        self.assert_fits(batches);
        let mut evaluation = Evaluation::default();
        for (i, batch) in batches.iter().enumerate() {
            let mut rec = Recorder::new(self.gpu);
            let inputs = Inputs::upload(self.gpu, self.model, batch).await?;
            let losses = Losses { buffer: &self.losses, verdicts: &self.verdicts, offset: 0 };
            self.model.forward(&mut rec, &inputs, &self.adapter, &self.activations, None).await?;
            self.head.forward(&mut rec, self.model, &inputs, &self.activations, &losses);
            rec.submit()?;
            evaluation += self.read_evaluation(inputs.loss_tokens).await?;
            progress(i + 1);
        }
        Ok(evaluation)
    }

    /// Logits after the softcap of the given rows of a micro-batch, `rows.len()` times `[V]`.
    pub async fn logits(&self, batch: &MicroBatch, rows: &[u32]) -> Result<Vec<f32>, GpuError> {
        self.assert_fits(std::slice::from_ref(batch));
        let mut rec = Recorder::new(self.gpu);
        let inputs = Inputs::upload(self.gpu, self.model, batch).await?;
        self.model.forward(&mut rec, &inputs, &self.adapter, &self.activations, None).await?;
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

    /// What its products compute with.
    pub fn tier(&self) -> Tier {
        self.gpu.kernels().tier()
    }

    /// The shape of its model.
    pub fn config(&self) -> &Config {
        self.model.config()
    }

    /// The adapter's matrices as they are now.
    pub async fn adapter(&self) -> Result<BTreeMap<Slot, Pair>, GpuError> {
        self.adapter.read(self.gpu).await
    }

    /// Everything that a later [`Trainer::restore`] needs to go on with the same bits.
    pub async fn snapshot(&self) -> Result<Snapshot, GpuError> {
        let parameters = self.adapter.read(self.gpu).await?;
        let [first, second] = self.adapter.read_moments(self.gpu).await?;
        Ok(Snapshot { parameters, first, second, updates: self.updates.load(Ordering::Relaxed) })
    }

    /// Goes back, or on, to what `snapshot` says.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.adapter.write_parameters(self.gpu, &snapshot.parameters);
        self.adapter.write_moments(self.gpu, &snapshot.first, &snapshot.second);
        self.updates.store(snapshot.updates, Ordering::Relaxed);
    }

    fn assert_fits(&self, batches: &[MicroBatch]) {
        for batch in batches {
            assert!(batch.len() <= self.capacity.tokens, "capacity covers every micro-batch");
            assert!(batch.loss_rows.len() <= self.capacity.step_loss_tokens, "capacity covers every loss");
        }
    }
}
