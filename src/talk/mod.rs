//! Generating text: sampling, log-probabilities, generation, and conversations.

pub mod conversation;
pub mod generate;
pub mod metrics;
pub mod refusal;
pub mod reply;
pub mod sampling;
pub mod scores;
