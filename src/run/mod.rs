//! A run: from a recipe to everything it needs, and from its first step to its last.
//!
//! [`Run::drive`] is the training loop. The command-line program, the web page and [`finetune`] each implement [`Host`].

mod drive;
mod error;
pub mod finetune;
#[cfg(feature = "native")]
pub mod ollama;
mod plan;
mod remedy;

pub use drive::{
    Asked, Compared, Finished, GENERAL, Host, Outcome, REFUSED, Run, RunEvent, Status, checkpoint, metrics,
    reference, verdict, warnings,
};
pub use error::{DriveError, RunError};
pub use plan::{
    Batches, Comparing, Data, Evaluated, FREE, Hear, Identity, NextStep, OpenBase, Phase, Planned,
    PreparedRun, Ready, RolloutLine, SourceFile, Steps, ValidationFile, answers, distill, draft, dropout,
    fitted, fresh, grpo, identity, initial_adapter, load, lower_rate, names, objective, objective_of,
    offload, optimizer, pace, plan, range_test, read_adapters, recompute, row_limit, schedule, shares, slots,
    take, template, wording, write_options,
};
pub use remedy::{device_error, remedy};
