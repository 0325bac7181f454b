//! Memory of a training pass: every buffer's size before the first is made.
//!
//! `table` describes each activation once: its name, its use, its shape, and which layers have one of their own. `storage` says how
//! each use is stored. `plan` sums the table and decides what each layer keeps, `arena` allocates it, and `lend` finds memory that is
//! free while attention's backward runs.

mod alias;
mod arena;
mod buffers;
mod experts;
mod host_acts;
mod logits;
mod offloaded;
mod parts;
mod passes;
mod plan;
mod recompute;
mod storage;
mod table;
mod widths;

pub use arena::{Activations, Chunk, LayerActs, ScratchActs};
pub use experts::{ExpertActs, ExpertScratch};
pub use offloaded::{Offloaded, OnHost, Saves};
pub use parts::PartSpans;
pub use passes::Passes;
pub use plan::{CHUNK, Demand, LEAST_CHUNK, Plan};
pub use recompute::{Kept, Recompute};
pub use storage::Storages;
pub use table::{Saved, Temp};
pub use widths::LayerWidths;
