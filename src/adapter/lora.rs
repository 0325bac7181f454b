//! The matrices that a LoRA adapter adapts, and the adapter in host memory.

use std::collections::BTreeMap;
use std::ops::Range;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::base::Module;
use crate::base::config::Config;

/// An adapted matrix: `y = W·x + scale·B·(A·x)` with `A` `[rank, in]` and `B` `[out, rank]`. An experts' matrix has one pair of
/// `A` and `B` per expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Layer index.
    pub layer: usize,
    /// Kind of the matrix.
    pub module: Module,
    /// Rows of `W` and of `B`.
    pub out_features: usize,
    /// Columns of `W` and of `A`.
    pub in_features: usize,
    /// Number of matrices of this shape: `E` for experts, otherwise 1.
    pub experts: usize,
}

impl Slot {
    /// The slot of a module in layer `layer`. `None` if the layer does not have or does not use such a matrix, or has it as a part of one
    /// that has an adapter ([`Module::fused`]).
    pub fn of(config: &Config, layer: usize, module: Module) -> Option<Slot> {
        Some(Slot::shaped(config, layer, module, module.adapted_shape(config, layer)?))
    }

    /// The shape of a matrix of the base as that of a slot, whether or not the matrix has an adapter of its own.
    pub fn of_matrix(config: &Config, layer: usize, module: Module) -> Option<Slot> {
        Some(Slot::shaped(config, layer, module, module.shape(config, layer)?))
    }

    /// The slot whose adapter adapts a matrix of the base, and the rows of its `B` that belong to the matrix.
    pub fn adapting(config: &Config, layer: usize, module: Module) -> Option<(Slot, Range<usize>)> {
        let fused = config.layers[layer].fused_with(module).unwrap_or(module);
        let slot = Slot::of(config, layer, fused)?;
        let mut parts = slot.parts(config).into_iter();
        parts.find(|(part, _)| *part == module).map(|(_, rows)| (slot, rows))
    }

    /// The matrices of the base that the slot's adapter adapts, each with its rows of `B`: one, unless transformers has several as one.
    pub fn parts(&self, config: &Config) -> Vec<(Module, Range<usize>)> {
        let whole = 0..self.experts * self.out_features;
        if !config.layers[self.layer].fused.contains(&self.module) {
            return vec![(self.module, whole)];
        }
        let mut first = 0;
        let rows = |part: &Module| {
            let (rows, _) = part.shape(config, self.layer)?;
            first += rows;
            Some((*part, first - rows..first))
        };
        self.module.fused().iter().filter_map(rows).collect()
    }

    fn shaped(config: &Config, layer: usize, module: Module, (rows, cols): (usize, usize)) -> Slot {
        let experts = config.layers[layer].experts.filter(|_| module.of_experts()).map_or(1, |e| e.count);
        Slot { layer, module, out_features: rows, in_features: cols, experts }
    }

    /// Number of values in `A` `[E, R, in]`.
    pub fn len_a(&self, rank: usize) -> usize {
        self.experts * rank * self.in_features
    }

    /// Number of values in `B` `[E, out, R]`.
    pub fn len_b(&self, rank: usize) -> usize {
        self.experts * self.out_features * rank
    }

    /// GGUF's name of the matrix, for messages: `blk.3.attn_q`.
    pub fn name(&self) -> String {
        format!("blk.{}.{}", self.layer, self.module.gguf_name())
    }
}

/// All slots of `modules` that the model has and uses, by layer and then in the order of [`Module::ALL`].
pub fn slots(config: &Config, modules: &[Module]) -> Vec<Slot> {
    let mut slots = Vec::new();
    for layer in 0..config.layers.len() {
        for module in Module::ALL.into_iter().filter(|m| modules.contains(m)) {
            slots.extend(Slot::of(config, layer, module));
        }
    }
    slots
}

/// `alpha/rank`, or `alpha/√rank` with rank-stabilised scaling (Kalajdzievski 2023, arXiv:2312.03732).
#[must_use]
pub fn scale(rank: usize, alpha: f64, rslora: bool) -> f64 {
    if rslora { alpha / (rank as f64).sqrt() } else { alpha / rank as f64 }
}

/// Largest rank. It exceeds every matrix of the largest models, and sizes stay within 64 bits.
pub const MAX_RANK: usize = 1 << 16;

