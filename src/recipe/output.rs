//! `[output]`: the files that the run writes.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Serialize;

use super::error::RecipeError;
use super::fields::Section;
use crate::adapter::Format as AdapterFormat;

/// `[output]`: the files that the run writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Output {
    /// Folder of the run.
    pub dir: PathBuf,
    /// Formats of the final adapter.
    pub export: Vec<AdapterFormat>,
    /// `base_model_name_or_path` in `adapter_config.json`; `model.base` unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_model_name: Option<String>,
    /// Model that a finished run creates in Ollama, from base and adapter merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ollama: Option<String>,
    /// Optimizer steps between checkpoints; 0 writes one only at the end, or when the run is stopped.
    pub save_steps: usize,
    /// Number of checkpoints to keep.
    pub save_total_limit: usize,
}

impl Output {
    pub(super) fn read(section: &Section) -> Result<Output, RecipeError> {
        let dir = section
            .text("dir")?
            .ok_or_else(|| section.missing("dir", "the folder for the files of the run"))?;
        Ok(Output {
            dir: PathBuf::from(dir),
            export: section.choices("export", &[AdapterFormat::Peft])?,
            base_model_name: section.text("base_model_name")?,
            ollama: section.parsed::<OllamaName>("ollama")?.map(|name| name.0),
            save_steps: section.count("save_steps", 50, 0)?,
            save_total_limit: section.count("save_total_limit", 2, 1)?,
        })
    }
}

/// A name for a model in Ollama.
struct OllamaName(String);

impl FromStr for OllamaName {
    type Err = String;

    fn from_str(name: &str) -> Result<OllamaName, String> {
        // A browser has no Ollama to name a model in.
        #[cfg(feature = "native")]
        crate::base::ollama::full_name(name).map_err(|problem| format!("{name:?} {problem}"))?;
        Ok(OllamaName(name.into()))
    }
}
