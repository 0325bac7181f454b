//! From the tensors of a file to the pairs of an adapter: each must fit a slot, and each slot must have its two.

use std::collections::BTreeMap;

use crate::config::Config;
use crate::lora::{self, Module, Pair, Slot};
use crate::weights::{GgmlType, quant};

/// How many names a message lists before it counts the rest.
const LISTED: usize = 6;
/// The types that adapters are stored in; each value of the smaller ones is also an f32.
const TYPES: [GgmlType; 3] = [GgmlType::F32, GgmlType::F16, GgmlType::BF16];

/// Which matrix of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Half {
    A,
    B,
}

/// Layer, module and half: what a tensor's name says.
pub(super) type Place = (usize, Module, Half);

/// How a format spells and orders the two matrices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// `A` `[r, in]` and `B` `[out, r]`, rows first.
    Rows,
    /// The same bytes, with sizes in GGUF's order, columns first.
    Gguf,
    /// `A` `[in, r]` and `B` `[r, out]`, rows first: transposed.
    Transposed,
}

impl Layout {
    /// The sizes of a tensor as the file gives them, and what they stand for.
    pub fn shape(self, half: Half, rank: usize, slot: &Slot) -> ([usize; 2], &'static str) {
        let (input, output) = (slot.in_features, slot.out_features);
        match (self, half) {
            (Layout::Rows, Half::A) => ([rank, input], "[r, in]"),
            (Layout::Rows, Half::B) => ([output, rank], "[out, r]"),
            (_, Half::A) => ([input, rank], "[in, r]"),
            (_, Half::B) => ([rank, output], "[r, out]"),
        }
    }

    /// The rank in the sizes of a tensor of two dimensions.
    pub fn rank(self, half: Half, shape: [usize; 2]) -> usize {
        let a_starts_with_rank = self == Layout::Rows;
        shape[usize::from((half == Half::A) != a_starts_with_rank)]
    }
}

/// A format's names, for messages.
pub(super) struct Names {
    /// What `A` and `B` are called.
    pub halves: [&'static str; 2],
    /// What a module is called.
    pub module: fn(&Slot) -> String,
}

/// A tensor of an adapter file of any format.
pub(super) struct Tensor<'a> {
    pub name: &'a str,
    /// What the name says; `None` where it names nothing that a text layer has.
    pub place: Option<Place>,
    pub shape: &'a [usize],
    /// Name of the type: safetensors' and ggml's are the same.
    pub ty: String,
    pub data: &'a [u8],
}

/// The pairs that `tensors` hold.
///
/// `slots` are those that the caller wants, all of them; `None` takes what is there. F16 and BF16 become F32, exactly.
/// Fails on a tensor that fits no slot, a slot that lacks one, wrong shapes, other types, and values that are not finite.
pub(super) fn assemble(
    tensors: &[Tensor],
    (layout, names): (Layout, &Names),
    rank: usize,
    config: &Config,
    slots: Option<&[Slot]>,
) -> Result<BTreeMap<Slot, Pair>, String> {
    let all = lora::slots(config, &Module::ALL);
    let wanted = slots.unwrap_or(&all);
    let mut halves: BTreeMap<(Slot, Half), Vec<f32>> = BTreeMap::new();
    let mut extra = Vec::new();
    for tensor in tensors {
        let key = tensor.name;
        let Some((layer, module, half)) = tensor.place else {
            extra.push(format!("{key} (not a LoRA matrix of a text layer)"));
            continue;
        };
        let Some(slot) = wanted.iter().find(|s| (s.layer, s.module) == (layer, module)) else {
            extra.push(format!("{key} ({})", why_no_slot(config, layer, module)));
            continue;
        };
        let values =
            values(tensor, layout, half, rank, slot).map_err(|problem| format!("{key} {problem}"))?;
        if halves.insert((*slot, half), values).is_some() {
            return Err(format!(
                "{} of {} is there twice, under two names; keep one",
                names.halves[half as usize],
                (names.module)(slot)
            ));
        }
    }
    if !extra.is_empty() {
        let what = if slots.is_some() { "that is trained" } else { "in this model" };
        return Err(format!("tensors that fit nothing {what}: {}", list(&extra)));
    }

    let (mut pairs, mut missing) = (BTreeMap::new(), Vec::new());
    for slot in wanted {
        let module = (names.module)(slot);
        match (halves.remove(&(*slot, Half::A)), halves.remove(&(*slot, Half::B))) {
            (Some(a), Some(b)) => drop(pairs.insert(*slot, Pair { a, b })),
            (None, None) => missing.push(module),
            (a, _) => {
                let [has, lacks] = if a.is_some() { [0, 1] } else { [1, 0] };
                let (has, lacks) = (names.halves[has], names.halves[lacks]);
                return Err(format!("{module} has a {has} and no {lacks}; export the adapter again"));
            }
        }
    }
    if slots.is_some() && !missing.is_empty() {
        return Err(format!(
            "no tensors for {}; leave these out of lora.target_modules, or use an adapter that has them",
            list(&missing)
        ));
    }
    if pairs.is_empty() {
        return Err("holds no LoRA matrices; copy or export the adapter again".into());
    }
    Ok(pairs)
}

