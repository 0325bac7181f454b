//! `inspect` for samples: their files, their lengths, and the first sample with its loss tokens marked.

use std::path::Path;

use anyhow::Result;
use rullama_train::data::batch::Sample;
use rullama_train::data::compare;
use rullama_train::data::dataset::{self, DatasetError, Options, Problem, files};
use rullama_train::recipe::{ObjectiveName, Template};
use rullama_train::run::OpenBase;

use crate::cli::output;

/// Files that are listed; further files are only counted.
const LISTED_FILES: usize = 12;

/// Describes a file, a folder or a pattern of samples. Tokens are counted with the tokenizer of `base`, or of tiny.
pub fn describe(path: &Path, base: Option<&str>) -> Result<()> {
    let base = base.unwrap_or("tiny");
    let frozen = OpenBase::named(base, &Template::Auto)?;
    let (samples, _) = read(path, &frozen)?;
    output::line("samples", format_args!("{}, with the tokenizer of {base}", output::token_counts(&samples)));
    output::lengths(&samples);
    output::notices(&dataset::duplicates(&samples, &[]));
    first(&samples, &frozen);
    Ok(())
}

/// Prints the first sample, or both sides of the first pair.
pub fn first(samples: &[Sample], frozen: &OpenBase) {
    let first = compare::units(samples).into_iter().next().unwrap_or(0..0);
    samples[first].iter().for_each(|sample| output::marked_sample(&frozen.tokenizer, sample));
}

/// Reads every sample of `path` without truncation, and prints a line per file. The first file decides which objective the samples are
/// for.
pub fn read(path: &Path, frozen: &OpenBase) -> Result<(Vec<Sample>, ObjectiveName)> {
    let mut options = Options::new(&frozen.template);
    let mut objective = ObjectiveName::Sft;
    let (paths, skipped) = files::expand(path)?;
    let mut samples = Vec::new();
    let total = paths.len();
    for (number, path) in paths.into_iter().enumerate() {
        let mut read = files::read(&path, &frozen.tokenizer, &options, None);
        if let (0, Err(DatasetError { problem: Problem::Preference(_, name), .. })) = (number, &read) {
            objective = serde_json::from_value((*name).into())?;
            options.supervision = objective.supervision();
            read = files::read(&path, &frozen.tokenizer, &options, None);
        }
        let read = read?;
        match number {
            LISTED_FILES if total > LISTED_FILES + 1 => {
                output::line("", format_args!("and {} more files", total - LISTED_FILES));
            }
            n if n > LISTED_FILES && total > LISTED_FILES + 1 => {}
            n => output::line(if n == 0 { "read" } else { "" }, output::found(&path, &read.found)),
        }
        output::notices(&read.notices);
        samples.extend(read.samples);
    }
    output::notices(skipped.as_slice());
    Ok((samples, objective))
}
