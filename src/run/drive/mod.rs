//! The training loop.

pub mod checkpoint;
mod compared;
mod effects;
mod evaluate;
mod host;
pub mod metrics;
pub mod reference;
mod state;
mod status;
mod verdict;
pub mod warnings;

use std::path::Path;

pub use compared::Compared;
pub use effects::GENERAL;
pub use host::{Asked, Finished, Host, Outcome, RunEvent};
use host::{heard, hearing};
use metrics::{MetricsEvent, StepMetrics, Timing};
pub use state::Run;
use state::observed;
pub use status::Status;
pub use verdict::verdict;
use web_time::Instant;

use super::DriveError;
use super::plan::{
    Batches, Identity, OpenBase, Phase, PreparedRun, ValidationFile, answers, general, grpo, identity,
    optimizer, phase, references, rollout_line, take, write_options,
};
use crate::data::batch::Step;
use crate::train::TrainError;
use crate::train::divergence::Diverged;
use crate::train::ranks::link::LinkError;
use crate::verify;

/// The folder, inside the output folder, for an adapter that the final check refuses.
pub const REFUSED: &str = "refused";

/// Why no further step is taken.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// The last step is done.
    LastStep,
    /// The evaluations stopped improving.
    EarlyStopping,
    /// The user asked to stop.
    Stop,
}

