//! The origin of an adapter, as recorded in its files.

use std::path::Path;

use super::formats::safetensors_file::read_file;
use super::formats::{mlx, peft, rullama, safetensors_file};
use super::{Error, FINGERPRINT, Format, VOCABULARY, detect};
use crate::base::Gguf;

/// The origin of an adapter, as far as its files record it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origin {
    /// Name of its base.
    pub base_model: Option<String>,
    /// Dropout in training; 0 if the files have none.
    pub dropout: f64,
    /// [`Fingerprint`](crate::base::Fingerprint) of its base, as text.
    pub fingerprint: Option<String>,
    /// Digest of its base's vocabulary ([`Base::vocabulary`](crate::base::Base::vocabulary)).
    pub vocabulary: Option<String>,
}

/// Reads the origin of an adapter of any [`Format`].
pub fn origin(path: &Path) -> Result<Origin, Error> {
    let tensors = match detect(path)? {
        Format::GgufLora | Format::GgufLoraF16 => {
            let gguf = Gguf::open(path)?;
            let text = |key| Ok::<_, Error>(gguf.get::<&str>(key)?.map(str::to_owned));
            let base_model = text("general.base_model.0.name")?;
            let (fingerprint, vocabulary) = (text(FINGERPRINT)?, text(VOCABULARY)?);
            return Ok(Origin { base_model, dropout: 0.0, fingerprint, vocabulary });
        }
        Format::RullamaV0 => {
            let mut metadata = safetensors_file::read_metadata(path)?;
            let base_model = metadata.remove(rullama::BASE_MODEL);
            let (fingerprint, vocabulary) = (metadata.remove(FINGERPRINT), metadata.remove(VOCABULARY));
            return Ok(Origin { base_model, dropout: 0.0, fingerprint, vocabulary });
        }
        Format::Mlx => mlx::TENSORS,
        Format::Peft | Format::PeftConditionalGeneration => peft::TENSORS,
    };
    let mut metadata = safetensors_file::read_metadata(&path.join(tensors))?;
    let (fingerprint, vocabulary) = (metadata.remove(FINGERPRINT), metadata.remove(VOCABULARY));
    let path = path.join("adapter_config.json");
    let config: serde_json::Value = serde_json::from_slice(&read_file(&path)?).map_err(|e| {
        let problem = format!("expected a JSON object: {e}; copy or export the adapter again");
        Error::Config { path, problem }
    })?;
    let base = config.get("base_model_name_or_path").or(config.get("model")).and_then(|b| b.as_str());
    let dropout = config.get("lora_dropout").or(config.pointer("/lora_parameters/dropout"));
    let dropout = dropout.and_then(|d| d.as_f64()).filter(|d| (0.0..1.0).contains(d));
    let (base_model, dropout) = (base.map(str::to_owned), dropout.unwrap_or(0.0));
    Ok(Origin { base_model, dropout, fingerprint, vocabulary })
}
