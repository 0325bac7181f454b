//! From the tensors of a file to the pairs of an adapter: each must fit a slot, and each slot must have its two.

use std::borrow::Cow;
use std::collections::BTreeMap;

use half::f16;

use crate::adapter::lora::{self, Adapter, Pair, Slot};
use crate::base::Module;
use crate::base::config::Config;
use crate::base::{GgmlType, formats};
use crate::families;

/// How many names a message lists before it counts the rest.
const LISTED: usize = 12;
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
    /// `A` `[r, in]` and `B` `[out, r]`, rows first; of experts `[E·r, in]` and `[out, r·E]`, as PEFT has them.
    Rows,
    /// The same bytes, with sizes in GGUF's order, columns first; of experts with those of each behind the others'.
    Gguf,
    /// `A` `[in, r]` and `B` `[r, out]`, rows first: transposed; of experts `[E, r, in]` and `[E, out, r]`, as mlx-lm has them.
    Mlx,
}

impl Layout {
    /// The sizes of a tensor as the file gives them, and what they stand for.
    pub fn shape(self, half: Half, rank: usize, slot: &Slot) -> (Vec<usize>, &'static str) {
        let (input, output, experts) = (slot.in_features, slot.out_features, slot.experts);
        match (self, half, experts) {
            (Layout::Rows, Half::A, 1) => (vec![rank, input], "[r, in]"),
            (Layout::Rows, Half::B, 1) => (vec![output, rank], "[out, r]"),
            (Layout::Rows, Half::A, _) => (vec![experts * rank, input], "[E·r, in]"),
            (Layout::Rows, Half::B, _) => (vec![output, rank * experts], "[out, r·E]"),
            (Layout::Mlx, Half::A, 2..) => (vec![experts, rank, input], "[E, r, in]"),
            (Layout::Mlx, Half::B, 2..) => (vec![experts, output, rank], "[E, out, r]"),
            (_, Half::A, 1) => (vec![input, rank], "[in, r]"),
            (_, Half::B, 1) => (vec![rank, output], "[r, out]"),
            (_, Half::A, _) => (vec![input, rank, experts], "[in, r, E]"),
            (_, Half::B, _) => (vec![rank, output, experts], "[r, out, E]"),
        }
    }

    /// What a file of this layout holds of `values`, which are ours.
    pub fn store<'a>(
        self,
        half: Half,
        values: &'a [f32],
        rank: usize,
        slot: &Slot,
        config: &Config,
    ) -> Cow<'a, [f32]> {
        match (self, half) {
            (Layout::Mlx, _) if slot.experts > 1 => Cow::Borrowed(values),
            (Layout::Mlx, Half::A) => Cow::Owned(transpose(values, slot.in_features)),
            (Layout::Mlx, Half::B) => Cow::Owned(transpose(values, rank)),
            (Layout::Rows, _) => Layout::store_rows(half, values, rank, slot),
            (Layout::Gguf, Half::B) => scaled(values, slot, config, |b, scale| b * scale),
            _ => Cow::Borrowed(values),
        }
    }

    /// The same of [`Layout::Rows`], which needs no model: `B` of experts is `[out, r, E]` there.
    pub fn store_rows<'a>(half: Half, values: &'a [f32], rank: usize, slot: &Slot) -> Cow<'a, [f32]> {
        match half {
            Half::B if slot.experts > 1 => Cow::Owned(transpose(values, slot.out_features * rank)),
            _ => Cow::Borrowed(values),
        }
    }

    /// Our values from those of a file.
    fn read(self, half: Half, values: Vec<f32>, columns: usize, slot: &Slot, config: &Config) -> Vec<f32> {
        let undo = |b: f32, scale: f32| if scale == 0.0 { 0.0 } else { b / scale };
        match (self, half) {
            (Layout::Mlx, _) if slot.experts == 1 => transpose(&values, columns),
            (Layout::Rows, Half::B) if slot.experts > 1 => transpose(&values, slot.experts),
            (Layout::Gguf, Half::B) => scaled(&values, slot, config, undo).into_owned(),
            _ => values,
        }
    }

    /// `values` as they are after they were stored, rounded to F16 where `rounded`, and read.
    pub fn round_trip(
        self,
        half: Half,
        values: &[f32],
        (rank, rounded): (usize, bool),
        slot: &Slot,
        config: &Config,
    ) -> Vec<f32> {
        let mut stored = self.store(half, values, rank, slot, config).into_owned();
        if rounded {
            stored.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32());
        }
        let columns = *self.shape(half, rank, slot).0.last().expect("a shape has sizes");
        self.read(half, stored, columns, slot, config)
    }

    /// The rank in the first two sizes of a tensor.
    pub fn rank(self, half: Half, shape: [usize; 2]) -> usize {
        let a_starts_with_rank = self == Layout::Rows;
        shape[usize::from((half == Half::A) != a_starts_with_rank)]
    }
}

