//! Adapters as files that other programs load.
//!
//! [`write()`] checks an adapter, writes it in a [`Format`] and reads it back. [`load()`] reads any of them, or several with
//! weights, for a base; [`read_any`] reads one for any model of the right shape.

pub mod drift;
pub mod gguf;
mod held_out;
mod load;
pub mod merged;
pub mod mlx;
mod origin;
mod pairs;
pub mod peft;
pub mod rullama;
mod safetensors_file;
mod verify;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::adapter::lora::{self, Adapter, Slot};
use crate::base::Module;
use crate::base::config::Config;
use crate::base::{self, Base};
use crate::files;
use crate::gpu::{Gpu, GpuError};
use crate::model::plan::{Offload, Recompute};
use crate::recipe::Recipe;
use crate::train::{Dropout, Trainer};
use drift::Effect;
use load::OTHER_BASE_SWITCH;
use pairs::{Half, Layout};

pub use held_out::{HeldOut, NoTokens};
pub use load::{AdapterPath, Loaded, OtherBase, load};
pub use origin::{Origin, origin};
pub use verify::{Fidelity, Verification, verify};

/// Where files hold the base's fingerprint.
const FINGERPRINT: &str = "rullama_train.base_fingerprint";

/// A form in which an adapter is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// PEFT's folder, for transformers' class for the text model alone (`…ForCausalLM`).
    Peft,
    /// PEFT's folder, for transformers' class with vision and audio towers (`…ForConditionalGeneration`), as which published checkpoints load.
    PeftConditionalGeneration,
    /// llama.cpp's and LM Studio's GGUF LoRA, in F32.
    GgufLora,
    /// The same in F16: half the size, values rounded.
    GgufLoraF16,
    /// mlx-lm's folder.
    Mlx,
    /// rullama's file.
    RullamaV0,
}

impl Format {
    /// Every form.
    pub const ALL: [Format; 6] = [
        Format::Peft,
        Format::PeftConditionalGeneration,
        Format::GgufLora,
        Format::GgufLoraF16,
        Format::Mlx,
        Format::RullamaV0,
    ];

    /// What recipes and the command line call it.
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

    /// Why it has no place for the adapter of a matrix of the model `config`; `None` where it has.
    pub fn lacks(self, slot: &Slot, config: &Config) -> Option<String> {
        let (name, module) = (self.name(), slot.module);
        let place = format!("{name} has no place for {}", module.gguf_name());
        let next = "leave it out of lora.target_modules, or choose another format";
        let split = config.layers[slot.layer].experts_split;
        match self {
            Format::RullamaV0 if rullama::name(module).is_none() => Some(format!("{place}; {next}")),
            Format::GgufLora | Format::GgufLoraF16 if split && module == Module::FfnGateUpExps => {
                Some(format!("{place}, as this model has gate and up of experts apart; {next}"))
            }
            _ => None,
        }
    }

    /// The file or the folder that it becomes inside the output folder `dir`; PEFT's files are that folder's own.
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
            format!("{name:?} is no format, expected one of {}", Format::ALL.map(Format::name).join(", "))
        })
    }
}

/// What files say beside the adapter itself.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Where a program that loads the adapter finds its base, as PEFT's `base_model_name_or_path`.
    pub base_model: &'a str,
    /// `lora_dropout` of the training run.
    pub dropout: f64,
    /// The base that it was trained on, where that is known: a [`crate::base::Fingerprint`] as text.
    pub fingerprint: Option<&'a str>,
}

impl<'a> Options<'a> {
    /// Of an adapter that `recipe` trained on the base with this fingerprint.
    pub fn of_run(recipe: &'a Recipe, fingerprint: &'a str) -> Options<'a> {
        Options {
            base_model: recipe.output.base_model_name.as_deref().unwrap_or(&recipe.model.base),
            dropout: recipe.lora.dropout,
            fingerprint: Some(fingerprint),
        }
    }

    /// What a safetensors file says about the base.
    fn metadata(&self) -> HashMap<String, String> {
        self.fingerprint.iter().map(|text| (FINGERPRINT.to_string(), text.to_string())).collect()
    }
}

