//! Adapters: their paths, and the results of an export.

use rullama_train::adapter::AdapterPath;
use rullama_train::verify::{Exported, Written};

use super::line;

/// Adapters with their weights: `runs/a=0.7 + runs/b=0.3`.
pub fn adapters(paths: &[AdapterPath]) -> String {
    paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" + ")
}

/// Prints one line per exported format. Returns the first failure after printing the rest.
pub fn written(written: Written) -> anyhow::Result<()> {
    line("effect", format_args!("{}, over {} tokens", written.effect, written.effect.divergence.tokens));
    let mut failed = None;
    for (format, result) in written.formats {
        match result {
            Ok(Exported { place, fidelity }) => {
                line(
                    "exported",
                    format_args!("{}: {}, reloaded: {fidelity}", place.display(), format.name()),
                );
            }
            Err(error) => drop(failed.get_or_insert(error)),
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}
