//! Parts of the program that its readers import.

#[path = "../../crates/program/src/cli/http/error.rs"]
mod error;

pub mod http {
    //! As in the program.
    pub use super::error::ApiError;
}
