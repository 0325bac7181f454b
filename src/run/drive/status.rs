//! The status of a run, as `run.json` and the report show it.

use super::Outcome;

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The run is in progress.
    Running,
    /// The process of the run was killed.
    Interrupted,
    /// The user stopped the run, it failed, or an export failed. Running it again resumes it.
    Stopped,
    /// The run is over. Running it again changes nothing.
    Finished,
}

impl Status {
    /// The status of a run with this outcome.
    pub fn of(outcome: &Outcome) -> Status {
        match outcome {
            Outcome::Interrupted => Status::Stopped,
            // A format that failed because the disk was full, for instance, is retried by the next run.
            Outcome::Finished(finished) if !finished.is_whole() => Status::Stopped,
            Outcome::Finished(_) | Outcome::Refused { .. } | Outcome::Unmoved => Status::Finished,
        }
    }

    /// The status as files write it.
    pub fn name(self) -> &'static str {
        match self {
            Status::Running => "running",
            Status::Interrupted => "interrupted",
            Status::Stopped => "stopped",
            Status::Finished => "finished",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
