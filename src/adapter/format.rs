//! The file formats of adapters, and paths of adapters as users write them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

use super::formats::rullama;
use super::lora::Slot;
use crate::base::Module;
use crate::base::config::{Config, Latent};

/// A file format of adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// PEFT's folder, for transformers' class for the text model alone (`…ForCausalLM`).
    Peft,
    /// PEFT's folder, for transformers' class with vision and audio towers (`…ForConditionalGeneration`), which published
    /// checkpoints load as.
    PeftConditionalGeneration,
    /// GGUF LoRA in F32, for llama.cpp and LM Studio.
    GgufLora,
    /// GGUF LoRA in F16: half the size, with rounded values.
    GgufLoraF16,
    /// mlx-lm's adapter folder.
    Mlx,
    /// rullama's safetensors file.
    RullamaV0,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 6] = [
        Format::Peft,
        Format::PeftConditionalGeneration,
        Format::GgufLora,
        Format::GgufLoraF16,
        Format::Mlx,
        Format::RullamaV0,
    ];

    /// Name in recipes and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Peft => "peft",
            Format::PeftConditionalGeneration => "peft-conditional-generation",
            Format::GgufLora => "gguf-lora",
            Format::GgufLoraF16 => "gguf-lora-f16",
            Format::Mlx => "mlx",
            Format::RullamaV0 => "rullama-v0",
        }
    }

    /// Why the format cannot hold the adapter of a matrix. `None` if it can.
    pub fn lacks(self, slot: &Slot) -> Option<String> {
        let name = self.name();
        let module = slot.module;
        let problem = format!("{name} cannot hold {}", module.gguf_name());
        let next = "remove it from lora.target_modules, or choose another format";
        match self {
            Format::RullamaV0 if rullama::name(module).is_none() => Some(format!("{problem}; {next}")),
            _ => None,
        }
    }

    /// [`Format::unapplied`] of several formats, each reason once.
    pub fn all_unapplied<'a>(
        formats: &[Format],
        config: &Config,
        slots: impl IntoIterator<Item = &'a Slot> + Clone,
    ) -> Vec<&'static str> {
        let mut reasons = Vec::new();
        for reason in formats.iter().filter_map(|format| format.unapplied(config, slots.clone())) {
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        reasons
    }

    /// Why the program that reads this format makes no use of adapters of some of `slots`, or refuses them; `None` if it takes all. Found by
    /// tests/consumers, with llama.cpp 0c1e57098 and mlx-lm 0.32.2.
    pub fn unapplied<'a>(
        self,
        config: &Config,
        slots: impl IntoIterator<Item = &'a Slot>,
    ) -> Option<&'static str> {
        use Module::{AttnKvAMqa, AttnKvB, AttnQ, AttnQA, AttnQB, FfnGateInp};
        let latent = |slot: &Slot| config.layers[slot.layer].latent;
        let adapted: Vec<(Module, Latent)> =
            slots.into_iter().filter_map(|slot| Some((slot.module, latent(slot)?))).collect();
        let refused_by_mlx =
            |m: Module, latent: &Latent| m == FfnGateInp || m == AttnKvB && latent.query_rank.is_some();
        let of_latents = [AttnQ, AttnQA, AttnQB, AttnKvAMqa, AttnKvB];
        match self {
            Format::GgufLora | Format::GgufLoraF16 if adapted.iter().any(|(m, _)| of_latents.contains(m)) => {
                Some(
                    "llama.cpp applies no adapters of attn_q, attn_q_a, attn_q_b, attn_kv_a_mqa, attn_k_b and attn_v_b in models of the architecture \
                 deepseek2, which it loads without a word; merge the adapter into its base, or leave these modules out of lora.target_modules",
                )
            }
            Format::Mlx if adapted.iter().any(|(m, latent)| refused_by_mlx(*m, latent)) => Some(
                "mlx-lm refuses adapters of the router (mlp.gate) of DeepSeek V2 Lite and GLM 4.7 Flash, and of GLM's kv_b_proj; train without \
                 these modules, or export another format",
            ),
            _ => None,
        }
    }

    /// Path of the file or folder in the output folder `dir`. PEFT's files are put into `dir` itself.
    pub fn place(self, dir: &Path) -> PathBuf {
        match self {
            Format::Peft => dir.into(),
            Format::PeftConditionalGeneration => dir.join("peft-conditional-generation"),
            Format::GgufLora => dir.join("adapter.gguf"),
            Format::GgufLoraF16 => dir.join("adapter-f16.gguf"),
            Format::Mlx => dir.join("mlx"),
            Format::RullamaV0 => dir.join("rullama-v0.safetensors"),
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Format, String> {
        Format::ALL.into_iter().find(|f| f.name() == name).ok_or_else(|| {
            format!("unknown format {name:?}, expected one of {}", Format::ALL.map(Format::name).join(", "))
        })
    }
}

/// The path of an adapter with a weight, written as `PATH` or `PATH=WEIGHT`.
///
/// A path that itself ends in `=` and a number needs an explicit weight: `runs/rate=0.1=1`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterPath {
    /// File or folder of any [`Format`].
    pub path: PathBuf,
    /// Factor on the adapter's effect; 1 by default.
    pub weight: f64,
}

impl AdapterPath {
    /// The adapter at `path` with weight 1.
    #[must_use]
    pub fn whole(path: impl Into<PathBuf>) -> AdapterPath {
        AdapterPath { path: path.into(), weight: 1.0 }
    }
}

impl FromStr for AdapterPath {
    type Err = String;

    fn from_str(text: &str) -> Result<AdapterPath, String> {
        let weighted = text.rsplit_once('=').and_then(|(path, w)| Some((path, w.parse::<f64>().ok()?)));
        let (path, weight) = weighted.unwrap_or((text, 1.0));
        if path.is_empty() {
            return Err(format!("{text:?} has no path, expected PATH or PATH=WEIGHT"));
        }
        if !weight.is_normal() {
            return Err(format!("{text:?} has the weight {weight}, expected a finite number other than 0"));
        }
        Ok(AdapterPath { path: path.into(), weight })
    }
}

impl fmt::Display for AdapterPath {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let path = self.path.display();
        let ends_like_a_weight =
            path.to_string().rsplit_once('=').is_some_and(|(_, w)| w.parse::<f64>().is_ok());
        match self.weight == 1.0 && !ends_like_a_weight {
            true => write!(f, "{path}"),
            false => write!(f, "{path}={}", self.weight),
        }
    }
}

impl Serialize for AdapterPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
