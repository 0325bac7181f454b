//! Downloads from the Hugging Face Hub, into the cache that `huggingface_hub`, llama.cpp and others share, and uploads to it.
//!
//! Everything is asked for by name; nothing here runs unless a user has named a repository. What is in the cache is used without a
//! connection.

mod client;
mod download;
mod fetch;
mod persist;
mod push;

pub use client::{Client, Error};
pub(crate) use client::{own_certificates, retry_after};
pub use fetch::{Fetched, Progress, dataset, model};
pub(crate) use persist::{Sent, persist};
pub use push::{Contents, Upload, push};
