//! The state of a run between two steps.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::checkpoint::{Changed, Checkpoint};
use super::grpo::Learning;
use super::metrics::{self, History, MetricsEvent, RunNotice, StepMetrics};
use super::{Batches, DriveError, Identity, OpenBase, PreparedRun, write_options};
use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::adapter::{self, Format};
use crate::gpu::{Gpu, GpuError};
use crate::model::Model;
use crate::recipe::Recipe;
use crate::train::displacement::Displacement;
use crate::train::watch::{Observed, Watch};
use crate::train::{Snapshot, Trainer};
use crate::verify::{self, HeldOut, NoTokens, Written};

/// A run between two steps. [`Run::drive`] takes it to its end.
pub struct Run<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// The base.
    pub base: &'a OpenBase,
    /// Samples, steps and prompts.
    pub prepared: &'a PreparedRun,
    /// Digests of base and samples.
    pub identity: &'a Identity,
    /// The adapter that training started from.
    pub initial: &'a Adapter,
    /// The model and the adapter on the device.
    pub trainer: Trainer<'a>,
    /// The samples of the steps; `None` while a step is decided.
    pub(super) batches: Option<Box<dyn Batches + 'a>>,
    steps: usize,
    /// All measurements so far.
    pub history: History,
    /// Steps taken so far, skipped ones included.
    pub step: usize,
    /// With `eval.keep_best`, the step of the best evaluation so far, and the adapter after it.
    pub(super) best: Option<(usize, BTreeMap<Slot, Pair>)>,
    /// Changes of settings with which the run was continued.
    pub changed: Vec<Changed>,
    /// Has seen the steps of `history`.
    pub(super) watch: Watch,
    /// Has seen the steps of `history`, too.
    pub(super) displacement: Displacement,
}

