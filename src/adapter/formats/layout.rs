//! The order of values of `A` and `B` in each format.

use std::borrow::Cow;

use half::f16;

use super::heads;
pub(in crate::adapter) use super::heads::Half;
use crate::adapter::lora::Slot;
use crate::base::Module;
use crate::base::config::{Config, DeltaNet, Interleaved, LayerConfig, RowOrder};
use crate::families::{self, AdapterNames};

/// Properties of a model on which the order of values in transformers and mlx-lm depends.
#[derive(Clone, Copy, Debug)]
pub(in crate::adapter) struct Order {
    pub names: &'static AdapterNames,
    /// The delta nets of its layers, which are all alike.
    delta: Option<DeltaNet>,
    /// The orders of the rows of [`SORTED`], where they are not those of memory.
    rows: [Option<RowOrder>; SORTED.len()],
}

/// The modules whose rows may have another order than in memory.
const SORTED: [Module; 5] =
    [Module::AttnQ, Module::AttnK, Module::AttnQB, Module::AttnKvAMqa, Module::AttnKvB];

impl Order {
    pub fn of(config: &Config) -> Order {
        let first = config.layers.iter().find(|l| l.interleaved_elsewhere);
        Order {
            names: families::names(config),
            delta: config.layers.iter().find_map(|l| l.delta),
            rows: SORTED.map(|module| first.and_then(|l| l.row_order(module))),
        }
    }

    /// The order of the rows of `slot`, where it is not that of memory.
    fn rows(&self, slot: &Slot) -> Option<RowOrder> {
        self.rows[SORTED.iter().position(|module| *module == slot.module)?]
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
            (MatrixLayout::Gguf, Half::B) => match in_base(slot, config) {
                Some(order) => Cow::Owned(stored_rows(values, rank, order)),
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
        if let (Half::B, Some(rows)) = (half, order.rows(slot)) {
            return Cow::Owned(stored_rows(values, rank, rows));
        }
        match half {
            Half::B if alternate(slot, order.names) => {
                let alternating = stored_rows(values, rank, alternating(slot));
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
        let in_order = |values: Vec<f32>| match (order.rows(slot), half) {
            (Some(rows), Half::B) => rows.sorted(&values, values.len() / slot.out_features),
            _ => order.delta.and_then(|delta| heads::apart(half, &values, slot, &delta)).unwrap_or(values),
        };
        match (self, half) {
            (MatrixLayout::Mlx, _) if slot.experts == 1 => in_order(transpose(&values, columns)),
            (MatrixLayout::Rows, _) if slot.experts == 1 => in_order(values),
            (MatrixLayout::Rows, Half::B) if slot.experts > 1 => {
                let values = transpose(&values, slot.experts);
                match alternate(slot, order.names) {
                    true => alternating(slot).sorted(&values, columns / slot.experts),
                    false => values,
                }
            }
            (MatrixLayout::Gguf, Half::B) => match in_base(slot, config) {
                Some(order) => order.sorted(&values, columns),
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

/// The order of the rows of a slot in the base's file, where it is not that of memory. Keys and values of a latent vector that are apart there
/// have files of their own order ([`super::gguf_latent`]).
fn in_base(slot: &Slot, config: &Config) -> Option<RowOrder> {
    let l: &LayerConfig = &config.layers[slot.layer];
    let apart = slot.module == Module::AttnKvB && l.latent.is_some_and(|latent| latent.apart);
    l.row_order(slot.module).filter(|_| SORTED.contains(&slot.module) && !apart)
}

/// The order of rows of gate and up in turn.
fn alternating(slot: &Slot) -> RowOrder {
    RowOrder::Pairs(Interleaved::whole(slot.out_features))
}

/// `B` with its rows in the order of files.
fn stored_rows(b: &[f32], rank: usize, order: RowOrder) -> Vec<f32> {
    let mut stored = vec![0.0; b.len()];
    for (row, values) in b.chunks_exact(rank).enumerate() {
        stored[order.stored(row) * rank..][..rank].copy_from_slice(values);
    }
    stored
}

/// Whether transformers has the rows of `slot`'s gate and up in turn.
fn alternate(slot: &Slot, names: &AdapterNames) -> bool {
    slot.module == Module::FfnGateUpExps && names.gate_up_alternate
}

/// The transpose of a matrix with rows of `columns` values.
pub(super) fn transpose(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| values.iter().skip(c).step_by(columns).copied()).collect()
}
