//! Learning from a second model: it runs once over all samples before the base is loaded, and what it says is kept in a file.

mod file;
mod format;
mod job;
pub mod lessons;
pub mod pass;
#[cfg(feature = "native")]
mod place;
pub mod room;
pub mod teacher;

pub use file::Blocks;
pub use format::Header;
pub use job::{Job, learn_files};
#[cfg(feature = "native")]
pub use place::{FILE, Place, Unfinished, open, path};