impl<'a> Run<'a> {
    /// A run before its first step. `trainer` holds `initial` and has room for all steps.
    pub fn new(
        recipe: &'a Recipe,
        base: &'a OpenBase,
        prepared: &'a PreparedRun,
        identity: &'a Identity,
        initial: &'a Adapter,
        trainer: Trainer<'a>,
    ) -> Run<'a> {
        let batches: Box<dyn Batches + 'a> = match &prepared.grpo {
            Some(setup) => Box::new(Learning::new(setup, base, prepared, initial)),
            None => Box::new(prepared.batches()),
        };
        Run {
            recipe,
            base,
            prepared,
            identity,
            initial,
            trainer,
            steps: batches.steps(),
            batches: Some(batches),
            history: History { best_metric: recipe.eval.best_metric.metric(), ..History::default() },
            step: 0,
            best: None,
            changed: Vec::new(),
            watch: Watch::default(),
            displacement: Displacement::default(),
        }
    }

    /// Takes the steps of `batches` instead of the plan's. The trainer has room for their bound.
    #[must_use]
    pub fn with_batches(self, batches: impl Batches + 'a) -> Run<'a> {
        Run { steps: batches.steps(), batches: Some(Box::new(batches)), ..self }
    }

    /// Restores the state of a checkpoint. Fails if its metrics cannot be parsed; the error names the file and the line.
    pub fn resume(&mut self, checkpoint: Checkpoint) -> Result<(), String> {
        let Checkpoint {
            step,
            adapter,
            first,
            second,
            updates,
            best,
            changed,
            metrics,
            timing,
            completions,
            ..
        } = checkpoint;
        let events = metrics::parse(&metrics).map_err(|e| format!("metrics.jsonl: {e}"))?;
        let timing = metrics::parse(&timing).map_err(|e| format!("timing.jsonl: {e}"))?;
        self.history = History::replay(events, timing, self.recipe.eval.best_metric.metric());
        if let (Some(text), Some(batches)) = (completions, &mut self.batches) {
            batches.restore(&text).map_err(|e| format!("completions.json: {e}"))?;
        }
        self.changed = changed;
        self.watch_again();
        self.step = step;
        let best = best.filter(|_| self.recipe.eval.keep_best);
        self.best = best.map(|(step, pairs)| (step, pairs.unwrap_or_else(|| adapter.pairs.clone())));
        self.trainer.restore(&Snapshot { parameters: adapter.pairs, first, second, updates });
        Ok(())
    }

    /// Records changes of settings with which the run continues after the last step.
    pub fn change(&mut self, changes: Vec<String>) {
        self.notice(format!("continued with changes: {}", changes.join("; ")));
        self.changed.push(Changed { step: self.step, changes });
        self.watch_again();
    }

    /// Lets a new watch see all steps so far.
    fn watch_again(&mut self) {
        self.watch = Watch::default();
        self.displacement = Displacement::default();
        let mut changed = self.changed.iter().map(|changed| changed.step).peekable();
        let watched = self.prepared.grpo.is_none();
        for step in self.history.steps().filter(|_| watched) {
            while changed.next_if(|&after| after < step.step).is_some() {
                self.watch.settings_changed();
            }
            if let Some(observed) = observed(step) {
                self.watch.step(&observed);
            }
            self.displacement.step(&step.preference);
        }
        changed.for_each(|_| self.watch.settings_changed());
    }

    /// The device.
    pub fn gpu(&self) -> &'a Gpu {
        self.trainer.gpu()
    }

    /// The base model on the device.
    pub fn model(&self) -> &'a Model<'a> {
        self.trainer.model()
    }

    /// Steps of the whole run.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// The checkpoint of the current state.
    pub async fn checkpoint(&self) -> Result<Checkpoint, GpuError> {
        let Snapshot { parameters, first, second, updates } = self.trainer.snapshot().await?;
        let (metrics, timing) = self.history.lines();
        let best = self.best.as_ref();
        Ok(Checkpoint {
            step: self.step,
            steps: self.steps(),
            recipe: self.recipe.clone(),
            identity: self.identity.clone(),
            adapter: Adapter { pairs: parameters, ..self.initial.clone() },
            first,
            second,
            updates,
            best: best.map(|(step, pairs)| (*step, (*step != self.step).then(|| pairs.clone()))),
            changed: self.changed.clone(),
            choices: self.gpu().choices(),
            metrics,
            timing,
            completions: self.batches.as_ref().and_then(|batches| batches.state(self.step)),
        })
    }

    /// Writes `adapter` into the folder `dir` as PEFT files, without comparing what it computes. Fails as
    /// [`adapter::write()`].
    pub fn write_peft(&self, dir: &Path, adapter: &Adapter) -> Result<PathBuf, adapter::Error> {
        let fingerprint = self.base.fingerprint.to_string();
        let options = write_options(self.recipe, &fingerprint, self.base.base.vocabulary());
        adapter::write(dir, Format::Peft, adapter, self.base.base.config(), &options)
    }

    /// Writes `adapter` into the folder `dir` in every format of the recipe, and compares each with the adapter in memory:
    /// on the validation samples, or on a built-in text if there are none. Fails as [`verify::write_verified_by`].
    pub(super) async fn export(&mut self, dir: &Path, adapter: &Adapter) -> Result<Written, verify::Error> {
        let vocab = self.base.base.config().vocab;
        let longest = self.longest_question();
        let batches = self.prepared.validation.iter().flat_map(|file| file.batches.iter().cloned());
        let held_out =
            HeldOut::of_batches(batches, vocab).unwrap_or_else(|NoTokens| self.base.questions(longest));
        let fingerprint = self.base.fingerprint.to_string();
        let options = write_options(self.recipe, &fingerprint, self.base.base.vocabulary());
        let formats = &self.recipe.output.export;
        verify::write_verified_by(&mut self.trainer, dir, formats, adapter, &options, &held_out).await
    }

    /// The final adapter and the step it is from: that of the best evaluation, or the last. `None` if it equals the initial
    /// one.
    pub(super) async fn result(&mut self) -> Result<Option<(usize, Adapter)>, DriveError> {
        let (step, pairs) = match self.best.take() {
            Some((step, pairs)) if step != self.step => (step, pairs),
            _ => (self.step, self.trainer.adapter().await?),
        };
        let moved = pairs != self.initial.pairs;
        Ok(moved.then(|| (step, Adapter { pairs, ..self.initial.clone() })))
    }

    /// Adds a warning after the last step.
    pub(super) fn notice(&mut self, notice: String) -> RunNotice {
        let notice = RunNotice { step: self.step, notice };
        self.history.push(MetricsEvent::Notice(notice.clone()));
        notice
    }
}

/// The values of a step that [`Watch`] observes; `None` if the step was skipped or they are not finite.
pub(super) fn observed(metrics: &StepMetrics) -> Option<Observed> {
    let (false, Some(loss), Some(grad_norm)) = (metrics.skipped, metrics.loss, metrics.grad_norm) else {
        return None;
    };
    Some(Observed { step: metrics.step, loss, grad_norm, update_ratio: metrics.update_ratio })
}
