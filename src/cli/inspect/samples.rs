//! `inspect` for samples: their files, their lengths, and the first sample with its loss tokens marked.

use std::path::Path;

use anyhow::Result;
use rullama_train::data::batch::Sample;
use rullama_train::data::dataset::{self, Invalid, Options, Overlong, files};
use rullama_train::data::template::TrainOn;
use rullama_train::recipe::Template;
use rullama_train::run::OpenBase;

use crate::cli::output;

/// Describes a file, a folder or a pattern of samples. Tokens are counted with the tokenizer of `base`, or of tiny.
pub fn describe(path: &Path, base: Option<&str>) -> Result<()> {
    let base = base.unwrap_or("tiny");
    let frozen = OpenBase::named(base, &Template::Auto)?;
    let samples = read(path, &frozen)?;
    output::line("samples", format_args!("{}, with the tokenizer of {base}", output::token_counts(&samples)));
    output::lengths(&samples);
    output::notices(&dataset::duplicates(&samples, &[]));
    output::marked_sample(&frozen.tokenizer, &samples[0]);
    Ok(())
}

/// Reads every sample of `path` without truncation, and prints a line per file.
pub fn read(path: &Path, frozen: &OpenBase) -> Result<Vec<Sample>> {
    let options = Options {
        format: Default::default(),
        template: &frozen.template,
        train_on: TrainOn::Assistant,
        max_seq_len: usize::MAX,
        overlong: Overlong::Error,
        invalid: Invalid::Error,
    };
    let (paths, skipped) = files::expand(path)?;
    let mut samples = Vec::new();
    for path in paths {
        let read = files::read(&path, &frozen.tokenizer, &options, None)?;
        output::line("read", output::found(&path, &read.found));
        output::notices(&read.notices);
        samples.extend(read.samples);
    }
    output::notices(skipped.as_slice());
    Ok(samples)
}
