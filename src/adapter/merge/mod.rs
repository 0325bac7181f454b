//! A whole model with the adapter in it: `W + scale·B·A` in the touched matrices, every other byte as in the base.
//!
//! Rows are read, merged, quantized and written a few at a time, so that a large model needs little memory.

mod metadata;
mod parts;
mod rows;
mod ty;

use std::io;
use std::path::Path;

use super::Error;
use super::lora::Adapter;
use crate::base::gguf_writer::{self, Entry};
use crate::base::{Base, GgmlType, TensorInfo};
use crate::files;
use metadata::metadata;
use parts::{Part, locate};
use rows::Job;

pub use ty::MergeType;

/// Bytes of an untouched tensor that are copied at a time.
const BYTES_AT_A_TIME: usize = 16 << 20;
/// What merging did to one matrix of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedTensor {
    /// Name as in the file.
    pub name: String,
    /// Format in the base.
    pub from: GgmlType,
    /// Format in the merged file.
    pub to: GgmlType,
    /// Sum of squares of the base's values.
    pub base: f64,
    /// Sum of squares of `scale·B·A`.
    pub change: f64,
    /// Sum of squares of what was lost when the sum was stored.
    pub loss: f64,
    /// Whether a byte differs from the base's, and from the matrix without the adapter stored in the same format: storing
    /// decoded values anew may move bytes by itself.
    pub changed: bool,
}

/// Writes `base` with `adapter` merged into it to `path`, as [`files::write_atomic_with`] writes.
///
/// Metadata keep their order, types and values; the key `rullama_train.merged` is added and `general.file_type` follows
/// the matrices where most of them change format. Fails where the adapter does not fit the base, where a merged value
/// does not fit the format, and where the merged matrices are those of the base in every byte.
pub fn write(
    path: &Path,
    base: &Base,
    adapter: &Adapter,
    ty: MergeType,
    mut progress: impl FnMut(&str),
) -> Result<Vec<MergedTensor>, Error> {
    let gguf = base.gguf();
    let touched = locate(base, adapter)?;
    let format = |t: &TensorInfo| match touched.iter().any(|part| part.tensor == t.name) {
        true => ty.of(t.ty, t.shape[0]),
        false => t.ty,
    };
    let entry = |t: &TensorInfo| Entry { name: t.name.clone(), shape: t.shape.clone(), ty: format(t) };
    let entries: Vec<Entry> = gguf.tensors().iter().map(entry).collect();
    let metadata = metadata(gguf, &entries, adapter);

    let mut merged = Vec::new();
    let mut refused = None;
    let written = files::write_atomic_with(path, |out| {
        gguf_writer::write(out, &metadata, &entries, |index, out| {
            let tensor = &gguf.tensors()[index];
            let parts: Vec<&Part> = touched.iter().filter(|part| part.tensor == tensor.name).collect();
            if parts.is_empty() {
                for (i, piece) in gguf.data(tensor).chunks(BYTES_AT_A_TIME).enumerate() {
                    out.write_all(piece)?;
                    let start = tensor.range.start + (i * BYTES_AT_A_TIME) as u64;
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
        if merged.iter().any(|t: &MergedTensor| t.changed) {
            return Ok(());
        }
        let problem = if merged.iter().all(|t| t.change == 0.0) {
            "every product scale·B·A is zero, so that it would change nothing; train it first".to_string()
        } else {
            format!(
                "what it changes is too small for the format: every byte of {} matrices stayed the same; choose a \
                 finer type, such as q8_0 or f16",
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

/// Keeps the reason that is not the disk's, and ends the writing.
fn stop(refused: &mut Option<String>, problem: String) -> io::Error {
    *refused = Some(problem);
    io::Error::other("refused")
}
