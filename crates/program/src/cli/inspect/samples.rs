//! `inspect` for samples: their files, their lengths, and the first samples with their loss tokens marked.

use std::fmt::Display;
use std::path::Path;

use anyhow::Result;
use rullama_train::data::batch::Sample;
use rullama_train::data::compare;
use rullama_train::data::dataset::{self, DatasetError, Options, Problem, files};
use rullama_train::recipe::{ObjectiveName, Template};
use rullama_train::run::OpenBase;
use serde_json::{Value, json};

use super::tokens;
use crate::cli::{output, pull};

/// Files that are listed; further files are only counted.
const LISTED_FILES: usize = 12;

/// How samples are shown.
pub struct Shown {
    /// Number of samples or pairs.
    pub first: usize,
    /// Whether to print the ids of their tokens.
    pub ids: bool,
    /// Whether to print these ids as JSON, and nothing else.
    pub json: bool,
}

/// Describes a file, a folder or a pattern of samples. Tokens are counted with the tokenizer of `base`, or of tiny.
pub fn describe(path: &Path, base: Option<&str>, shown: &Shown) -> Result<()> {
    let base = base.unwrap_or("tiny");
    pull::base(base)?;
    let frozen = OpenBase::named(base, &Template::Auto)?;
    let mut read = Read::default();
    read.all(path, &frozen, None, !shown.json)?;
    let samples = read.samples;
    let (tokenizer, shown_samples) = (&frozen.tokenizer, shown_of(&samples, shown.first));
    if shown.json {
        let list: Vec<Value> = shown_samples.map(|sample| tokens::json_of(tokenizer, sample)).collect();
        let notices = read.notices;
        output::text(json!({ "base": base, "total": samples.len(), "samples": list, "notices": notices }));
        return Ok(());
    }
    output::line("samples", format_args!("{}, with the tokenizer of {base}", output::token_counts(&samples)));
    output::lengths(&samples);
    output::notices(&dataset::duplicates(&samples, &[]));
    for sample in shown_samples {
        output::marked_sample(tokenizer, sample);
        if shown.ids {
            tokens::of_sample(tokenizer, sample);
        }
    }
    Ok(())
}

/// The first samples, or both sides of the first pairs.
fn shown_of(samples: &[Sample], count: usize) -> impl Iterator<Item = &Sample> {
    compare::units(samples).into_iter().take(count).flat_map(|unit| &samples[unit])
}

/// Prints the first sample, or both sides of the first pair.
pub fn first(samples: &[Sample], frozen: &OpenBase) {
    shown_of(samples, 1).for_each(|sample| output::marked_sample(&frozen.tokenizer, sample));
}

/// Reads every sample of `path` without truncation, behind `system`, and prints a line per file. The first file decides which objective the samples are
/// for.
pub fn read(path: &Path, frozen: &OpenBase, system: Option<&str>) -> Result<(Vec<Sample>, ObjectiveName)> {
    let mut read = Read::default();
    read.all(path, frozen, system, true)?;
    Ok((read.samples, read.objective))
}

/// The samples of one or several files.
struct Read {
    samples: Vec<Sample>,
    objective: ObjectiveName,
    notices: Vec<String>,
}

impl Default for Read {
    fn default() -> Read {
        Read { samples: Vec::new(), objective: ObjectiveName::Sft, notices: Vec::new() }
    }
}

impl Read {
    fn all(&mut self, path: &Path, frozen: &OpenBase, system: Option<&str>, aloud: bool) -> Result<()> {
        let mut options = Options { system, unasked: frozen.unasked(), ..Options::new(&frozen.template) };
        let (paths, skipped) = files::expand(path)?;
        let total = paths.len();
        for (number, path) in paths.into_iter().enumerate() {
            let mut read = files::read(&path, &frozen.tokenizer, &options, None);
            if let (0, Err(DatasetError { problem: Problem::Preference(_, name), .. })) = (number, &read) {
                self.objective = serde_json::from_value((*name).into())?;
                options.supervision = self.objective.supervision();
                read = files::read(&path, &frozen.tokenizer, &options, None);
            }
            let read = read?;
            match number {
                _ if !aloud => {}
                LISTED_FILES if total > LISTED_FILES + 1 => {
                    output::line("", format_args!("and {} more files", total - LISTED_FILES));
                }
                n if n > LISTED_FILES && total > LISTED_FILES + 1 => {}
                n => output::line(if n == 0 { "read" } else { "" }, output::found(&path, &read.found)),
            }
            self.notice(&read.notices, aloud);
            self.samples.extend(read.samples);
        }
        self.notice(skipped.as_slice(), aloud);
        Ok(())
    }

    /// Prints notices, or keeps them for JSON.
    fn notice(&mut self, notices: &[impl Display], aloud: bool) {
        match aloud {
            true => output::notices(notices),
            false => self.notices.extend(notices.iter().map(ToString::to_string)),
        }
    }
}
