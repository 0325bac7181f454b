//! A run: from a recipe to everything it needs, and from its first step to its last.
//!
//! [`Run::drive`] is the training loop. The command-line program, the web page and [`finetune`] each implement [`Host`].

mod advice;
pub mod answers;
mod batches;
pub mod checkpoint;
mod compare;
mod compared;
mod data;
pub mod distill;
pub mod draft;
mod drive;
mod effects;
mod error;
mod evaluate;
pub mod finetune;
mod general;
pub mod grpo;
mod host;
pub mod identity;
mod initial;
mod load;
pub mod metrics;
#[cfg(feature = "native")]
pub mod ollama;
mod open;
pub mod pace;
mod phase;
mod prepare;
pub mod range_test;
mod ready;
pub mod reference;
mod references;
mod remedy;
mod rollout_line;
mod row_length;
mod settings;
mod state;
mod status;
mod steps;
mod template;
mod verdict;
pub mod wording;

pub use advice::lower_rate;
pub use batches::{Batches, Evaluated, Hear, NextStep, Planned, take};
pub use compare::Comparing;
pub use compared::Compared;
pub use data::{Data, SourceFile, ValidationFile};
pub use drive::REFUSED;
pub use effects::GENERAL;
pub use error::{DriveError, RunError};
pub use host::{Asked, Finished, Host, Outcome, RunEvent};
pub use identity::Identity;
pub use initial::{fresh, initial_adapter, names, read_adapters, slots};
pub use load::{FREE, load, plan};
pub use open::OpenBase;
pub use phase::Phase;
pub use prepare::PreparedRun;
pub use ready::Ready;
pub use remedy::{device_error, remedy};
pub use rollout_line::RolloutLine;
pub use row_length::fitted;
pub use settings::{
    dropout, objective, objective_of, offload, optimizer, recompute, row_limit, schedule, shares,
    write_options,
};
pub use state::Run;
pub use status::Status;
pub use steps::Steps;
pub use template::template;
pub use verdict::verdict;
