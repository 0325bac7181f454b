//! Writes adapters in several formats, each compared with the adapter in memory first.

use std::path::{Path, PathBuf};

use super::logits::model;
use super::{Effect, Error, Fidelity, HeldOut, Verification, verify};
use crate::adapter::lora::Adapter;
use crate::adapter::{self, Format, WriteOptions, write, write_and_read};
use crate::base::Base;
use crate::files;
use crate::gpu::Gpu;
use crate::model::plan::{Offload, Recompute};
use crate::train::{Dropout, Trainer};

/// The outcome of an export in several formats.
#[derive(Debug)]
pub struct Written {
    /// The effect of the adapter on its base.
    pub effect: Effect,
    /// Per format: the export, or why it was rejected.
    pub formats: Vec<(Format, Result<Exported, adapter::Error>)>,
}

/// An export: a file or a folder.
#[derive(Debug)]
pub struct Exported {
    /// Path of the file or folder.
    pub place: PathBuf,
    /// Distance of its logits from those of the adapter in memory.
    pub fidelity: Fidelity,
}

/// Exports an adapter in several formats, each verified before it is put in place.
///
/// Each format is first written to a temporary folder, reloaded and run on `base`. It is exported only if its logits for
/// `held_out` equal those of the adapter in memory, within the format's precision. With [`Offload::EXPERTS`], the base's experts
/// stay in host memory meanwhile.
///
/// Nothing is written if the adapter itself changes no logit or changes them too much ([`Effect::check`]).
pub async fn write_verified(
    gpu: &Gpu,
    base: &Base,
    dir: &Path,
    formats: &[Format],
    adapter: &Adapter,
    options: &WriteOptions<'_>,
    held_out: &HeldOut,
    offload: Offload,
) -> Result<Written, Error> {
    let model = model(gpu, base, held_out, offload).await?;
    let capacity = held_out.capacity();
    let mut trainer = Trainer::new(gpu, &model, adapter, capacity, Dropout::NONE, Recompute::Always)?;
    write_verified_by(&mut trainer, dir, formats, adapter, options, held_out).await
}

/// [`write_verified`] with an existing trainer, whose adapter has the slots and the rank of `adapter` and whose capacity is
/// enough for `held_out`.
///
/// Afterwards the trainer holds an unspecified adapter.
pub async fn write_verified_by(
    trainer: &mut Trainer<'_>,
    dir: &Path,
    formats: &[Format],
    adapter: &Adapter,
    options: &WriteOptions<'_>,
    held_out: &HeldOut,
) -> Result<Written, Error> {
    let config = trainer.config().clone();
    let temporary = files::near(dir)?;
    let mut read = Vec::new();
    let mut failed = Vec::new();
    for &format in formats {
        match write_and_read(temporary.path(), format, adapter, &config, options) {
            Ok((_, found)) => read.push((format, found)),
            Err(error) => failed.push((format, Err(in_place(error, temporary.path(), dir)))),
        }
    }
    let Verification { effect, formats } = verify(trainer, adapter, &read, held_out).await?;
    effect.check().map_err(|problem| adapter::Error::Adapter { problem })?;
    let export = |fidelity: Fidelity| {
        fidelity.check()?;
        let place = write(dir, fidelity.format, adapter, &config, options)?;
        Ok(Exported { place, fidelity })
    };
    let mut formats: Vec<_> = formats.into_iter().map(|found| (found.format, export(found))).collect();
    formats.extend(failed);
    Ok(Written { effect, formats })
}

/// An error that names a file of the temporary folder, with the file's final path.
fn in_place(error: adapter::Error, temporary: &Path, dir: &Path) -> adapter::Error {
    match error {
        adapter::Error::Write(mut error) => {
            error.path = error.path.strip_prefix(temporary).map_or(error.path.clone(), |rest| dir.join(rest));
            adapter::Error::Write(error)
        }
        error => error,
    }
}
