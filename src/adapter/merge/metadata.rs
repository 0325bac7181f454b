//! Metadata of a merged file.

use crate::adapter::lora::Adapter;
use crate::base::gguf::value::Value;
use crate::base::gguf::writer::Entry;
use crate::base::{GgmlType, Gguf};

/// Metadata key that describes the merge.
const KEY: &str = "rullama_train.merged";

/// The metadata of the base with an updated file type, and with a description of the merge where there is an adapter.
pub(super) fn metadata(gguf: &Gguf, entries: &[Entry], adapter: Option<&Adapter>) -> Vec<(String, Value)> {
    let mut metadata: Vec<(String, Value)> = gguf.metadata().to_vec();
    if let Some(Adapter { rank, pairs, .. }) = adapter {
        metadata.retain(|(key, _)| key != KEY);
        let matrices = pairs.len();
        metadata.push((KEY.into(), Value::String(format!("LoRA of rank {rank} into {matrices} matrices"))));
    }
    let before = most(gguf.tensors().iter().map(|t| (t.ty, &t.shape)));
    let after = most(entries.iter().map(|t| (t.ty, &t.shape)));
    if let Some((_, value)) = metadata.iter_mut().find(|(key, _)| key == "general.file_type")
        && let Some(ty) = after.filter(|_| before != after).and_then(GgmlType::format)
    {
        *value = Value::U32(ty.file_type);
    }
    metadata
}

/// The type of most matrices, as llama.cpp guesses the file type.
fn most<'a>(tensors: impl Iterator<Item = (GgmlType, &'a Vec<usize>)>) -> Option<GgmlType> {
    let matrices: Vec<GgmlType> = tensors.filter(|(_, shape)| shape.len() > 1).map(|(ty, _)| ty).collect();
    let count = |ty: &GgmlType| matrices.iter().filter(|t| *t == ty).count();
    GgmlType::SUPPORTED.into_iter().max_by_key(count).filter(|ty| count(ty) > 0)
}
