//! Optimizer steps: micro-batches forward and backward, one update, one read-back.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::exchange::{Exchange, Times};
use super::next_step::Following;
use super::objective::Objective;
use super::ranks::Ranks;
use super::results::{Measured, Snapshot, StepReport};
use super::{Capacity, Dropout, Optimizer, TrainError};
use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::base::config::Config;
use crate::data::batch::{MicroBatch, Step};
use crate::gpu::{BindGroups, Gpu, GpuError, Product, Recorder, Tier};
use crate::model::plan::{Passes, Recompute};
use crate::model::{Activations, Head, Inputs, Losses, Model, Plan, Trainable};
use crate::ops::adamw::ClipState;
use crate::ops::dropout::Mask;
use crate::ops::update_norm::Taken;

/// A model, an adapter, and the buffers to train it.
pub struct Trainer<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) model: &'a Model<'a>,
    pub(super) adapter: Trainable,
    pub(super) activations: Activations,
    pub(super) head: Head,
    // One value per loss token of the step:
    pub(super) losses: wgpu::Buffer,
    pub(super) row_status: wgpu::Buffer,
    pub(super) coefficients: wgpu::Buffer,
    /// Divergence from the teacher, and whether it agrees: two values per loss token.
    pub(super) lessons: wgpu::Buffer,
    pub(super) objective: Objective,
    /// KTO's estimate for the current step.
    pub(super) kl: Mutex<Option<f64>>,
    /// Those of the last step's dispatches.
    pub(super) bind_groups: Mutex<BindGroups>,
    /// The next step.
    pub(super) following: Following,
    /// Updates so far; skipped steps do not count.
    updates: AtomicU64,
    capacity: Capacity,
    pub(super) dropout: Dropout,
    plan: Plan,
    ranks: Rc<Ranks>,
    /// `None` for steps of one share, and while it is in use.
    pub(super) exchange: Mutex<Option<Exchange>>,
}

