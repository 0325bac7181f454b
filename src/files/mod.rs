//! Reading and writing files: on disk, or in memory where there is no disk. Both have the same interface.

#[cfg(feature = "native")]
mod disk;
#[cfg(not(feature = "native"))]
mod memory;

#[cfg(feature = "native")]
pub use disk::*;
#[cfg(not(feature = "native"))]
pub use memory::*;