impl Run<'_> {
    /// Takes all remaining steps with evaluations and checkpoints, then exports the adapter.
    ///
    /// Every host sees the same events in the same order. After [`RunEvent::Ended`] the outcome is returned.
    pub async fn drive<H: Host>(mut self, host: &mut H) -> Result<Outcome, H::Error> {
        match self.run(host).await {
            Ok(outcome) => {
                host.on_event(&self, RunEvent::Ended(&outcome))?;
                Ok(outcome)
            }
            Err(error) => {
                // The first error is the one to report.
                let _ = host.on_event(&self, RunEvent::Failed);
                Err(error)
            }
        }
    }

    async fn run<H: Host>(&mut self, host: &mut H) -> Result<Outcome, H::Error> {
        host.on_event(self, RunEvent::Started)?;
        let end = match self.reference(host).await? {
            true => self.take_steps(host).await?,
            false => End::Stop,
        };
        if end == End::Stop {
            if self.step > 0 {
                self.keep(host).await?;
            }
            return Ok(Outcome::Interrupted);
        }
        self.keep(host).await?;
        self.finish(end == End::EarlyStopping, host).await
    }

    /// Each iteration runs due evaluations and checkpoints, then takes a step.
    async fn take_steps<H: Host>(&mut self, host: &mut H) -> Result<End, H::Error> {
        loop {
            if self.evaluation_is_due() && !self.evaluate(host).await? {
                return Ok(End::Stop);
            }
            if self.stops_early() {
                return Ok(End::EarlyStopping);
            }
            if self.step == self.steps() {
                return Ok(End::LastStep);
            }
            loop {
                match self.agreed(host.asked(self).await).map_err(DriveError::from)? {
                    Asked::Nothing => break,
                    Asked::Save => self.keep(host).await?,
                    Asked::Stop => return Ok(End::Stop),
                }
            }
            if self.checkpoint_is_due() {
                self.keep(host).await?;
            }
            if !self.take_step(host).await? {
                return Ok(End::Stop);
            }
        }
    }

    /// The request of any of the processes: a signal may reach only some of them.
    fn agreed(&self, asked: Asked) -> Result<Asked, LinkError> {
        const BY_WEIGHT: [Asked; 3] = [Asked::Nothing, Asked::Save, Asked::Stop];
        let weight = BY_WEIGHT.iter().position(|known| *known == asked).unwrap_or(0);
        let most = self.trainer.ranks().largest(weight as u8)?;
        Ok(BY_WEIGHT[usize::from(most)])
    }

    /// Whether no evaluation was better for `eval.early_stopping_patience` evaluations.
    fn stops_early(&self) -> bool {
        let patience = self.recipe.eval.early_stopping_patience;
        patience > 0 && self.history.stale >= patience
    }

    /// Whether a checkpoint is due: every `output.save_steps`.
    fn checkpoint_is_due(&self) -> bool {
        let every = self.recipe.output.save_steps;
        every > 0 && self.step > 0 && self.step.is_multiple_of(every)
    }

    /// Hands a checkpoint of the current state to the host.
    async fn keep<H: Host>(&self, host: &mut H) -> Result<(), H::Error> {
        if host.output().is_none() {
            return Ok(());
        }
        let checkpoint = self.checkpoint().await.map_err(DriveError::from)?;
        host.keep(self, &checkpoint)
    }

    /// Takes the next step. A step that is not finite is skipped, up to `train.max_skipped_steps` times. Returns false if the user asked to
    /// stop before it.
    async fn take_step<H: Host>(&mut self, host: &mut H) -> Result<bool, H::Error> {
        let index = self.step;
        let number = index + 1;
        let learning_rate = self.prepared.steps.schedule.learning_rate(index);
        let optimizer = optimizer(self.recipe);
        let started = Instant::now();
        let step = match self.decide(index, host).await {
            Ok(Some(step)) => step,
            Ok(None) => return Ok(false),
            Err(error) => {
                // The state before this step is sound.
                if self.step > 0 {
                    let _ = self.keep(host).await;
                }
                return Err(error);
            }
        };
        let tokens = step.tokens();
        let batches = self.batches.as_deref().expect("no step is being decided");
        let at_once = !self.evaluation_follows(number);
        let result = take(batches, &self.trainer, (index, &step), &optimizer, learning_rate, at_once).await;
        let of_batches = batches.metrics();
        let seconds = started.elapsed().as_secs_f64();
        let mut warnings = Vec::new();
        let mut metrics = match result {
            Ok(report) => StepMetrics::taken(number, &report, learning_rate, tokens),
            Err(TrainError::NotFinite { loss, grad_norm, rows, loss_tokens, .. }) if self.may_skip() => {
                warnings.push(format!(
                    "step skipped: loss {loss}, gradient norm {grad_norm}, {rows} of {loss_tokens} loss tokens overflowed; {} \
                     of at most {} skipped steps",
                    self.history.skipped + 1,
                    self.recipe.train.max_skipped_steps
                ));
                StepMetrics::skipped(number, loss, grad_norm, learning_rate, tokens)
            }
            Err(error) => {
                if matches!(error, TrainError::NotFinite { .. }) && self.step > 0 {
                    // The state before this step is sound. If it cannot be kept, an earlier checkpoint remains.
                    let _ = self.keep(host).await;
                }
                return Err(DriveError::from(error).into());
            }
        };
        metrics.rewards.extend(of_batches);
        // A coarse timer may measure nothing.
        let tokens_per_second = if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        let timing = Timing { step: number, time: metrics::now(), seconds, tokens_per_second };
        self.step = number;
        self.history.timing.push(timing);
        self.history.push(MetricsEvent::Step(metrics.clone()));
        warnings.extend(self.watched(&metrics));
        let lines = self.batches.as_ref().map_or(&[][..], |batches| batches.lines());
        host.on_event(self, RunEvent::Step { metrics: &metrics, timing: &timing, lines })?;
        for warning in warnings {
            self.warn(warning, host)?;
        }
        self.check_divergence().map_err(DriveError::from)?;
        Ok(true)
    }

    /// Decides the samples of step `index`. `None` if the user asked to stop meanwhile.
    async fn decide<H: Host>(&mut self, index: usize, host: &mut H) -> Result<Option<Step>, H::Error> {
        let mut batches = self.batches.take().expect("no step is being decided");
        let mut failed = None;
        let step = batches.next(index, &self.trainer, &mut hearing(self, host, &mut failed)).await;
        self.batches = Some(batches);
        heard(step, failed)
    }

    /// Lets the watches see a step. The losses of an objective that learns from rewards say nothing about progress.
    fn watched(&mut self, metrics: &StepMetrics) -> Vec<String> {
        if self.prepared.grpo.is_some() {
            return warnings::after_step(&self.history);
        }
        let mut warnings = observed(metrics).map(|step| self.watch.step(&step)).unwrap_or_default();
        warnings.extend(self.displacement.step(&metrics.preference));
        warnings
    }

    /// Fails if the loss has risen far above its start, unless the recipe allows it.
    fn check_divergence(&self) -> Result<(), TrainError> {
        match self.watch.diverged(self.eval_loss(0)).filter(|_| self.recipe.train.stop_if_diverged) {
            Some(Diverged { over, mean, start }) => {
                Err(TrainError::Diverged { step: self.step, over, mean, start })
            }
            None => Ok(()),
        }
    }

    /// Adds a warning after the last step, and tells the host.
    pub(super) fn warn<H: Host>(&mut self, warning: String, host: &mut H) -> Result<(), H::Error> {
        let notice = self.notice(warning);
        host.on_event(self, RunEvent::Notice(&notice))
    }

    fn may_skip(&self) -> bool {
        self.history.skipped < self.recipe.train.max_skipped_steps
    }

    /// Exports the final adapter.
    async fn finish<H: Host>(&mut self, early: bool, host: &mut H) -> Result<Outcome, H::Error> {
        let Some((adapter_of_step, adapter)) = self.result().await? else { return Ok(Outcome::Unmoved) };
        if let (Some(before), Some(after)) = (self.eval_loss(0), self.eval_loss(adapter_of_step))
            && after >= before
        {
            let warning =
                format!("the validation loss did not fall: {before:.4} before training, {after:.4} after it");
            self.warn(warning, host)?;
        }
        let Some(dir) = host.output().map(Path::to_owned) else {
            self.measure_effects(adapter_of_step, &adapter, None, host).await?;
            return Ok(Outcome::Finished(Finished { early, adapter_of_step, adapter, written: None }));
        };
        let of = self.recipe.output.export.len();
        host.on_event(self, RunEvent::Progress { phase: Phase::Export, done: 0, of })?;
        match self.export(&dir, &adapter).await {
            Ok(written) => {
                self.measure_effects(adapter_of_step, &adapter, Some(written.effect), host).await?;
                let written = Some(written);
                Ok(Outcome::Finished(Finished { early, adapter_of_step, adapter, written }))
            }
            // Only the adapter itself can be refused. After these, the same command tries again.
            Err(verify::Error::Gpu(error)) => Err(DriveError::from(error).into()),
            Err(verify::Error::Write(error)) => Err(DriveError::from(error).into()),
            Err(reason) => {
                let kept = self.write_peft(&dir.join(REFUSED), &adapter).map_err(DriveError::from)?;
                Ok(Outcome::Refused { adapter_of_step, reason, kept })
            }
        }
    }
}
