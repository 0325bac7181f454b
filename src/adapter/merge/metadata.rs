//! Metadata of a merged file.

use crate::adapter::lora::Adapter;
use crate::base::gguf_writer::Entry;
use crate::base::value::Value;
use crate::base::{GgmlType, Gguf};

/// Says in the merged file what was done to it.
const KEY: &str = "rullama_train.merged";

/// The base's metadata, a note, and the file type that most matrices now have.
pub(super) fn metadata(gguf: &Gguf, entries: &[Entry], adapter: &Adapter) -> Vec<(String, Value)> {
    let mut metadata: Vec<(String, Value)> = gguf.metadata().to_vec();
    metadata.retain(|(key, _)| key != KEY);
    let (rank, matrices) = (adapter.rank, adapter.pairs.len());
    metadata.push((KEY.into(), Value::String(format!("LoRA of rank {rank} into {matrices} matrices"))));
    let before = most(gguf.tensors().iter().map(|t| (t.ty, &t.shape)));
    let after = most(entries.iter().map(|t| (t.ty, &t.shape)));
    if let Some((_, value)) = metadata.iter_mut().find(|(key, _)| key == "general.file_type")
        && let Some(ty) = after.filter(|_| before != after).and_then(file_type)
    {
        *value = Value::U32(ty);
    }
    metadata
}

/// The format that most matrices have, as llama.cpp guesses it where a file does not say.
fn most<'a>(tensors: impl Iterator<Item = (GgmlType, &'a Vec<usize>)>) -> Option<GgmlType> {
    let matrices: Vec<GgmlType> = tensors.filter(|(_, shape)| shape.len() > 1).map(|(ty, _)| ty).collect();
    let count = |ty: &GgmlType| matrices.iter().filter(|t| *t == ty).count();
    GgmlType::SUPPORTED.into_iter().max_by_key(count).filter(|ty| count(ty) > 0)
}

/// `enum llama_ftype` in llama.h, "mostly" of a format.
fn file_type(ty: GgmlType) -> Option<u32> {
    Some(match ty {
        GgmlType::F32 => 0,
        GgmlType::F16 => 1,
        GgmlType::Q4_0 => 2,
        GgmlType::Q8_0 => 7,
        GgmlType::Q5_0 => 8,
        GgmlType::Q4_K => 15,
        GgmlType::Q5_K => 17,
        GgmlType::Q6_K => 18,
        GgmlType::BF16 => 32,
        _ => return None,
    })
}