/// Whether kernels, which compute in f32, can apply this scale.
pub fn is_valid_scale(scale: f64) -> bool {
    (scale as f32).is_normal()
}

/// A LoRA adapter in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Rank `R` of all slots. Smaller ranks are padded with zeros, which training leaves at zero: see [`Adapter::rank_of`].
    pub rank: usize,
    /// `lora_alpha`, the numerator of the scale.
    pub alpha: f64,
    /// Whether the scale is `alpha/√rank` instead of `alpha/rank`.
    pub rslora: bool,
    /// The matrices of every slot.
    pub pairs: BTreeMap<Slot, Pair>,
}

/// The two matrices of a slot, or their gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// `A` `[R, in]`, or `[E, R, in]` for experts.
    pub a: Vec<f32>,
    /// `B` `[out, R]`, or `[E, out, R]` for experts.
    pub b: Vec<f32>,
}

impl Pair {
    /// A pair of zeros. It has no effect, and its gradients are zero.
    pub fn zero(slot: &Slot, rank: usize) -> Pair {
        Pair { a: vec![0.0; slot.len_a(rank)], b: vec![0.0; slot.len_b(rank)] }
    }
}

impl Adapter {
    /// Initial values as in PEFT: `A` is Kaiming-uniform with a = √5, that is uniform in `±1/√in`, and `B` is zero.
    ///
    /// Each slot has its own random stream of `seed`, so that slots do not depend on each other.
    #[must_use]
    pub fn init(slots: &[Slot], rank: usize, alpha: f64, rslora: bool, seed: u64) -> Adapter {
        let mut pairs = BTreeMap::new();
        for (stream, slot) in slots.iter().enumerate() {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(stream as u64 + 1);
            let bound = 1.0 / (slot.in_features as f32).sqrt();
            let a = (0..slot.len_a(rank)).map(|_| rng.random_range(-bound..bound)).collect();
            pairs.insert(*slot, Pair { a, b: vec![0.0; slot.len_b(rank)] });
        }
        Adapter { rank, alpha, rslora, pairs }
    }

    /// The factor on `B·A`.
    pub fn scale(&self) -> f64 {
        scale(self.rank, self.alpha, self.rslora)
    }

    /// The alpha that gives this scale as `alpha/rank`, for formats without rank-stabilised scaling.
    pub fn plain_alpha(&self) -> f64 {
        if self.rslora { self.alpha * (self.rank as f64).sqrt() } else { self.alpha }
    }

    /// Number of trainable values; the zeros that pad smaller ranks do not count.
    #[must_use]
    pub fn parameters(&self) -> usize {
        let values = |(slot, rank): (&Slot, usize)| slot.len_a(rank) + slot.len_b(rank);
        self.pairs.keys().map(|slot| values((slot, self.rank_of(slot)))).sum()
    }

    /// The rank of a slot without the zeros behind it, at least 1. Gradients of such zeros are zero, because each half's gradient
    /// is a product with the other half.
    pub fn rank_of(&self, slot: &Slot) -> usize {
        let (pair, rank, k) = (&self.pairs[slot], self.rank, slot.in_features);
        let used = |r: usize| {
            pair.a.chunks(rank * k).any(|a| a[r * k..][..k].iter().any(|x| *x != 0.0))
                || pair.b.chunks(rank).any(|row| row[r] != 0.0)
        };
        (0..rank).rev().find(|r| used(*r)).map_or(1, |r| r + 1)
    }

    /// Lowers the rank of a slot: the rest of its matrices becomes zero.
    pub fn lower(&mut self, slot: &Slot, to: usize) {
        let (rank, k) = (self.rank, slot.in_features);
        let Some(pair) = self.pairs.get_mut(slot).filter(|_| to < rank) else { return };
        pair.a.chunks_mut(rank * k).for_each(|a| a[to * k..].fill(0.0));
        pair.b.chunks_mut(rank).for_each(|row| row[to..].fill(0.0));
    }

    /// The matrices of a slot at a lower rank, without the zeros behind.
    pub fn cut(&self, slot: &Slot, to: usize) -> Pair {
        let (pair, rank, k) = (&self.pairs[slot], self.rank, slot.in_features);
        Pair {
            a: pair.a.chunks(rank * k).flat_map(|a| &a[..to * k]).copied().collect(),
            b: pair.b.chunks(rank).flat_map(|row| &row[..to]).copied().collect(),
        }
    }
}
