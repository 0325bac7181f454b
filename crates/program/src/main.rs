//! The `rullama-train` program.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(status) => status,
        Err(error) => {
            rullama_train::files::wait_if_ending();
            cli::output::error(cli::message(&error));
            ExitCode::FAILURE
        }
    }
}
