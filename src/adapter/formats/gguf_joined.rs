//! Matrices with one adapter whose base has several tensors in their place: GGUF LoRA files have the whole `A` for each tensor, and its rows
//! of `B`.

use crate::adapter::lora::Slot;
use crate::base::config::Config;
use crate::base::{Gguf, Module, TensorInfo};

/// Names of `A` and `B`.
pub(super) const HALVES: [&str; 2] = ["lora_a", "lora_b"];

/// Names of gate and up of experts where they are two tensors.
pub(super) const SPLIT: [&str; 2] = ["ffn_gate_exps", "ffn_up_exps"];

/// Whether the base has two tensors in the place of a module of experts.
pub(super) fn is_split(module: Module, layer: usize, config: &Config) -> bool {
    module == Module::FfnGateUpExps && config.layers.get(layer).is_some_and(|l| l.experts_split)
}

/// Whether the base has several tensors in the place of a slot's matrix, which is one in transformers.
pub(super) fn is_apart(slot: &Slot, config: &Config) -> bool {
    let l = &config.layers[slot.layer];
    l.fused.contains(&slot.module) && !l.fused_in_file.contains(&slot.module)
}

/// Whether the module's tensors are those of a latent vector, which [`super::gguf_latent`] joins.
fn is_latent(module: Module) -> bool {
    module == Module::AttnKvB
}

/// A matrix put together from those of several tensors.
pub(super) struct Joined {
    pub name: String,
    pub shape: Vec<usize>,
    pub ty: String,
    pub data: Vec<u8>,
    /// The names of the tensors.
    pub of: Vec<String>,
}

/// Joins the adapters of each matrix whose base has it in several tensors. They have the same `A`, as PEFT has one for all.
pub(super) fn join(gguf: &Gguf, config: &Config) -> Result<Vec<Joined>, String> {
    let mut joined = Vec::new();
    for (layer, l) in config.layers.iter().enumerate() {
        let split = is_split(Module::FfnGateUpExps, layer, config);
        let experts = split.then(|| (Module::FfnGateUpExps, SPLIT.to_vec()));
        let parts = |module: &Module| module.fused().iter().map(|part| part.gguf_name()).collect();
        let apart = l.fused.iter().filter(|module| !l.fused_in_file.contains(module) && !is_latent(**module));
        for (module, parts) in experts.into_iter().chain(apart.map(|module| (*module, parts(module)))) {
            for half in HALVES {
                joined.extend(join_half(gguf, (layer, module, half), &parts)?);
            }
        }
    }
    Ok(joined)
}

/// `A` or `B` of a matrix, whose tensors are called `parts`; `None` where the file has none of them.
fn join_half(
    gguf: &Gguf,
    (layer, module, half): (usize, Module, &str),
    parts: &[&str],
) -> Result<Option<Joined>, String> {
    let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight.{half}");
    let found: Vec<&TensorInfo> = parts.iter().filter_map(|part| gguf.tensor(&name(part))).collect();
    let Some(first) = found.first() else { return Ok(None) };
    if found.len() < parts.len() {
        return Err(format!("{} has no twin; export the adapter again", first.name));
    }
    let is_a = half == HALVES[0];
    let (mut shape, mut data) = (first.shape.clone(), gguf.data(first).to_vec());
    let experts = shape.get(2).copied().unwrap_or(1).max(1);
    for other in &found[1..] {
        let alike = |t: &TensorInfo| {
            let mut shape = t.shape.clone();
            if let Some(rows) = shape.get_mut(1).filter(|_| !is_a && !module.of_experts()) {
                *rows = 0;
            }
            (shape, t.ty)
        };
        if alike(first) != alike(other) {
            return Err(format!(
                "{} and {} differ in shape or type; export the adapter again",
                first.name, other.name
            ));
        }
        if is_a && gguf.data(first) != gguf.data(other) {
            return Err(format!(
                "{} and {} differ, expected one A for all tensors of {}; train the adapter with them as one module",
                first.name,
                other.name,
                module.gguf_name()
            ));
        }
        if !is_a {
            let (own, block) = (data.len() / experts, gguf.data(other).len() / experts);
            let pairs = data.chunks(own.max(1)).zip(gguf.data(other).chunks(block.max(1)));
            data = pairs.flat_map(|(above, below)| [above, below].concat()).collect();
            if let (Some(rows), Some(more)) = (shape.get_mut(1), other.shape.get(1)) {
                *rows += more;
            }
        }
    }
    let of = found.iter().map(|tensor| tensor.name.clone()).collect();
    Ok(Some(Joined { name: name(module.gguf_name()), shape, ty: first.ty.name(), data, of }))
}