/// Writes an adapter of the model `config` as [`Format::place`] of the folder `dir`, and returns that place.
///
/// Refuses an adapter that is not finite or changes nothing ([`check`]). What was written is read back: names and shapes
/// must fit the model, every value must be the same (in F16: the nearest), and the scale too, to the precision of f32.
/// [`write_verified`] also compares what it computes.
pub fn write(
    dir: &Path,
    format: Format,
    adapter: &Adapter,
    config: &Config,
    options: &Options,
) -> Result<PathBuf, Error> {
    write_and_read(dir, format, adapter, config, options).map(|(path, _)| path)
}

/// What became of each format that was to be written and verified.
#[derive(Debug)]
pub struct Written {
    /// What the adapter does to its base.
    pub effect: Effect,
    /// What there is now of each format, or why there is nothing.
    pub formats: Vec<(Format, Result<Exported, Error>)>,
}

/// A file or a folder that was written.
#[derive(Debug)]
pub struct Exported {
    /// Where it is.
    pub place: PathBuf,
    /// How near its logits are to those of the adapter in memory.
    pub fidelity: Fidelity,
}

/// [`write()`] in several formats, of those that prove sound: each is first written aside, read back and run on `base`, and
/// must change the logits of `held_out` as the adapter in memory does, to its numbers' precision. With [`Offload::All`] the base's
/// experts stay in host memory meanwhile.
///
/// Writes nothing where the adapter itself changes no logit or too much ([`Effect::check`]).
pub async fn write_verified(
    gpu: &Gpu,
    base: &Base,
    dir: &Path,
    formats: &[Format],
    adapter: &Adapter,
    options: &Options<'_>,
    held_out: &HeldOut,
    offload: Offload,
) -> Result<Written, Error> {
    let model = drift::model(gpu, base, held_out, offload).await?;
    let capacity = held_out.capacity();
    let mut trainer = Trainer::new(gpu, &model, adapter, capacity, Dropout::NONE, Recompute::Always)?;
    write_verified_by(&mut trainer, dir, formats, adapter, options, held_out).await
}

/// [`write_verified`] with a trainer that is there already. It has the adapter's slots and rank and can hold `held_out`;
/// which adapter it holds afterwards is not said.
pub async fn write_verified_by(
    trainer: &mut Trainer<'_>,
    dir: &Path,
    formats: &[Format],
    adapter: &Adapter,
    options: &Options<'_>,
    held_out: &HeldOut,
) -> Result<Written, Error> {
    let config = trainer.config().clone();
    let aside = files::near(dir)?;
    let (mut read, mut failed) = (Vec::new(), Vec::new());
    for &format in formats {
        match write_and_read(aside.path(), format, adapter, &config, options) {
            Ok((_, found)) => read.push((format, found)),
            Err(error) => failed.push((format, Err(error))),
        }
    }
    let Verification { effect, formats } = verify(trainer, adapter, &read, held_out).await?;
    effect.check().map_err(|problem| Error::Adapter { problem })?;
    let export = |fidelity: Fidelity| {
        fidelity.check()?;
        Ok(Exported { place: write(dir, fidelity.format, adapter, &config, options)?, fidelity })
    };
    let mut formats: Vec<_> = formats.into_iter().map(|found| (found.format, export(found))).collect();
    formats.extend(failed);
    Ok(Written { effect, formats })
}

/// Writes one format, and what is read back.
fn write_and_read(
    dir: &Path,
    format: Format,
    adapter: &Adapter,
    config: &Config,
    options: &Options,
) -> Result<(PathBuf, Adapter), Error> {
    check(adapter)?;
    let path = format.place(dir);
    let other = match format {
        Format::Peft | Format::PeftConditionalGeneration => Some(mlx::TENSORS),
        Format::Mlx => Some(peft::TENSORS),
        _ => None,
    };
    if let Some(other) = other.filter(|other| files::exists(&path.join(other))) {
        let problem = format!(
            "{} holds {other}, whose adapter_config.json would be replaced; choose another folder",
            path.display()
        );
        return Err(Error::Adapter { problem });
    }
    let peft = |naming| peft::write(&path, adapter, naming, options);
    let read = match format {
        Format::Peft => {
            peft(peft::Naming::causal_lm(config)).and_then(|()| peft::read_slots(&path, config, None))
        }
        Format::PeftConditionalGeneration => peft(peft::Naming::conditional_generation(config))
            .and_then(|()| peft::read_slots(&path, config, None)),
        Format::GgufLora => gguf::write(&path, adapter, gguf::Precision::F32, config, options)
            .and_then(|()| gguf::read(&path, config, None)),
        Format::GgufLoraF16 => gguf::write(&path, adapter, gguf::Precision::F16, config, options)
            .and_then(|()| gguf::read(&path, config, None)),
        Format::Mlx => {
            mlx::write(&path, adapter, config, options).and_then(|()| mlx::read(&path, config, None))
        }
        Format::RullamaV0 => {
            rullama::write(&path, adapter, options).and_then(|()| rullama::read(&path, config, None))
        }
    }?;
    compare(adapter, &read, format, config)
        .map_err(|problem| Error::Changed { path: path.clone(), problem })?;
    Ok((path, read))
}

