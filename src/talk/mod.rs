//! Generating text: sampling, generation, and conversations.

pub mod conversation;
pub mod generate;
pub mod metrics;
pub mod sampling;
