//! From a recipe to everything that a run needs before its first step. Nothing here knows the loop.

mod advice;
pub mod answers;
mod batches;
pub(super) mod compare;
pub(super) mod data;
pub mod distill;
pub mod draft;
pub(super) mod general;
pub mod grpo;
pub mod identity;
mod initial;
mod load;
mod open;
pub mod pace;
pub(super) mod phase;
mod prepare;
pub mod range_test;
mod ready;
pub(super) mod references;
pub(super) mod rollout_line;
mod row_length;
mod settings;
mod steps;
mod template;
pub mod wording;

pub use advice::lower_rate;
pub use batches::{Batches, Evaluated, Hear, NextStep, Planned, take};
pub use compare::Comparing;
pub use data::{Data, SourceFile, ValidationFile};
pub use identity::Identity;
pub use initial::{fresh, initial_adapter, names, read_adapters, slots};
pub use load::{FREE, load, plan};
pub use open::OpenBase;
pub use phase::Phase;
pub use prepare::PreparedRun;
pub use ready::Ready;
pub use rollout_line::RolloutLine;
pub use row_length::fitted;
pub use settings::{
    dropout, objective, objective_of, offload, optimizer, recompute, row_limit, schedule, shares,
    write_options,
};
pub use steps::Steps;
pub use template::template;

use super::error::{DriveError, RunError};