impl<'a> Trainer<'a> {
    /// Allocates everything that steps up to `capacity` need. Fails before allocating where that exceeds the limit in
    /// `recompute`.
    pub fn new(
        gpu: &'a Gpu,
        model: &'a Model<'a>,
        adapter: &Adapter,
        capacity: Capacity,
        dropout: Dropout,
        recompute: Recompute,
    ) -> Result<Trainer<'a>, GpuError> {
        let adapter = Trainable::new(gpu, adapter, model.config())?;
        let passes = Passes { capacity, masked: dropout.probability > 0.0, recompute };
        let plan = Plan::new(gpu, model, &adapter, passes);
        if let Recompute::Within(limit) = recompute
            && plan.total() > limit
        {
            return Err(GpuError::OverLimit { needed: plan.total(), limit });
        }
        let per_row = (capacity.step_loss_tokens.max(1) * 4) as u64;
        let activations = Activations::new(gpu, &plan)?;
        Ok(Trainer {
            gpu,
            model,
            head: Head::new(gpu, model, &plan, &activations.scratch)?,
            activations,
            losses: gpu.buffer("losses", per_row)?,
            row_status: gpu.buffer("row status", per_row)?,
            coefficients: gpu.buffer("coefficients", per_row)?,
            lessons: gpu.buffer("lessons", 2 * per_row)?,
            objective: Objective::CrossEntropy,
            kl: Mutex::new(None),
            bind_groups: Mutex::default(),
            following: Following::default(),
            updates: AtomicU64::new(0),
            adapter,
            capacity,
            dropout,
            plan,
            ranks: Rc::new(Ranks::alone()),
            exchange: Mutex::new(None),
        })
    }

    /// Sets the objective. It is the mean cross entropy otherwise.
    #[must_use]
    pub fn with_objective(self, objective: Objective) -> Trainer<'a> {
        Trainer { objective, ..self }
    }

    /// Cuts every step into `shares` shares, which `ranks` compute together. With one share nothing changes.
    pub fn share(&mut self, ranks: &Rc<Ranks>, shares: usize) -> Result<(), TrainError> {
        let new = (shares > 1).then(|| Exchange::new(ranks.clone(), shares, self.adapter.gradient_values()));
        self.exchange = Mutex::new(new.transpose()?);
        self.ranks = ranks.clone();
        Ok(())
    }

    /// The processes that train together.
    pub fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// The time that the parts of the steps so far took; `None` for steps of one share.
    pub fn times(&self) -> Option<Times> {
        self.exchange.lock().expect("lock is not poisoned").as_ref().map(|exchange| exchange.times().clone())
    }

    /// One optimizer step; `number` counts from 1.
    pub async fn step(
        &self,
        step: &Step,
        number: u64,
        optimizer: &Optimizer,
        learning_rate: f64,
    ) -> Result<StepReport, TrainError> {
        self.sum_gradients(step, number).await?;
        self.apply(step, number, optimizer, learning_rate).await
    }

    /// The gradients of a whole step, of all its shares.
    async fn sum_gradients(&self, step: &Step, number: u64) -> Result<(), TrainError> {
        self.find_kl(step).await?;
        let Some(mut exchange) = self.take_exchange() else {
            return self.accumulate(step, number, 0..step.micro_batches.len()).await;
        };
        self.sum_shares(&mut exchange, step, number).await?;
        self.put_back(exchange);
        Ok(())
    }

    fn take_exchange(&self) -> Option<Exchange> {
        self.exchange.lock().expect("lock is not poisoned").take()
    }

    fn put_back(&self, exchange: Exchange) {
        *self.exchange.lock().expect("lock is not poisoned") = Some(exchange);
    }

    /// Adds up the gradients of some micro-batches of a step, starting from zero. Dropout uses the masks of step `number`.
    pub(super) async fn accumulate(
        &self,
        step: &Step,
        number: u64,
        micro_batches: Range<usize>,
    ) -> Result<(), TrainError> {
        if step.loss_tokens == 0 {
            return Err(TrainError::NoLoss { step: number });
        }
        self.assert_fits(&step.micro_batches);
        match &self.objective {
            Objective::CrossEntropy | Objective::Distill(_) => {
                self.accumulate_mean(step, number, micro_batches).await
            }
            Objective::Preference(preference) => {
                self.accumulate_comparison(step, number, preference, micro_batches).await
            }
            Objective::Grpo(grpo) => self.accumulate_rollouts(step, number, grpo, micro_batches).await,
        }
    }

    /// Clips the accumulated gradients and updates the adapter with them. Fails, and leaves the adapter unchanged, where
    /// something is not finite.
    pub async fn apply(
        &self,
        step: &Step,
        number: u64,
        optimizer: &Optimizer,
        learning_rate: f64,
    ) -> Result<StepReport, TrainError> {
        let mut rec = Recorder::new(self.gpu);
        let update = self.update(&mut rec, step.loss_tokens, optimizer, learning_rate);
        rec.submit()?;
        let state = self.gpu.start_read(&self.adapter.clip.state, 0, size_of::<ClipState>() as u64);
        let losses = self.start_losses(step);
        // The device goes on while the host waits for the results.
        self.begin_announced(number + 1).await?;
        let Measured { loss, preference, rewards } = self.loss(step, &losses).await?;
        let state = self.gpu.finish_read::<ClipState>(&state, 1).await?[0];
        if let Some(exchange) = &*self.exchange.lock().expect("lock is not poisoned") {
            exchange.check(number, &state)?;
        }
        let grad_norm = f64::from(state.norm);
        if state.finite == 0.0 {
            let rows = state.not_finite as usize;
            let loss_tokens = step.loss_tokens;
            return Err(TrainError::NotFinite { step: number, loss, grad_norm, rows, loss_tokens });
        }
        self.updates.store(update, Ordering::Relaxed);
        let accuracy = f64::from(state.right) / step.loss_tokens as f64;
        let update_ratio = f64::from(state.update_norm) / f64::from(state.parameter_norm);
        Ok(StepReport { loss, accuracy, grad_norm, update_ratio, preference, rewards })
    }

    /// Mean loss and every gradient of a step, without updating the adapter. Dropout uses the masks of step `number`.
    pub async fn gradients(
        &self,
        step: &Step,
        number: u64,
    ) -> Result<(f64, BTreeMap<Slot, Pair>), TrainError> {
        self.sum_gradients(step, number).await?;
        let losses = self.start_losses(step);
        Ok((self.loss(step, &losses).await?.loss, self.adapter.read_gradients(self.gpu).await?))
    }

    /// Compiles, in parallel, every kernel that steps with `optimizer` and evaluations over `batches` run. Returns how many
    /// were new. Batches of other sizes may need a few more, which are compiled on first use.
    pub async fn compile(&self, batches: &[MicroBatch], optimizer: &Optimizer) -> Result<usize, GpuError> {
        self.ahead(batches, optimizer).await?.compile()
    }

    /// The products with quantized matrices that a step with the micro-batches `batches` computes: see [`crate::ops::linear::tune`].
    pub async fn products(
        &self,
        batches: &[MicroBatch],
        optimizer: &Optimizer,
    ) -> Result<Vec<Product>, GpuError> {
        Ok(self.ahead(batches, optimizer).await?.products())
    }

    /// A recording of a step that never runs.
    async fn ahead(&self, batches: &[MicroBatch], optimizer: &Optimizer) -> Result<Recorder<'_>, GpuError> {
        self.assert_fits(batches);
        let mut rec = Recorder::ahead(self.gpu);
        self.adapter.zero_gradients(&mut rec);
        for batch in batches {
            let inputs = self.inputs(batch).await?;
            let losses = self.losses(0);
            let mask = self.dropout.mask(0, 0);
            self.forward_backward(&mut rec, &inputs, &losses, mask).await?;
            if mask.is_some() {
                self.model.forward(&mut rec, &inputs, &self.adapter, &self.activations, None).await?;
            }
            self.head.forward(&mut rec, self.model, &inputs, &self.activations, &losses);
            self.following.keep(batch, inputs);
        }
        self.update(&mut rec, self.capacity.step_loss_tokens, optimizer, 0.0);
        Ok(rec)
    }

    /// Records forward and backward of one micro-batch.
    pub(super) async fn forward_backward<'r>(
        &'r self,
        rec: &mut Recorder<'r>,
        inputs: &Inputs,
        losses: &Losses<'_>,
        mask: Option<Mask>,
    ) -> Result<(), GpuError> {
        let adapter = &self.adapter;
        let acts = &self.activations;
        self.model.forward(rec, inputs, adapter, acts, mask).await?;
        self.backward(rec, inputs, losses, mask).await
    }

    /// Records the update of a step with `loss_tokens`. Returns the update's number.
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
        self.adapter.update(rec, (&self.row_status, loss_tokens), optimizer.max_grad_norm, &taken);
        update
    }

    pub(super) fn assert_fits(&self, batches: &[MicroBatch]) {
        for batch in batches {
            assert!(batch.len() <= self.capacity.tokens, "capacity covers every micro-batch");
            assert!(batch.loss_rows.len() <= self.capacity.step_loss_tokens, "capacity covers every loss");
        }
    }
}

