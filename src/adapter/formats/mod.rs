//! One module per file format, and code that they share.

pub(super) mod assemble;
pub mod gguf;
mod gguf_joined;
mod gguf_latent;
mod heads;
pub(super) mod layout;
pub(super) mod left_out;
pub mod mlx;
pub mod peft;
pub mod rullama;
pub(super) mod safetensors_file;
