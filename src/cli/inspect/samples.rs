//! Samples: what they lie in, how long they are, and the first with what carries loss.

use std::path::Path;

use anyhow::Result;
use rullama_train::data::batch::Sample;
use rullama_train::data::dataset::{self, Invalid, Options, Overlong, files};
use rullama_train::data::template::TrainOn;
use rullama_train::recipe::Template;
use rullama_train::run::OpenBase;

use super::super::{describe, show};

/// Describes a file, a folder or a pattern of samples, in tokens of the base `named`, else of tiny.
pub fn describe(path: &Path, named: Option<&str>) -> Result<()> {
    let base = named.unwrap_or("tiny");
    let frozen = OpenBase::named(base, &Template::Auto)?;
    let samples = read(path, &frozen)?;
    let tokens: usize = samples.iter().map(|sample| sample.ids.len()).sum();
    let loss: usize = samples.iter().map(Sample::loss_tokens).sum();
    let share = 100.0 * loss as f64 / tokens.max(1) as f64;
    let (count, tokens) = (show::count(samples.len(), "sample"), show::count(tokens, "token"));
    show::line("samples", format_args!("{count}, {tokens} of {base}'s, {share:.0} % carry loss"));
    describe::lengths(&samples);
    show::notices(&dataset::duplicates(&samples, &[]));
    show::text(format_args!("\n{}; what stands between « and » carries loss:\n", samples[0].origin));
    show::text(show::marked(&frozen.tokenizer, &samples[0]));
    Ok(())
}

/// Every sample of `path`, whole; says what its files are.
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
        show::line("read", show::found(&path, &read.found));
        show::notices(&read.notices);
        samples.extend(read.samples);
    }
    show::notices(skipped.as_slice());
    Ok(samples)
}