/// A format's names, for messages.
pub(super) struct Names<'a> {
    /// What `A` and `B` are called.
    pub halves: [&'static str; 2],
    /// What a module is called.
    pub module: &'a dyn Fn(&Slot) -> String,
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

/// What one adapted matrix has of its own: formats allow a rank and a scale for each.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Spec {
    pub rank: usize,
    pub scale: f64,
}

impl Spec {
    pub fn of(rank: usize, alpha: f64, rslora: bool) -> Spec {
        Spec { rank, scale: lora::scale(rank, alpha, rslora) }
    }
}

/// The adapter that `tensors` hold: `spec` says the rank and the scale of a slot, `alpha` and `rslora` are what the file says
/// for all.
///
/// `slots` are those that the caller wants, all of them; `None` takes what is there. F16 and BF16 become F32, exactly.
/// Fails on tensors that fit no slot, slots that lack one, wrong shapes, other types, and values that are not finite, and
/// names all of them.
pub(super) fn assemble(
    tensors: &[Tensor],
    (layout, names): (Layout, &Names),
    spec: &dyn Fn(&Slot) -> Spec,
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
            // One of the two is among the misfits already.
            (Some(_), Some(_)) => {}
            (None, None) if slots.is_some() => misfits.add(Misfit::Missing, module),
            (None, None) => {}
            (a, _) => {
                let [has, lacks] = if a.is_some() { [0, 1] } else { [1, 0] };
                let (has, lacks) = (names.halves[has], names.halves[lacks]);
                misfits.add(Misfit::Half, format!("{module} has a {has} and no {lacks}"));
            }
        }
    }
    misfits.check(slots.is_some())?;
    if pairs.is_empty() {
        return Err("holds no LoRA matrices; copy or export the adapter again".into());
    }
    unify(pairs, spec, alpha, rslora)
}

/// One adapter of pairs that may each have a rank and a scale of their own: smaller ranks are filled with zeros, which
/// further training leaves at zero, and `B` takes up another scale, at the price of one rounding to f32.
fn unify(
    mut pairs: BTreeMap<Slot, Pair>,
    spec: &dyn Fn(&Slot) -> Spec,
    alpha: f64,
    rslora: bool,
) -> Result<Adapter, String> {
    let specs: Vec<Spec> = pairs.keys().map(spec).collect();
    let rank = specs.iter().map(|s| s.rank).max().unwrap_or_default();
    let usual = Spec::of(rank, alpha, rslora);
    if specs.iter().all(|s| *s == usual) {
        return Ok(Adapter { rank, alpha, rslora, pairs });
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
            let (layer, module) = (slot.layer, slot.module.gguf_name());
            return Err(format!(
                "the scale of blk.{layer}.{module} is {}, {scale} elsewhere: too far apart for f32; use one alpha for all",
                own.scale
            ));
        }
    }
    Ok(Adapter { rank, alpha: scale * rank as f64, rslora: false, pairs })
}

