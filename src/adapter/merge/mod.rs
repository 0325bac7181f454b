//! Writes a model with an adapter merged into it: `W + scale·B·A` in the adapted matrices. All other bytes are those of the base.
//!
//! Rows are read, merged, quantized and written a few at a time, so that a large model needs little memory.

mod metadata;
mod parts;
mod rows;
mod ty;

use std::io;
use std::path::Path;

use super::Error;
use super::lora::{self, Adapter};
use crate::base::gguf::writer::{self, Entry};
use crate::base::{Base, GgmlType, Module, TensorInfo};
use crate::files;
use metadata::metadata;
use parts::{Part, locate};
use rows::Job;

pub use ty::{MergeType, encoded};

/// Bytes of an unchanged tensor that are copied at a time.
const BYTES_PER_COPY: usize = 16 << 20;
/// The effect of merging on one matrix of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedTensor {
    /// Name in the file.
    pub name: String,
    /// Weight type in the base.
    pub from: GgmlType,
    /// Weight type in the merged file.
    pub to: GgmlType,
    /// Sum of squares of the values in the base.
    pub base: f64,
    /// Sum of squares of `scale·B·A`.
    pub change: f64,
    /// Sum of the products of `scale·B·A` and what the stored matrix differs by from the base: of all of the change, or less.
    pub kept: f64,
    /// Sum of squares of the rounding error when the sum was stored.
    pub loss: f64,
    /// Whether a byte differs both from the base and from the matrix without the adapter stored in the same type. Quantizing
    /// dequantized values may change bytes by itself.
    pub changed: bool,
}

/// Writes `base` with `adapter` merged into it to `path`, as [`files::write_atomic_with`] writes.
///
/// Metadata keep their order, types and values. The key `rullama_train.merged` is added, and `general.file_type` is updated
/// if most matrices change their type. `progress` is called with the name of each merged tensor.
///
/// Fails if the adapter does not fit the base, if a merged value does not fit the weight type, or if no byte of the merged
/// matrices changes.
pub fn write(
    path: &Path,
    base: &Base,
    adapter: &Adapter,
    ty: MergeType,
    progress: impl FnMut(&str),
) -> Result<Vec<MergedTensor>, Error> {
    convert(path, base, adapter, ty, true, progress)
}

/// Writes `base` to `path` with the matrices of its layers in the format `ty`, as [`write()`] does. Embedding, output projection and all
/// else are those of the base.
pub fn quantize(
    path: &Path,
    base: &Base,
    ty: MergeType,
    progress: impl FnMut(&str),
) -> Result<Vec<MergedTensor>, Error> {
    let modules = [Module::ALL_LINEAR, &[Module::FfnGateUpExps, Module::FfnDownExps]].concat();
    // A fresh adapter changes nothing: its B is zero.
    let none = Adapter::init(&lora::slots(base.config(), &modules), 1, 1.0, false, 0);
    convert(path, base, &none, ty, false, progress)
}

/// `merges`: whether the adapter has to change something, and the file tells that it did.
fn convert(
    path: &Path,
    base: &Base,
    adapter: &Adapter,
    ty: MergeType,
    merges: bool,
    mut progress: impl FnMut(&str),
) -> Result<Vec<MergedTensor>, Error> {
    let gguf = base.gguf();
    let touched = locate(base, adapter)?;
    // Programs read vectors, such as the one that scores a shared expert, in F32 alone.
    let is_vector = |t: &TensorInfo| t.shape[1..].iter().all(|&size| size == 1);
    let format = |t: &TensorInfo| match !is_vector(t) && touched.iter().any(|part| part.tensor == t.name) {
        true => ty.of(t.ty, t.shape[0]),
        false => t.ty,
    };
    let entry = |t: &TensorInfo| Entry { name: t.name.clone(), shape: t.shape.clone(), ty: format(t) };
    let entries: Vec<Entry> = gguf.tensors().iter().map(entry).collect();
    let metadata = metadata(gguf, &entries, merges.then_some(adapter));

    let mut merged = Vec::new();
    let mut refused = None;
    let written = files::write_atomic_with(path, |out| {
        writer::write(out, &metadata, &entries, |index, out| {
            let tensor = &gguf.tensors()[index];
            let parts: Vec<&Part> = touched.iter().filter(|part| part.tensor == tensor.name).collect();
            if parts.is_empty() {
                for (i, piece) in gguf.data(tensor).chunks(BYTES_PER_COPY).enumerate() {
                    out.write_all(piece)?;
                    let start = tensor.range.start + (i * BYTES_PER_COPY) as u64;
                    gguf.release(start..start + piece.len() as u64);
                }
                return Ok(());
            }
            progress(&tensor.name);
            let job =
                Job { tensor, data: gguf.data(tensor), parts, scale: adapter.scale(), to: entries[index].ty };
            match job.run(out)? {
                Ok(done) => merged.push(done),
                Err(problem) => return Err(stop(&mut refused, problem)),
            }
            gguf.release(tensor.range.clone());
            Ok(())
        })?;
        if !merges || merged.iter().any(|t: &MergedTensor| t.changed) {
            return Ok(());
        }
        let problem = if merged.iter().all(|t| t.change == 0.0) {
            "every product scale·B·A is zero, so it has no effect; train it first".to_string()
        } else {
            format!(
                "its changes are too small for the weight type: no byte of {} matrices changes; choose a finer type, such as \
                 q8_0 or f16",
                merged.len()
            )
        };
        Err(stop(&mut refused, problem))
    });
    match (refused, written) {
        (Some(problem), _) => Err(Error::Merge { problem }),
        (None, written) => Ok(written.map(|()| merged)?),
    }
}

/// Stores the reason, and returns an error that ends the writing.
fn stop(refused: &mut Option<String>, problem: String) -> io::Error {
    *refused = Some(problem);
    io::Error::other("refused")
}
