//! rullama-train in a browser's worker. An [`Engine`] runs requests one after the other.
//!
//! Pages use the API in `web/src/api`. Jobs read and write files in the library's in-memory file system (`files`). The base is
//! read in ranges, and stays on the GPU as long as requests use the same one.

mod control;
mod engine;
mod events;
mod export;
mod measure;
mod merge;
mod problem;
mod samples;
mod source;
mod talk;
mod train;
mod tree;
mod types;

pub use control::Control;
pub use engine::Engine;