/// Refuses an adapter that no file should hold: without matrices, with values or a scale that are not finite, with
/// every `B` zero or a scale of zero, so that it changes nothing.
pub fn check(adapter: &Adapter) -> Result<(), Error> {
    let refuse = |problem: String| Err(Error::Adapter { problem });
    if adapter.pairs.is_empty() {
        return refuse("it has no matrices; choose at least one target module".into());
    }
    let scale = adapter.scale();
    if !scale.is_finite() || scale == 0.0 {
        return refuse(format!("its scale is {scale}, expected a number other than 0; choose another alpha"));
    }
    for (slot, pair) in &adapter.pairs {
        for (half, values) in [("A", &pair.a), ("B", &pair.b)] {
            if let Some(value) = values.iter().find(|v| !v.is_finite()) {
                return refuse(format!(
                    "{half} of blk.{}.{} holds {value}: training diverged; lower the learning rate",
                    slot.layer,
                    slot.module.gguf_name()
                ));
            }
        }
    }
    if adapter.pairs.values().all(|p| p.b.iter().all(|b| *b == 0.0)) {
        return refuse("every B is zero, so it changes nothing; train it first".into());
    }
    Ok(())
}

/// What is not the same in a file that was read back.
fn compare(written: &Adapter, read: &Adapter, format: Format, config: &Config) -> Result<(), String> {
    let (rank, rounded) = (written.rank, format == Format::GgufLoraF16);
    // What GGUF LoRA holds of experts is rounded; everything else stays the same.
    let expected = |half: Half, values: &'_ [f32], slot: &Slot| match format {
        Format::GgufLora | Format::GgufLoraF16 => {
            Layout::Gguf.round_trip(half, values, (rank, rounded), slot, config)
        }
        _ => values.to_vec(),
    };
    if read.rank != written.rank || !read.pairs.keys().eq(written.pairs.keys()) {
        return Err("other matrices".into());
    }
    // A file may hold alpha or the scale in f32.
    if !same_scale(written, read) {
        return Err(format!("the scale {} instead of {}", read.scale(), written.scale()));
    }
    for (slot, pair) in &written.pairs {
        let found = &read.pairs[slot];
        for (half, written, read) in [(Half::A, &pair.a, &found.a), (Half::B, &pair.b, &found.b)] {
            let expected = expected(half, written, slot);
            let differs = expected.iter().zip(read).position(|(w, r)| w.to_bits() != r.to_bits());
            if let Some(i) = differs {
                let name = format!("blk.{}.{}", slot.layer, slot.module.gguf_name());
                return Err(format!("{} instead of {} in {half:?} of {name}", read[i], written[i]));
            }
        }
    }
    if read.pairs.values().all(|p| p.b.iter().all(|b| *b == 0.0)) {
        return Err("nothing but zeros in every B: F16 is too coarse for it".into());
    }
    Ok(())
}

/// Whether two adapters of one rank scale alike, to the precision of f32: not every format holds alpha itself.
pub fn same_scale(a: &Adapter, b: &Adapter) -> bool {
    (a.scale() - b.scale()).abs() <= a.scale().abs() * f64::from(f32::EPSILON)
}

