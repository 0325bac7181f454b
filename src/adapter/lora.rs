//! Which matrices a LoRA adapter touches, what the adapter's tensors are called, and the adapter in host memory.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::base::Module;
use crate::base::config::Config;

/// One adapted matrix: `y = W·x + scale·B·(A·x)` with `A` `[rank, in]` and `B` `[out, rank]`, or one for each expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Layer index.
    pub layer: usize,
    /// Which of the layer's matrices.
    pub module: Module,
    /// Rows of `W` and of `B`.
    pub out_features: usize,
    /// Columns of `W` and of `A`.
    pub in_features: usize,
    /// Matrices of this shape: `E` of experts, 1 of everything else.
    pub experts: usize,
}

impl Slot {
    /// The slot of a matrix in layer `layer`; `None` where the layer has no such matrix or never uses it.
    pub fn of(config: &Config, layer: usize, module: Module) -> Option<Slot> {
        let (out_features, in_features) = module.shape(config, layer)?;
        let experts = config.layers[layer].experts.filter(|_| module.of_experts()).map_or(1, |e| e.count);
        Some(Slot { layer, module, out_features, in_features, experts })
    }

    /// Values of `A` `[E, R, in]`.
    pub fn len_a(&self, rank: usize) -> usize {
        self.experts * rank * self.in_features
    }

    /// Values of `B` `[E, out, R]`.
    pub fn len_b(&self, rank: usize) -> usize {
        self.experts * self.out_features * rank
    }

    /// Its name for messages, as GGUF names the matrix: `blk.3.attn_q`.
    pub fn name(&self) -> String {
        format!("blk.{}.{}", self.layer, self.module.gguf_name())
    }
}

/// Every slot of `modules` that the model has and uses, by layer and then in [`Module::ALL`]'s order.
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
pub fn scale(rank: usize, alpha: f64, rslora: bool) -> f64 {
    if rslora { alpha / (rank as f64).sqrt() } else { alpha / rank as f64 }
}

/// An adapter in host memory: what files hold and what the device starts from.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// `R`, the same for every slot.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f64,
    /// Whether the scale is `alpha/√rank`.
    pub rslora: bool,
    /// The matrices.
    pub pairs: BTreeMap<Slot, Pair>,
}

/// The two matrices of a slot, or their gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// `A` `[R, in]`, of experts `[E, R, in]`.
    pub a: Vec<f32>,
    /// `B` `[out, R]`, of experts `[E, out, R]`.
    pub b: Vec<f32>,
}

impl Pair {
    /// The pair of a slot that changes nothing and, as both matrices are zero, learns nothing.
    pub fn zero(slot: &Slot, rank: usize) -> Pair {
        Pair { a: vec![0.0; slot.len_a(rank)], b: vec![0.0; slot.len_b(rank)] }
    }
}

impl Adapter {
    /// PEFT's start: `A` Kaiming-uniform with a = √5, which is uniform in `±1/√in`, and `B` zero.
    ///
    /// Each slot draws from its own stream of `seed`, so that slots do not depend on each other.
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

    /// The alpha that gives the same scale as `alpha/rank`, for formats that know no rank-stabilised scaling.
    pub fn plain_alpha(&self) -> f64 {
        if self.rslora { self.alpha * (self.rank as f64).sqrt() } else { self.alpha }
    }

    /// Trainable values.
    pub fn parameters(&self) -> usize {
        self.pairs.values().map(|p| p.a.len() + p.b.len()).sum()
    }
}
