//! Assembles an adapter from the tensors of a file. Each tensor must fit a slot, and each slot must have two tensors.

use std::collections::BTreeMap;

use super::layout::{Half, MatrixLayout};
use super::left_out;
use crate::adapter::lora::{self, Adapter, Pair, Slot};
use crate::base::Module;
use crate::base::config::Config;
use crate::base::{GgmlType, formats};
use crate::families;

/// Number of names that a message lists in full.
const MAX_LISTED: usize = 12;
/// Padding all matrices to the largest rank may take this many times the values of the file, apart from the first GiB.
const MAX_PADDING: usize = 16;

/// Layer, module and matrix to which a tensor belongs, as its name says.
pub(super) type Place = (usize, Module, Half);

/// Names of a format, for messages.
pub(super) struct Names<'a> {
    /// Names of `A` and `B`.
    pub halves: [&'static str; 2],
    /// Name of a module.
    pub module: &'a dyn Fn(&Slot) -> String,
}

/// A tensor of an adapter file of any format.
pub(super) struct Tensor<'a> {
    pub name: &'a str,
    /// Place that the name means. `None` if it is not a LoRA matrix of a text layer.
    pub place: Option<Place>,
    pub shape: &'a [usize],
    /// Name of the type, which is equal in safetensors and ggml.
    pub ty: String,
    pub data: &'a [u8],
}

/// Rank and scale of one adapted matrix. Some formats allow different ones per matrix.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct RankScale {
    pub rank: usize,
    pub scale: f64,
}

impl RankScale {
    pub fn of(rank: usize, alpha: f64, rslora: bool) -> RankScale {
        RankScale { rank, scale: lora::scale(rank, alpha, rslora) }
    }
}

/// Assembles the adapter in `tensors`. `spec` gives the rank and the scale of a slot; `alpha` and `rslora` are the file's
/// defaults.
///
/// With `slots`, the file must have exactly these slots. With `None`, all slots in the file are read. F16 and BF16 are converted
/// to F32, which is exact. Fails on tensors that fit no slot, missing tensors, wrong shapes, other types, and values that are
/// not finite. The error lists all of them.
pub(super) fn assemble(
    tensors: &[Tensor],
    (layout, names): (MatrixLayout, &Names),
    spec: &dyn Fn(&Slot) -> RankScale,
    (alpha, rslora): (f64, bool),
    config: &Config,
    slots: Option<&[Slot]>,
) -> Result<Adapter, String> {
    let all = lora::slots(config, &Module::ALL);
    let wanted = slots.unwrap_or(&all);
    let mut halves: BTreeMap<(Slot, Half), Option<Vec<f32>>> = BTreeMap::new();
    let mut misfits = Misfits::default();
    for tensor in tensors {
        let key = tensor.name;
        if left_out::reason(key).is_some() {
            continue;
        }
        let Some((layer, module, half)) = tensor.place else {
            misfits.add(Misfit::Unknown, format!("{key} (not a LoRA matrix of a text layer)"));
            continue;
        };
        let Some(slot) = wanted.iter().find(|s| (s.layer, s.module) == (layer, module)) else {
            misfits.add(Misfit::Unknown, format!("{key} ({})", why_no_slot(config, layer, module)));
            continue;
        };
        let values = values(tensor, layout, half, spec(slot).rank, slot, config);
        let values = values.map_err(|(kind, problem)| misfits.add(kind, format!("{key} {problem}"))).ok();
        if halves.insert((*slot, half), values).is_some() {
            let name = names.halves[half as usize];
            misfits.add(Misfit::Twice, format!("{name} of {}", (names.module)(slot)));
        }
    }

    let mut pairs = BTreeMap::new();
    for slot in wanted {
        let module = (names.module)(slot);
        match (halves.remove(&(*slot, Half::A)), halves.remove(&(*slot, Half::B))) {
            (Some(Some(a)), Some(Some(b))) => drop(pairs.insert(*slot, Pair { a, b })),
            // At least one of the two has been reported as a misfit.
            (Some(_), Some(_)) => {}
            (None, None) if slots.is_some() => misfits.add(Misfit::Missing, module),
            (None, None) => {}
            (a, _) => {
                let [has, lacks] = if a.is_some() { [0, 1] } else { [1, 0] };
                let (has, lacks) = (names.halves[has], names.halves[lacks]);
                misfits.add(Misfit::Half, format!("{module} has a {has} but no {lacks}"));
            }
        }
    }
    misfits.check(slots.is_some())?;
    if pairs.is_empty() {
        return Err("contains no LoRA matrices; copy or export the adapter again".into());
    }
    unify(pairs, spec, alpha, rslora)
}

