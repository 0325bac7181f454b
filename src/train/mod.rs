//! The optimizer step on the device, the learning-rate schedule, and the health of a run.

pub mod health;
pub mod objective;
pub mod schedule;
pub mod trainer;
