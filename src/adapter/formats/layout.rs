//! The order of values of `A` and `B` in each format.

use std::borrow::Cow;

use half::f16;

use super::heads;
pub(in crate::adapter) use super::heads::Half;
use crate::adapter::lora::Slot;
use crate::base::Module;
use crate::base::config::{Config, DeltaNet, Interleaved};
use crate::families::{self, AdapterNames};

/// Properties of a model on which the order of values in transformers and mlx-lm depends.
#[derive(Clone, Copy, Debug)]
pub(in crate::adapter) struct Order {
    pub names: &'static AdapterNames,
    /// The delta nets of its layers, which are all alike.
    delta: Option<DeltaNet>,
    /// The order of the rows of queries and keys, where it is not that of memory.
    pairs: Option<Interleaved>,
}

impl Order {
    pub fn of(config: &Config) -> Order {
        let first = config.layers.iter().find(|l| l.interleaved_elsewhere);
        Order {
            names: families::names(config),
            delta: config.layers.iter().find_map(|l| l.delta),
            pairs: first.and_then(|l| l.row_order()),
        }
    }

    /// The order of the rows of `slot`, where it is not that of memory.
    fn pairs(&self, slot: &Slot) -> Option<Interleaved> {
        self.pairs.filter(|_| is_turned(slot))
    }
}

/// Shapes and order of the two matrices in a format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::adapter) enum MatrixLayout {
    /// `A` `[r, in]` and `B` `[out, r]`, row-major; for experts `[E·r, in]` and `[out, r·E]`, as in PEFT. `out` of gate and up is in
    /// transformers' order.
    Rows,
    /// The bytes of [`MatrixLayout::Rows`] with sizes in GGUF's order, columns first. The matrices of experts follow each other.
    /// `B` of queries and keys has its rows in the order of the base's file.
    Gguf,
    /// Transposed: `A` `[in, r]` and `B` `[r, out]`, row-major; for experts `[E, r, in]` and `[E, out, r]`, as in mlx-lm.
    Mlx,
}

impl MatrixLayout {
    /// The shape of a tensor in the file, and the meaning of its sizes.
    pub fn shape(self, half: Half, rank: usize, slot: &Slot) -> (Vec<usize>, &'static str) {
        let input = slot.in_features;
        let output = slot.out_features;
        let experts = slot.experts;
        match (self, half, experts) {
            (MatrixLayout::Rows, Half::A, 1) => (vec![rank, input], "[r, in]"),
            (MatrixLayout::Rows, Half::B, 1) => (vec![output, rank], "[out, r]"),
            (MatrixLayout::Rows, Half::A, _) => (vec![experts * rank, input], "[E·r, in]"),
            (MatrixLayout::Rows, Half::B, _) => (vec![output, rank * experts], "[out, r·E]"),
            (MatrixLayout::Mlx, Half::A, 2..) => (vec![experts, rank, input], "[E, r, in]"),
            (MatrixLayout::Mlx, Half::B, 2..) => (vec![experts, output, rank], "[E, out, r]"),
            (_, Half::A, 1) => (vec![input, rank], "[in, r]"),
            (_, Half::B, 1) => (vec![rank, output], "[r, out]"),
            (_, Half::A, _) => (vec![input, rank, experts], "[in, r, E]"),
            (_, Half::B, _) => (vec![rank, output, experts], "[r, out, E]"),
        }
    }

