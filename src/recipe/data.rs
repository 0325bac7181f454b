//! `[data]`: the samples.

use std::path::PathBuf;

use serde::{Serialize, Serializer};

use super::error::RecipeError;
use super::fields::Section;
use super::manual::{SOURCES, source_keys};
use super::values::{Cache, Template};
use crate::data::dataset::{Field, Format as DataFormat, Invalid, Overlong};
use crate::data::template::TrainOn;

/// `[data]`: the samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Data {
    /// Files, folders or patterns of training samples. Empty if [`Data::sources`] lists them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub train: Vec<PathBuf>,
    /// Files, folders or patterns of validation samples. Empty if `val_size` splits them off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub valid: Vec<PathBuf>,
    /// Validation samples to split off the training samples: 0 for none, below 1 a fraction, otherwise a count.
    pub val_size: f64,
    /// Format of the samples.
    pub format: DataFormat,
    /// Keys that the records have under other names.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_table")]
    pub fields: Vec<Field>,
    /// System message of conversations that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Chat template that renders conversations.
    pub template: Template,
    /// Tokens of a conversation that are loss tokens.
    pub train_on: TrainOn,
    /// Maximum number of tokens in a row, whether it holds one sample or several packed ones; [`crate::run::fitted`] sets it
    /// where a recipe does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_seq_len: Option<usize>,
    /// The treatment of longer samples.
    pub overlong: Overlong,
    /// The treatment of invalid records.
    pub invalid: Invalid,
    /// Whether several samples are packed into one row.
    pub packing: bool,
    /// Whether each epoch has its own random order, drawn from the seed.
    pub shuffle: bool,
    /// Folder in which tokenized files are cached between runs.
    pub cache: Cache,
    /// GiB that a compressed or Parquet file may take once decompressed.
    pub max_file_size: f64,
    /// `[[data.sources]]`: training samples with a weight and a format per source, instead of `train`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<DataSource>,
}

/// Tokens in a row unless samples or base require another number.
pub(crate) const USUAL_ROW: usize = 2048;

impl Data {
    /// Tokens in a row.
    pub fn row(&self) -> usize {
        self.max_seq_len.unwrap_or(USUAL_ROW)
    }

    /// All sources of training samples. The paths of `train` have weight 1.
    pub fn training(&self) -> Vec<DataSource> {
        let plain = |path: &PathBuf| DataSource {
            path: path.clone(),
            weight: 1.0,
            format: self.format,
            train_on: self.train_on,
            fields: self.fields.clone(),
        };
        self.train.iter().map(plain).chain(self.sources.iter().cloned()).collect()
    }
}

/// One `[[data.sources]]` entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataSource {
    /// File, folder or pattern.
    pub path: PathBuf,
    /// Number of times that an epoch shows each sample. For a fraction, each epoch draws different samples.
    pub weight: f64,
    /// Format of its samples; `data.format` unless set.
    pub format: DataFormat,
    /// Tokens that are loss tokens; `data.train_on` unless set.
    pub train_on: TrainOn,
    /// Keys that its records have under other names; `data.fields` unless set.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_table")]
    pub fields: Vec<Field>,
}

fn as_table<S: Serializer>(fields: &[Field], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fields.iter().map(|(key, from)| (key, from)))
}

impl Data {
    pub(super) fn read(section: &Section) -> Result<Data, RecipeError> {
        let harmless = section.harmless();
        let valid = harmless.paths("valid")?.unwrap_or_default();
        let default_size = if valid.is_empty() { 0.05 } else { 0.0 };
        let sizes = "0 (none), a fraction below 1, or a whole count";
        let val_size = section.number("val_size", default_size, sizes, |x| {
            (0.0..1.0).contains(&x) || (x >= 1.0 && x.fract() == 0.0)
        })?;
        if !valid.is_empty() && val_size > 0.0 {
            return Err(section.conflict(
                "val_size",
                "`valid` already names the validation samples; remove one of the two",
            ));
        }
        let format = harmless.choice("format", DataFormat::Auto)?;
        let train_on = harmless.choice("train_on", TrainOn::Assistant)?;
        let fields = harmless.renames("fields")?.unwrap_or_default();
        let sources = section.tables(SOURCES, &source_keys(), |source| {
            let expected = "a file, a folder or a pattern such as \"data/*.jsonl\"";
            Ok(DataSource {
                path: source.text("path")?.ok_or_else(|| source.missing("path", expected))?.into(),
                weight: source
                    .number("weight", 1.0, "a number > 0, at most 1000", |x| x > 0.0 && x <= 1000.0)?,
                format: source.choice("format", format)?,
                train_on: source.choice("train_on", train_on)?,
                fields: source.renames("fields")?.unwrap_or_else(|| fields.clone()),
            })
        })?;
        let train = harmless.paths("train")?;
        if train.is_some() && !sources.is_empty() {
            return Err(
                section.conflict("sources", "`train` already names the samples; remove one of the two")
            );
        }
        let expected = "a file of samples, a folder or a pattern such as \"data/*.jsonl\", or a list of them";
        if train.is_none() && sources.is_empty() {
            return Err(section.missing("train", expected));
        }
        Ok(Data {
            train: train.unwrap_or_default(),
            valid,
            val_size,
            format,
            fields,
            system: section.text("system")?,
            template: match harmless.text("template")?.as_deref() {
                None => Template::Auto,
                Some(name) => Template::from_name(name),
            },
            train_on,
            max_seq_len: section.optional_count("max_seq_len", 2)?,
            overlong: harmless.choice("overlong", Overlong::Error)?,
            invalid: harmless.choice("invalid", Invalid::Error)?,
            packing: section.boolean("packing", true)?,
            shuffle: section.boolean("shuffle", true)?,
            cache: harmless.cache("cache")?,
            max_file_size: harmless.number("max_file_size", 0.5, "a number > 0 (GiB)", |x| x > 0.0)?,
            sources,
        })
    }
}
