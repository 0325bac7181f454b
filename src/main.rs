//! The `rullama-train` program.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", cli::message(&error));
            ExitCode::FAILURE
        }
    }
}
