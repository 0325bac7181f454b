//! rullama-train in a browser's worker: an [`Engine`] takes requests and does them one after the other.
//!
//! `web/src/api` is what pages call. What a job reads and writes lies in the library's tree in memory (`files`); the base is
//! read by ranges, and stays on the device as long as requests name the same one.

mod control;
mod engine;
mod export;
mod measure;
mod problem;
mod source;
mod talk;
mod train;
mod tree;
mod types;

pub use control::Control;
pub use engine::Engine;