/// Makes one adapter of pairs with different ranks and scales.
///
/// Smaller ranks are padded with zeros, which further training leaves at zero. Different scales are multiplied into `B`, with
/// one rounding to f32.
fn unify(
    mut pairs: BTreeMap<Slot, Pair>,
    spec: &dyn Fn(&Slot) -> RankScale,
    alpha: f64,
    rslora: bool,
) -> Result<Adapter, String> {
    let specs: Vec<RankScale> = pairs.keys().map(spec).collect();
    let rank = specs.iter().map(|s| s.rank).max().unwrap_or_default();
    for (slot, RankScale { scale, .. }) in pairs.keys().zip(&specs) {
        let name = slot.name();
        if !lora::is_valid_scale(*scale) {
            return Err(format!(
                "the scale of {name} is {scale:e}, expected one that f32 can hold; use an adapter with another alpha"
            ));
        }
    }
    let usual = RankScale::of(rank, alpha, rslora);
    if specs.iter().all(|s| *s == usual) {
        return Ok(Adapter { rank, alpha, rslora, pairs });
    }
    let own: usize = pairs.values().map(|pair| pair.a.len() + pair.b.len()).sum();
    let padded: usize = pairs.keys().map(|slot| slot.len_a(rank) + slot.len_b(rank)).sum();
    if padded > (own.saturating_mul(MAX_PADDING)).max(1 << 28) {
        return Err(format!(
            "the largest rank is {rank}; padded to it, the other matrices would have {padded} values instead of {own}; use one rank \
             for all"
        ));
    }
    let scale = specs.first().map_or(usual.scale, |s| s.scale);
    for (own, (slot, pair)) in specs.iter().zip(&mut pairs) {
        let small = std::mem::replace(pair, Pair::zero(slot, rank));
        let k = slot.in_features;
        for (a, own_a) in pair.a.chunks_exact_mut(rank * k).zip(small.a.chunks_exact(own.rank * k)) {
            a[..own_a.len()].copy_from_slice(own_a);
        }
        for (row, own_row) in pair.b.chunks_exact_mut(rank).zip(small.b.chunks_exact(own.rank)) {
            for (b, own_b) in row.iter_mut().zip(own_row) {
                *b = (f64::from(*own_b) * (own.scale / scale)) as f32;
            }
        }
        if pair.b.iter().any(|b| !b.is_finite()) {
            return Err(format!(
                "the scale of {} is {}, and {scale} elsewhere, which is too far apart for f32; use one alpha for all",
                slot.name(),
                own.scale
            ));
        }
    }
    Ok(Adapter { rank, alpha: scale * rank as f64, rslora: false, pairs })
}

/// Rejects an adapter that does not have exactly `slots`.
pub(in crate::adapter) fn check_slots(
    adapter: &Adapter,
    config: &Config,
    slots: &[Slot],
) -> Result<(), String> {
    let mut misfits = Misfits::default();
    for slot in adapter.pairs.keys().filter(|slot| !slots.contains(slot)) {
        let reason = why_no_slot(config, slot.layer, slot.module);
        misfits.add(Misfit::Unknown, format!("{} ({reason})", slot.name()));
    }
    for slot in slots.iter().filter(|slot| !adapter.pairs.contains_key(slot)) {
        misfits.add(Misfit::Missing, slot.name());
    }
    misfits.check(true)
}

/// The reason why a tensor does not fit.
#[derive(Clone, Copy, PartialEq)]
enum Misfit {
    Unknown,
    Shape,
    Type,
    NotFinite,
    Twice,
    Half,
    Missing,
}

/// All tensors that do not fit, in the order of the file.
#[derive(Default)]
struct Misfits(Vec<(Misfit, String)>);

impl Misfits {
    fn add(&mut self, kind: Misfit, what: String) {
        self.0.push((kind, what));
    }

    /// One sentence per kind of misfit. `trained`: the caller gave the slots to be trained.
    fn check(self, trained: bool) -> Result<(), String> {
        use Misfit::*;
        let mut sentences = Vec::new();
        for kind in [Unknown, Shape, Type, NotFinite, Twice, Half, Missing] {
            let of_kind: Vec<&str> =
                self.0.iter().filter(|(k, _)| *k == kind).map(|(_, what)| what.as_str()).collect();
            if of_kind.is_empty() {
                continue;
            }
            let names = list(&of_kind, if matches!(kind, Unknown | Twice | Missing) { ", " } else { "; " });
            sentences.push(match kind {
                Unknown if trained => format!("tensors that match no trained module: {names}"),
                Unknown => format!("tensors that match no module of this model: {names}"),
                Shape => format!("{names}; use an adapter of this model and rank"),
                Type => format!("{names}; convert the adapter"),
                NotFinite => format!("{names}; use an adapter whose training did not diverge"),
                Twice => format!("present twice, under two names: {names}; keep one"),
                Half => format!("{names}; export the adapter again"),
                Missing => format!(
                    "no tensors for {names}; remove these from lora.target_modules, or use an adapter that has them"
                ),
            });
        }
        if sentences.is_empty() { Ok(()) } else { Err(sentences.join(". Also ")) }
    }
}