/// The adapter: reading, replacing, saving and restoring it.
impl Trainer<'_> {
    /// The adapter's current matrices.
    pub async fn adapter(&self) -> Result<BTreeMap<Slot, Pair>, GpuError> {
        self.adapter.read(self.gpu).await
    }

    /// Replaces the adapter by another one of the same slots and rank. Gradients and moments do not change.
    pub fn set_adapter(&mut self, adapter: &Adapter) {
        self.following.forget_begun();
        self.adapter.set(self.gpu, adapter);
    }

    /// Everything that [`Trainer::restore`] needs to resume with identical results.
    pub async fn snapshot(&self) -> Result<Snapshot, GpuError> {
        let parameters = self.adapter.read(self.gpu).await?;
        let [first, second] = self.adapter.read_moments(self.gpu).await?;
        Ok(Snapshot { parameters, first, second, updates: self.updates.load(Ordering::Relaxed) })
    }

    /// Restores the state that [`Trainer::snapshot`] saved.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.following.forget_begun();
        self.adapter.write_parameters(self.gpu, &snapshot.parameters);
        self.adapter.write_moments(self.gpu, &snapshot.first, &snapshot.second);
        self.updates.store(snapshot.updates, Ordering::Relaxed);
    }
}

/// Its parts and settings.
impl<'a> Trainer<'a> {
    /// The device.
    pub fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    /// The base model on the device.
    pub fn model(&self) -> &'a Model<'a> {
        self.model
    }

    /// The memory plan that was allocated.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The largest micro-batch and step that fit.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// The kernels that compute matrix products.
    pub fn tier(&self) -> Tier {
        self.gpu.kernels().tier()
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        self.model.config()
    }
}
