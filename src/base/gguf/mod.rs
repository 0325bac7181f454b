//! GGUF files: read from disk, from memory or by ranges of bytes, and written.

mod parse;
#[cfg(all(unix, feature = "native"))]
mod parts;
mod reader;
pub mod source;
pub mod value;
pub mod writer;

pub use reader::Gguf;
pub use source::Source;
pub use value::TensorInfo;
