//! Memory of a training pass: every buffer's size before the first is made.
//!
//! `table` describes each activation once: its name, how it is stored, its shape, and which layers have one of their own.
//! `plan` sums the table and decides what each layer keeps, `arena` allocates it, and `lend` finds memory that is free
//! while attention's backward runs.

mod arena;
mod experts;
mod keep;
mod lend;
mod plan;
mod table;
mod widths;

pub use arena::{Activations, Chunk, LayerActs, ScratchActs};
pub use experts::{ExpertActs, ExpertScratch};
pub use keep::Kept;
pub use plan::{CHUNK, Demand, LEAST_CHUNK, Offloaded, Passes, Plan, Recompute};
pub use table::{Saved, Storages, Temp};
pub use widths::LayerWidths;
