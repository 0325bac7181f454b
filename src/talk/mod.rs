//! Generating text: sampling, log-probabilities, generation, faults of replies, and conversations.

pub mod completion;
pub mod conversation;
pub mod ending;
mod engine;
mod error;
pub mod generate;
pub mod metrics;
pub mod refusal;
pub mod replies;
pub mod reply;
pub mod rollouts;
pub mod sampling;
pub mod scores;
pub mod unwritten;
