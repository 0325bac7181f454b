//! Groups of LoRA matrices as one safetensors file: optimizer moments, the best adapter.

use std::collections::BTreeMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::adapter::formats::peft::Naming;
use crate::adapter::lora::{Pair, Slot};

/// Serializes groups of matrices as one safetensors file. Each tensor name starts with its group's name.
pub(super) fn serialize(groups: &[(&str, &BTreeMap<Slot, Pair>)], rank: usize, naming: Naming) -> Vec<u8> {
    let mut views = Vec::new();
    for (group, pairs) in groups {
        for (slot, pair) in *pairs {
            for ((name, shape), values) in
                halves(group, slot, rank, naming).into_iter().zip([&pair.a, &pair.b])
            {
                let view = TensorView::new(Dtype::F32, shape.into(), bytemuck::cast_slice(values));
                views.push((name, view.expect("a pair has the lengths of its slot and rank")));
            }
        }
    }
    safetensors::serialize(views, None).expect("names and sizes fit the header, as the adapter's own did")
}

/// Names and shapes of A and B of a slot.
fn halves(group: &str, slot: &Slot, rank: usize, naming: Naming) -> [(String, [usize; 2]); 2] {
    let key = format!("base_model.model.{}", naming.module(slot));
    [
        (format!("{group}.{key}.lora_A.weight"), [slot.experts * rank, slot.in_features]),
        (format!("{group}.{key}.lora_B.weight"), [slot.experts * slot.out_features, rank]),
    ]
}

/// Reads one group of a file that [`serialize`] wrote.
pub(super) fn parse(
    bytes: &[u8],
    group: &str,
    rank: usize,
    slots: &[Slot],
    naming: Naming,
) -> Result<BTreeMap<Slot, Pair>, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let mut pairs = BTreeMap::new();
    for slot in slots {
        let mut pair = Pair { a: Vec::new(), b: Vec::new() };
        let halves = halves(group, slot, rank, naming);
        for ((name, shape), values) in halves.into_iter().zip([&mut pair.a, &mut pair.b]) {
            let tensor = file.tensor(&name).map_err(|e| e.to_string())?;
            if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
                let found = format!("{} {:?}", tensor.dtype(), tensor.shape());
                return Err(format!("{name} is {found}, expected F32 {shape:?}"));
            }
            *values = bytemuck::pod_collect_to_vec(tensor.data());
            if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                return Err(format!("{name} holds {value}, expected finite numbers"));
            }
        }
        pairs.insert(*slot, pair);
    }
    Ok(pairs)
}