/// Refuses an adapter that has not exactly `slots`; for one whose tensors were read without asking.
pub(super) fn check_slots(adapter: &Adapter, config: &Config, slots: &[Slot]) -> Result<(), String> {
    let mut misfits = Misfits::default();
    let name = |slot: &Slot| format!("blk.{}.{}", slot.layer, slot.module.gguf_name());
    for slot in adapter.pairs.keys().filter(|slot| !slots.contains(slot)) {
        let reason = why_no_slot(config, slot.layer, slot.module);
        misfits.add(Misfit::Unknown, format!("{} ({reason})", name(slot)));
    }
    for slot in slots.iter().filter(|slot| !adapter.pairs.contains_key(slot)) {
        misfits.add(Misfit::Missing, name(slot));
    }
    misfits.check(true)
}

/// In which way a tensor does not fit.
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

/// Everything that does not fit, in the file's order.
#[derive(Default)]
struct Misfits(Vec<(Misfit, String)>);

impl Misfits {
    fn add(&mut self, kind: Misfit, what: String) {
        self.0.push((kind, what));
    }

    /// One sentence for each kind; `trained`: the caller has wishes.
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
                Unknown if trained => format!("tensors that fit nothing that is trained: {names}"),
                Unknown => format!("tensors that fit nothing in this model: {names}"),
                Shape => format!("{names}; use an adapter of this model and rank"),
                Type => format!("{names}; convert the adapter"),
                NotFinite => format!("{names}; use an adapter whose training did not diverge"),
                Twice => format!("there twice, under two names: {names}; keep one"),
                Half => format!("{names}; export the adapter again"),
                Missing => format!(
                    "no tensors for {names}; leave these out of lora.target_modules, or use an adapter that has them"
                ),
            });
        }
        if sentences.is_empty() { Ok(()) } else { Err(sentences.join(". Also ")) }
    }
}

/// Why the caller has no slot for a module.
fn why_no_slot(config: &Config, layer: usize, module: Module) -> String {
    let name = families::of(config).names.peft_name(module);
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
        (Module::FfnGateInp | Module::FfnGateUpExps | Module::FfnDownExps, _) => {
            format!("this model has no experts and no {name}")
        }
        _ => format!("this model has no per-layer embeddings and no {name}"),
    }
}

/// The values as F32 in our own layout, after the shape, the type and every value have been checked.
fn values(
    tensor: &Tensor,
    layout: Layout,
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
    let Some(ty) = TYPES.into_iter().find(|ty| ty.name() == tensor.ty) else {
        return Err((Misfit::Type, format!("is {}, expected F32, F16 or BF16", tensor.ty)));
    };
    let values = formats::dequantize(ty, tensor.data);
    let columns = if layout == Layout::Gguf { expected[0] } else { expected[expected.len() - 1] };
    if let Some(i) = values.iter().position(|v| !v.is_finite()) {
        let (row, column) = (i / columns, i % columns);
        return Err((Misfit::NotFinite, format!("holds {} at [{row}, {column}]", values[i])));
    }
    Ok(layout.read(half, values, columns, slot, config))
}

/// `B` of the experts' down changed by `f` and its expert's scale, every other as it is.
///
/// An expert's scale is a factor on its whole output. llama.cpp (`build_lora_mm_id`) adds the adapter's part behind it.
fn scaled<'a>(b: &'a [f32], slot: &Slot, config: &Config, f: impl Fn(f32, f32) -> f32) -> Cow<'a, [f32]> {
    if slot.module != Module::FfnDownExps {
        return Cow::Borrowed(b);
    }
    let scales = &config.layers[slot.layer].expert_scales;
    let of_expert = |(b, scale): (&'a [f32], &f32)| {
        let scale = *scale;
        b.iter().map(|b| f(*b, scale)).collect::<Vec<_>>()
    };
    Cow::Owned(b.chunks_exact(b.len() / slot.experts).zip(scales).flat_map(of_expert).collect())
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
fn list(names: &[&str], separator: &str) -> String {
    let shown = names[..names.len().min(LISTED)].join(separator);
    if names.len() > LISTED { format!("{shown} and {} more", names.len() - LISTED) } else { shown }
}