    /// Converts values in memory to the order of the file.
    pub fn store<'a>(
        self,
        half: Half,
        values: &'a [f32],
        rank: usize,
        slot: &Slot,
        config: &Config,
    ) -> Cow<'a, [f32]> {
        let in_order = || MatrixLayout::store_rows(half, values, rank, slot, &Order::of(config));
        match (self, half) {
            (MatrixLayout::Mlx, _) if slot.experts > 1 => Cow::Borrowed(values),
            (MatrixLayout::Mlx, Half::A) => Cow::Owned(transpose(&in_order(), slot.in_features)),
            (MatrixLayout::Mlx, Half::B) => Cow::Owned(transpose(&in_order(), rank)),
            (MatrixLayout::Rows, _) => in_order(),
            (MatrixLayout::Gguf, Half::B) => match interleaved(slot, config) {
                Some(order) => Cow::Owned(interleave(values, rank, order)),
                None => scaled(values, slot, config, |b, scale| b * scale),
            },
            _ => Cow::Borrowed(values),
        }
    }

    /// Converts values in memory to [`MatrixLayout::Rows`]. There, `B` of experts is `[out, r, E]`.
    pub fn store_rows<'a>(
        half: Half,
        values: &'a [f32],
        rank: usize,
        slot: &Slot,
        order: &Order,
    ) -> Cow<'a, [f32]> {
        if let Some(moved) = order.delta.and_then(|delta| heads::side_by_side(half, values, slot, &delta)) {
            return Cow::Owned(moved);
        }
        if let (Half::B, Some(pairs)) = (half, order.pairs(slot)) {
            return Cow::Owned(interleave(values, rank, pairs));
        }
        match half {
            Half::B if alternate(slot, order.names) => {
                let alternating = interleave(values, rank, Interleaved::whole(slot.out_features));
                Cow::Owned(transpose(&alternating, slot.out_features * rank))
            }
            Half::B if slot.experts > 1 => Cow::Owned(transpose(values, slot.out_features * rank)),
            _ => Cow::Borrowed(values),
        }
    }

    /// Converts values of a file to the order in memory.
    pub fn read(
        self,
        half: Half,
        values: Vec<f32>,
        columns: usize,
        slot: &Slot,
        config: &Config,
    ) -> Vec<f32> {
        let undo = |b: f32, scale: f32| if scale == 0.0 { 0.0 } else { b / scale };
        let order = Order::of(config);
        let in_order = |values: Vec<f32>| match (order.pairs(slot), half) {
            (Some(pairs), Half::B) => halve(&values, values.len() / slot.out_features, pairs),
            _ => order.delta.and_then(|delta| heads::apart(half, &values, slot, &delta)).unwrap_or(values),
        };
        match (self, half) {
            (MatrixLayout::Mlx, _) if slot.experts == 1 => in_order(transpose(&values, columns)),
            (MatrixLayout::Rows, _) if slot.experts == 1 => in_order(values),
            (MatrixLayout::Rows, Half::B) if slot.experts > 1 => {
                let values = transpose(&values, slot.experts);
                match alternate(slot, order.names) {
                    true => halve(&values, columns / slot.experts, Interleaved::whole(slot.out_features)),
                    false => values,
                }
            }
            (MatrixLayout::Gguf, Half::B) => match interleaved(slot, config) {
                Some(order) => halve(&values, columns, order),
                None => scaled(&values, slot, config, undo).into_owned(),
            },
            _ => values,
        }
    }

    /// Values after storing and reading them, rounded to F16 if `rounded`.
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
        let columns = self.columns(&self.shape(half, rank, slot).0);
        self.read(half, stored, columns, slot, config)
    }

    /// Number of values in a row of a tensor.
    pub fn columns(self, shape: &[usize]) -> usize {
        if self == MatrixLayout::Gguf { shape[0] } else { shape[shape.len() - 1] }
    }

    /// The rank, given the first two sizes of a tensor.
    pub fn rank(self, half: Half, shape: [usize; 2]) -> usize {
        let a_starts_with_rank = self == MatrixLayout::Rows;
        shape[usize::from((half == Half::A) != a_starts_with_rank)]
    }
}

/// Applies `f` to each value of the `B` of the experts' down projections and the scale of its expert. Other matrices are unchanged.
///
/// An expert's scale is a factor on its whole output. llama.cpp (`build_lora_mm_id`) adds the adapter's output after the
/// scaling.
fn scaled<'a>(b: &'a [f32], slot: &Slot, config: &Config, f: impl Fn(f32, f32) -> f32) -> Cow<'a, [f32]> {
    let scales = &config.layers[slot.layer].expert_scales;
    if slot.module != Module::FfnDownExps || scales.is_empty() {
        return Cow::Borrowed(b);
    }
    let of_expert = |(b, scale): (&'a [f32], &f32)| {
        let scale = *scale;
        b.iter().map(|b| f(*b, scale)).collect::<Vec<_>>()
    };
    Cow::Owned(b.chunks_exact(b.len() / slot.experts).zip(scales).flat_map(of_expert).collect())
}

/// The order of the rows of a slot whose base's file has those of heads interleaved.
fn interleaved(slot: &Slot, config: &Config) -> Option<Interleaved> {
    config.layers[slot.layer].row_order().filter(|_| is_turned(slot))
}

/// Whether rotary embedding turns what the slot's matrix makes.
fn is_turned(slot: &Slot) -> bool {
    matches!(slot.module, Module::AttnQ | Module::AttnK)
}

/// `B` with rows in turn, as the heads of some files, and the gate and up of some models.
fn interleave(b: &[f32], rank: usize, order: Interleaved) -> Vec<f32> {
    let mut stored = vec![0.0; b.len()];
    for (row, values) in b.chunks_exact(rank).enumerate() {
        stored[order.stored(row) * rank..][..rank].copy_from_slice(values);
    }
    stored
}

/// Undoes [`interleave`].
fn halve(stored: &[f32], rank: usize, order: Interleaved) -> Vec<f32> {
    let row = |row: usize| &stored[order.stored(row) * rank..][..rank];
    (0..stored.len() / rank).flat_map(row).copied().collect()
}

/// Whether transformers has the rows of `slot`'s gate and up in turn.
fn alternate(slot: &Slot, names: &AdapterNames) -> bool {
    slot.module == Module::FfnGateUpExps && names.gate_up_alternate
}

/// The transpose of a matrix with rows of `columns` values.
pub(super) fn transpose(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| values.iter().skip(c).step_by(columns).copied()).collect()
}