/// Why there is no slot for a module.
fn why_no_slot(config: &Config, layer: usize, module: Module) -> String {
    let name = families::names(config).peft_name(module);
    let Some(found) = config.layers.get(layer) else {
        return format!("the model has {} layers, numbered from 0", config.layers.len());
    };
    if let Some(fused) = found.fused_with(module) {
        let fused = families::names(config).peft_name(fused);
        return format!("{name} is a part of {fused} in this model, which has one adapter");
    }
    if module.adapted_shape(config, layer).is_some() {
        return format!("not trained by the recipe; add {name} to lora.target_modules");
    }
    match (module, found.kv_donor) {
        (Module::AttnQ | Module::AttnK | Module::AttnV | Module::AttnOutput, _) if found.delta.is_some() => {
            format!("layer {layer} has a gated delta net in the place of attention and no {name}")
        }
        (Module::AttnQ | Module::AttnK | Module::AttnV | Module::AttnOutput, _)
            if found.short_conv.is_some() =>
        {
            format!("layer {layer} has a short convolution in the place of attention and no {name}")
        }
        (Module::ShortconvInProj | Module::ShortconvOutProj, _) => {
            format!("layer {layer} has no short convolution and no {name}")
        }
        (Module::AttnK, Some(donor)) => {
            format!("layer {layer} shares the keys of layer {donor} and has no {name}")
        }
        (Module::AttnV, Some(donor)) => {
            format!("layer {layer} shares the values of layer {donor} and has no {name}")
        }
        (Module::AttnV, None) => format!("layer {layer} uses its keys as values and has no {name}"),
        (Module::FfnGate | Module::FfnUp | Module::FfnDown, _) => {
            format!("layer {layer} has experts in the place of a dense feed-forward block and no {name}")
        }
        (Module::FfnGateShexp | Module::FfnUpShexp | Module::FfnDownShexp | Module::FfnGateInpShexp, _) => {
            format!("this model has no shared experts and no {name}")
        }
        (Module::FfnGateUp, _) => {
            format!("this model has gate and up as two matrices, with an adapter each, and no {name}")
        }
        (Module::AttnQkv, _) if found.delta.is_none() => {
            format!(
                "layer {layer} has queries, keys and values as matrices with an adapter each and no {name}"
            )
        }
        (Module::FfnGateInp | Module::FfnGateUpExps | Module::FfnDownExps, _) => {
            format!("this model has no experts and no {name}")
        }
        (Module::AttnQkv | Module::AttnGate | Module::SsmAlpha | Module::SsmBeta | Module::SsmOut, _) => {
            format!("layer {layer} has no gated delta net and no {name}")
        }
        _ => format!("this model has no per-layer embeddings and no {name}"),
    }
}

/// Reads a tensor as F32 in the order in memory. Checks its shape, its type and every value.
fn values(
    tensor: &Tensor,
    layout: MatrixLayout,
    half: Half,
    rank: usize,
    slot: &Slot,
    config: &Config,
) -> Result<Vec<f32>, (Misfit, String)> {
    let (expected, meaning) = layout.shape(half, rank, slot);
    if tensor.shape != expected {
        let found = tensor.shape;
        return Err((Misfit::Shape, format!("is {found:?}, expected {meaning} = {expected:?}")));
    }
    // Every F16 and BF16 value is exact in f32. Other formats are those of GGUF files.
    let Some(ty) = GgmlType::SUPPORTED.into_iter().find(|ty| ty.name() == tensor.ty) else {
        return Err((Misfit::Type, format!("is {}, expected F32, F16 or BF16", tensor.ty)));
    };
    let values = formats::dequantize(ty, tensor.data);
    let columns = layout.columns(&expected);
    if let Some(i) = values.iter().position(|v| !v.is_finite()) {
        let (row, column) = (i / columns, i % columns);
        return Err((Misfit::NotFinite, format!("contains {} at [{row}, {column}]", values[i])));
    }
    Ok(layout.read(half, values, columns, slot, config))
}

/// Splits `3.self_attn.q_proj` into the layer and the rest. `None` if the number is not in canonical form.
pub(super) fn layer_and_rest(text: &str) -> Option<(usize, &str)> {
    let (number, rest) = text.split_once('.')?;
    let layer = number.parse().ok().filter(|layer: &usize| layer.to_string() == number)?;
    Some((layer, rest))
}

/// Lists the first names and the number of the others.
fn list(names: &[&str], separator: &str) -> String {
    let shown = names[..names.len().min(MAX_LISTED)].join(separator);
    if names.len() > MAX_LISTED { format!("{shown} and {} more", names.len() - MAX_LISTED) } else { shown }
}
