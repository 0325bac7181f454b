//! A run: from a recipe to everything it needs, and from its first step to its last.
//!
//! [`Run::drive`] is the training loop. The command-line program, the web page and [`finetune`] each implement [`Host`].

pub mod checkpoint;
mod data;
mod drive;
mod error;
mod evaluate;
pub mod finetune;
mod host;
pub mod identity;
mod initial;
mod load;
pub mod metrics;
mod open;
mod prepare;
mod settings;
mod state;
mod status;
mod steps;
pub mod wording;

pub use data::{Data, SourceFile, ValidationFile, template};
pub use error::{DriveError, RunError};
pub use host::{Asked, Finished, Host, Outcome, Phase, RunEvent};
pub use identity::Identity;
pub use initial::{initial_adapter, names, read_adapters, slots};
pub use load::load;
pub use open::OpenBase;
pub use prepare::PreparedRun;
pub use settings::{dropout, offload, optimizer, recompute, schedule, write_options};
pub use state::Run;
pub use status::Status;
pub use steps::{Steps, capacity, largest};