/// Reads an adapter in any [`Format`] for the model `config`.
///
/// `slots` are those that the caller trains, and all of them must be there; `None` takes what is there. F16 and BF16
/// become F32, exactly. Fails where the files are damaged or not a plain LoRA, on a rank or scale that is none, where a
/// slot lacks a tensor, where a tensor fits no slot, and on wrong shapes, other types and values that are not finite.
pub fn read_any(path: &Path, config: &Config, slots: Option<&[Slot]>) -> Result<Adapter, Error> {
    match detect(path)? {
        Format::Peft | Format::PeftConditionalGeneration => peft::read_slots(path, config, slots),
        Format::GgufLora | Format::GgufLoraF16 => gguf::read(path, config, slots),
        Format::Mlx => mlx::read(path, config, slots),
        Format::RullamaV0 => rullama::read(path, config, slots),
    }
}

/// The format of a file or a folder, by its names and first bytes; [`Format::Peft`] and [`Format::GgufLora`] stand for
/// all their kinds.
pub fn detect(path: &Path) -> Result<Format, Error> {
    let refuse = |problem: &str| Err(Error::Read { path: path.into(), problem: problem.into() });
    const KINDS: &str = "a PEFT or mlx-lm folder, a GGUF LoRA or a rullama-lora-v0 file";
    if files::is_dir(path) {
        let [peft, mlx] = [peft::TENSORS, mlx::TENSORS].map(|name| files::exists(&path.join(name)));
        return match (peft, mlx) {
            (true, true) => refuse(
                "holds adapter_model.safetensors and adapters.safetensors, expected PEFT's or mlx-lm's; remove one",
            ),
            (false, true) => Ok(Format::Mlx),
            // PEFT's reader says what a folder lacks.
            (_, false) => Ok(Format::Peft),
        };
    }
    if !files::exists(path) {
        return refuse(&format!("does not exist; name {KINDS}"));
    }
    let start = match files::read_start(path, 9) {
        Ok(start) => start,
        Err(source) => return refuse(&format!("{source}; check the path and its permissions")),
    };
    if start.starts_with(b"GGUF") {
        return Ok(Format::GgufLora);
    }
    let name = path.file_name().unwrap_or_default();
    if name == peft::TENSORS || name == mlx::TENSORS || name == "adapter_config.json" {
        return refuse("is a file of an adapter folder; name the folder");
    }
    // The header's length, then its JSON.
    if start.get(8) == Some(&b'{') || path.extension().is_some_and(|e| e == "safetensors") {
        return Ok(Format::RullamaV0);
    }
    refuse(&format!("is none of the adapters that can be read, expected {KINDS}"))
}

/// A whole file.
fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    files::read(path).map_err(|source| Error::Read {
        path: path.into(),
        problem: format!("{source}; check the path and its permissions"),
    })
}

/// Why an adapter cannot be written or read. Every message names the file, what was found, what was expected, and the
/// next step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] files::Error),
    /// The adapter in memory is not one that a file should hold.
    #[error("the adapter was not written: {problem}")]
    Adapter {
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// The adapter cannot be merged into the base, or the merge would be worthless.
    #[error("the adapter was not merged: {problem}")]
    Merge {
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// The device failed while results were compared.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Several adapters have no sum.
    #[error(transparent)]
    Combine(#[from] lora::CombineError),
    /// The sum of several adapters does not have the slots that are trained.
    #[error("the sum of the adapters: {problem}")]
    Sum {
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// The adapter was trained on another model.
    #[error(
        "{path} was trained on {trained}, and {base} is another model; name the base that it was trained on, or allow another \
         one ({OTHER_BASE_SWITCH})"
    )]
    OtherBase {
        /// The adapter.
        path: String,
        /// What it was trained on.
        trained: String,
        /// What it was to be used with.
        base: String,
    },
    /// A file cannot be read.
    #[error("{}: {problem}", .path.display())]
    Read {
        /// The file or the folder.
        path: PathBuf,
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// What was written is not what was to be written.
    #[error("{} was read back with {problem}; check the disk and export again", .path.display())]
    Changed {
        /// The file or the folder.
        path: PathBuf,
        /// What was found and what was expected.
        problem: String,
    },
    /// A GGUF file is damaged, or lacks what an adapter has.
    #[error(transparent)]
    Gguf(#[from] base::Error),
    /// The description of the adapter is damaged, or describes what this program does not train.
    #[error("{}: {problem}", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// The tensors are damaged, or do not fit the model.
    #[error("{}: {problem}", .path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// What was found, what was expected, the next step.
        problem: String,
    },
}