/// Why the caller has no slot for a module.
fn why_no_slot(config: &Config, layer: usize, module: Module) -> String {
    let name = module.peft_name();
    let Some(found) = config.layers.get(layer) else {
        return format!("the model has {} layers, the first is 0", config.layers.len());
    };
    if module.shape(config, layer).is_some() {
        return format!("the recipe does not train it; add {name} to lora.target_modules");
    }
    match (module, found.kv_donor) {
        (Module::AttnK, Some(donor)) => {
            format!("layer {layer} shares the keys of layer {donor} and has no {name}")
        }
        (Module::AttnV, Some(donor)) => {
            format!("layer {layer} shares the values of layer {donor} and has no {name}")
        }
        (Module::AttnV, None) => format!("the values of layer {layer} are its keys: it has no {name}"),
        _ => format!("this model has no per-layer embeddings and no {name}"),
    }
}

/// The values as F32 in our own layout, after the shape, the type and every value have been checked.
fn values(tensor: &Tensor, layout: Layout, half: Half, rank: usize, slot: &Slot) -> Result<Vec<f32>, String> {
    let (expected, meaning) = layout.shape(half, rank, slot);
    if tensor.shape != expected {
        return Err(format!(
            "is {:?}, expected {meaning} = {expected:?}; use an adapter of this model and rank",
            tensor.shape
        ));
    }
    let Some(ty) = TYPES.into_iter().find(|ty| ty.name() == tensor.ty) else {
        return Err(format!("is {}, expected F32, F16 or BF16; convert the adapter", tensor.ty));
    };
    let values = quant::dequantize(ty, tensor.data);
    let columns = if layout == Layout::Gguf { expected[0] } else { expected[1] };
    if let Some(i) = values.iter().position(|v| !v.is_finite()) {
        let (row, column) = (i / columns, i % columns);
        return Err(format!(
            "holds {} at [{row}, {column}]; use an adapter whose training did not diverge",
            values[i]
        ));
    }
    Ok(if layout == Layout::Transposed { transpose(&values, columns) } else { values })
}

/// The transpose of a matrix with rows of `columns` values.
pub(super) fn transpose(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| values.iter().skip(c).step_by(columns).copied()).collect()
}

/// The layer and the rest of `3.self_attn.q_proj`; `None` for numbers that are spelled in another way.
pub(super) fn layer_and_rest(text: &str) -> Option<(usize, &str)> {
    let (number, rest) = text.split_once('.')?;
    let layer = number.parse().ok().filter(|layer: &usize| layer.to_string() == number)?;
    Some((layer, rest))
}

/// The first names, and how many more there are.
fn list(names: &[String]) -> String {
    let shown = names[..names.len().min(LISTED)].join(", ");
    if names.len() > LISTED { format!("{shown} and {} more", names.len() - LISTED) } else { shown }
}
