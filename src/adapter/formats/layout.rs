//! How formats order the values of `A` and `B`.

use std::borrow::Cow;

use half::f16;

use crate::adapter::lora::Slot;
use crate::base::Module;
use crate::base::config::Config;

/// Which matrix of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::adapter) enum Half {
    A,
    B,
}

/// How a format spells and orders the two matrices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::adapter) enum Layout {
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
    pub fn read(
        self,
        half: Half,
        values: Vec<f32>,
        columns: usize,
        slot: &Slot,
        config: &Config,
    ) -> Vec<f32> {
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
