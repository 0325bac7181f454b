//! Learning from rewards: completions of prompts are drawn during the run, and rewarded.
//!
//! A step follows from the recipe, its number, and the adapter before it: each completion has a random stream of its own, drawn from the
//! seed, the step, the prompt and its number. So a run that was killed anywhere repeats it.

mod batches;
mod draw;
mod judge;
mod kept;
mod lengths;
mod logps;
mod setup;

pub use batches::Learning;
pub use setup::Setup;
