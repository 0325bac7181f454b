//! The interface between a run and the program, page or library that hosts it.

use std::path::{Path, PathBuf};

use super::checkpoint::Checkpoint;
use super::metrics::{Effects, Evaluation, RunNotice, StepMetrics, Timing};
use super::phase::Phase;
use super::rollout_line::RolloutLine;
use super::{DriveError, Run};

use crate::adapter::lora::Adapter;
use crate::train::TrainError;
use crate::verify::{self, Written};

/// Hosts a run: shows its progress, keeps its checkpoints, and passes on what the user asks for.
pub trait Host {
    /// Errors of the host and of the run.
    type Error: From<DriveError>;

    /// Handles an event. An error ends the run.
    fn on_event(&mut self, run: &Run<'_>, event: RunEvent<'_>) -> Result<(), Self::Error>;

    /// Keeps a checkpoint: on disk, or wherever the host stores files.
    fn keep(&mut self, _run: &Run<'_>, _checkpoint: &Checkpoint) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Returns the user's requests since the last call. Called before each step; a paused host waits here.
    fn asked(&mut self, _run: &Run<'_>) -> impl Future<Output = Asked> {
        std::future::ready(Asked::Nothing)
    }

    /// Whether the user has asked to stop. Called within evaluations, which then end without a result.
    fn is_stopping(&self) -> bool {
        false
    }

    /// The folder for exports. Without one the run keeps no checkpoints and exports nothing; the adapter is part of
    /// [`Outcome::Finished`].
    fn output(&self) -> Option<&Path> {
        None
    }
}

/// Tells `host` of the progress of a phase, and whether to go on. An error of the host ends the phase, and is kept in `failed`.
pub(super) fn hearing<H: Host>(
    run: &Run<'_>,
    host: &mut H,
    failed: &mut Option<H::Error>,
) -> impl FnMut(Phase, usize, usize) -> bool {
    move |phase, done, of| match host.on_event(run, RunEvent::Progress { phase, done, of }) {
        Ok(()) => !host.is_stopping(),
        Err(error) => {
            *failed = Some(error);
            false
        }
    }
}

/// The result of a phase, unless its host has failed.
pub(super) fn heard<T, E: From<DriveError>>(found: Result<T, TrainError>, failed: Option<E>) -> Result<T, E> {
    match failed {
        Some(error) => Err(error),
        None => Ok(found.map_err(DriveError::from)?),
    }
}

/// A request of the user, answered between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing: take the next step.
    Nothing,
    /// Keep a checkpoint, then ask again.
    Save,
    /// Keep a checkpoint and end the run.
    Stop,
}

/// An event of a run, passed to [`Host::on_event`].
#[derive(Clone, Copy, Debug)]
pub enum RunEvent<'e> {
    /// The run starts, or resumes after [`Run::step`] steps.
    Started,
    /// A step was taken or skipped.
    Step {
        /// Its measurements.
        metrics: &'e StepMetrics,
        /// Its duration.
        timing: &'e Timing,
        /// The completions that were drawn for it.
        lines: &'e [RolloutLine],
    },
    /// The model was evaluated.
    Evaluation {
        /// Scores and replies.
        evaluation: &'e Evaluation,
        /// Whether it is the best evaluation so far.
        is_best: bool,
    },
    /// The effects of the trained adapter were measured.
    Effects {
        /// The changes.
        effects: &'e Effects,
        /// How long measuring took.
        seconds: f64,
    },
    /// A warning about the run.
    Notice(&'e RunNotice),
    /// A phase other than the steps makes progress.
    Progress {
        /// The phase.
        phase: Phase,
        /// Units done so far.
        done: usize,
        /// Units of the whole phase.
        of: usize,
    },
    /// The run is over. The last event, unless the run failed.
    Ended(&'e Outcome),
    /// An error ends the run; [`Run::drive`] returns it. The last event.
    Failed,
}

/// End of a run.
#[derive(Debug)]
pub enum Outcome {
    /// The user asked to stop. The last checkpoint is that of the last step.
    Interrupted,
    /// The adapter is trained.
    Finished(Finished),
    /// The final check refused the adapter. It is kept in a PEFT folder, as hours of training may be in it.
    Refused {
        /// The step whose adapter it is.
        adapter_of_step: usize,
        /// Why it was refused.
        reason: verify::Error,
        /// The folder.
        kept: PathBuf,
    },
    /// The adapter equals the initial one.
    Unmoved,
}

/// The result of a run that was not stopped.
#[derive(Debug)]
pub struct Finished {
    /// Whether it ended early because the validation loss stopped improving.
    pub early: bool,
    /// The step whose adapter it is: with `eval.keep_best` not always the last.
    pub adapter_of_step: usize,
    /// The trained adapter.
    pub adapter: Adapter,
    /// The exports; `None` for a host without an output folder.
    pub written: Option<Written>,
}

impl Finished {
    /// Whether every format was exported.
    pub fn is_whole(&self) -> bool {
        self.written.iter().flat_map(|written| &written.formats).all(|(_, result)| result.is_ok())
    }
}
