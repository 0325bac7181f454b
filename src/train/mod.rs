//! Training on the device: the optimizer step, the learning-rate schedule, and warnings about a run that goes wrong.

mod compare;
pub mod displacement;
pub mod divergence;
mod error;
mod evaluate;
mod exchange;
mod following;
mod next_step;
pub mod objective;
pub mod ranks;
mod results;
mod rewards;
pub mod schedule;
mod settings;
mod shares;
mod teach;
pub mod trainer;
pub mod watch;

pub use crate::data::batch::Capacity;
pub use error::TrainError;
pub use evaluate::LossTotals;
pub use exchange::{Exchange, Times};
pub use results::{Snapshot, StepReport};
pub use settings::{Dropout, Optimizer, OptimizerKind};
pub use teach::TaughtToken;
pub use trainer::Trainer;
