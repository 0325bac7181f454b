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

/// Why adapters have no sum.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum CombineError {
    /// Nothing to add.
    #[error("there is no adapter to add; name at least one")]
    None,
    /// A weight that is no factor.
    #[error(
        "the weight of adapter {number} is {weight}, expected a finite number other than 0; leave it out, or choose another"
    )]
    Weight {
        /// Which adapter, from 1.
        number: usize,
        /// Its weight.
        weight: f64,
    },
    /// Adapters of different models.
    #[error(
        "blk.{}.{} is [{}, {}] in one adapter and [{}, {}] in another; use adapters of one model",
        .one.layer, .one.module.gguf_name(), .one.out_features, .one.in_features, .other.out_features, .other.in_features
    )]
    Shape {
        /// The slot of the first.
        one: Slot,
        /// The same slot of another.
        other: Slot,
    },
    /// Scales that are too different.
    #[error(
        "B of blk.{}.{} leaves the range of f32 in the sum; choose weights that are closer to each other",
        .slot.layer, .slot.module.gguf_name()
    )]
    Overflow {
        /// Where.
        slot: Slot,
    },
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

    /// The sum of adapters, `Σ weight·scale·B·A`, as one adapter of the summed rank: PEFT's `add_weighted_adapter` with `cat`.
    ///
    /// `A` stand below each other and `B` side by side; an adapter without a slot gives zeros there. The scale is the first
    /// adapter's times its weight. The others' `B` take up what differs from it, at the price of one rounding to f32;
    /// everything else is exact. Fails on no adapter, a weight of 0 or one that is not finite, a slot of two shapes, and values
    /// that leave f32.
    pub fn combine(parts: &[(&Adapter, f64)]) -> Result<Adapter, CombineError> {
        let &[(first, weight), ..] = parts else { return Err(CombineError::None) };
        if let Some((index, (_, weight))) = parts.iter().enumerate().find(|(_, (_, w))| !w.is_normal()) {
            return Err(CombineError::Weight { number: index + 1, weight: *weight });
        }
        let rank = parts.iter().map(|(adapter, _)| adapter.rank).sum();
        let scale = first.scale() * weight;
        let mut pairs: BTreeMap<Slot, Pair> = BTreeMap::new();
        let mut start = 0;
        for (adapter, weight) in parts {
            let factor = weight * adapter.scale() / scale;
            for (slot, pair) in &adapter.pairs {
                let same = |s: &&Slot| (s.layer, s.module) == (slot.layer, slot.module);
                if let Some(other) = pairs.keys().find(same).filter(|other| *other != slot) {
                    return Err(CombineError::Shape { one: *other, other: *slot });
                }
                let sum = pairs.entry(*slot).or_insert_with(|| Pair::zero(slot, rank));
                let k = slot.in_features;
                let own = pair.a.chunks_exact(adapter.rank * k); // by expert
                for (into, a) in sum.a.chunks_exact_mut(rank * k).zip(own) {
                    into[start * k..][..a.len()].copy_from_slice(a);
                }
                for (into, row) in sum.b.chunks_exact_mut(rank).zip(pair.b.chunks_exact(adapter.rank)) {
                    for (into, b) in into[start..].iter_mut().zip(row) {
                        *into = (f64::from(*b) * factor) as f32;
                    }
                }
                if sum.b.iter().any(|b| !b.is_finite()) {
                    return Err(CombineError::Overflow { slot: *slot });
                }
            }
            start += adapter.rank;
        }
        Ok(Adapter { rank, alpha: scale * rank as f64, rslora: false, pairs })
    }

    /// The same adapter with another alpha: `B` takes up the difference, at the price of one rounding to f32.
    pub fn rescaled(mut self, alpha: f64, rslora: bool) -> Adapter {
        let factor = self.scale() / scale(self.rank, alpha, rslora);
        let values = self.pairs.values_mut().flat_map(|pair| &mut pair.b);
        values.for_each(|b| *b = (f64::from(*b) * factor) as f32);
        Adapter { alpha, rslora, ..self }
    }

    /// Trainable values.
    pub fn parameters(&self) -> usize {
        self.pairs.values().map(|p| p.a.len() + p.b.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q: Slot = Slot { layer: 0, module: Module::AttnQ, out_features: 3, in_features: 2, experts: 1 };
    const K: Slot = Slot { layer: 1, module: Module::AttnK, out_features: 2, in_features: 4, experts: 1 };
    const EXPERTS: Slot =
        Slot { layer: 1, module: Module::FfnDownExps, out_features: 2, in_features: 3, experts: 3 };

    fn adapter(slots: &[Slot], rank: usize, alpha: f64, rslora: bool, seed: u64) -> Adapter {
        let mut adapter = Adapter::init(slots, rank, alpha, rslora, seed);
        for (i, b) in adapter.pairs.values_mut().flat_map(|pair| &mut pair.b).enumerate() {
            *b = (i as f32 + seed as f32).sin();
        }
        adapter
    }

    /// `scale·B·A`, `[E, out, in]`, in f64; zeros where the adapter has no such slot.
    fn product(adapter: &Adapter, slot: Slot) -> Vec<f64> {
        let (n, k, r) = (slot.out_features, slot.in_features, adapter.rank);
        let Some(pair) = adapter.pairs.get(&slot) else { return vec![0.0; slot.experts * n * k] };
        let entry = |i: usize| {
            let (row, column, e) = (i / k, i % k, i / (n * k));
            let a = &pair.a[e * r * k..];
            let terms = (0..r).map(|j| f64::from(pair.b[row * r + j]) * f64::from(a[j * k + column]));
            adapter.scale() * terms.sum::<f64>()
        };
        (0..slot.experts * n * k).map(entry).collect()
    }

    #[test]
    fn a_sum_is_the_sum_of_the_products() {
        let one = adapter(&[Q, K, EXPERTS], 2, 3.0, false, 1);
        let other = adapter(&[K, EXPERTS], 3, 5.0, true, 2);
        let sum = Adapter::combine(&[(&one, 0.7), (&other, -0.3)]).expect("they fit");
        assert_eq!((sum.rank, sum.pairs.len()), (5, 3));
        for slot in [Q, K, EXPERTS] {
            let parts = product(&one, slot).into_iter().zip(product(&other, slot));
            let expected: Vec<f64> = parts.map(|(one, other)| 0.7 * one - 0.3 * other).collect();
            for (found, expected) in product(&sum, slot).into_iter().zip(expected) {
                // One rounding of B to f32, of numbers around 1.
                assert!((found - expected).abs() < 4e-7, "{found}, expected {expected}");
            }
        }
        let b: Vec<u32> = sum.pairs[&K].b[..2].iter().map(|b| b.to_bits()).collect();
        assert_eq!(
            b,
            one.pairs[&K].b[..2].iter().map(|b| b.to_bits()).collect::<Vec<_>>(),
            "the first stays"
        );
    }

    #[test]
    fn one_adapter_is_its_own_sum_and_another_alpha_changes_no_product() {
        let one = adapter(&[Q, K], 2, 3.0, true, 1);
        let sum = Adapter::combine(&[(&one, 1.0)]).expect("it fits");
        assert_eq!((&sum.pairs, sum.rank), (&one.pairs, one.rank));
        assert!((sum.scale() - one.scale()).abs() < 1e-15);
        let other = one.clone().rescaled(40.0, false);
        assert_eq!(other.scale(), 20.0);
        for (found, expected) in product(&other, K).into_iter().zip(product(&one, K)) {
            assert!((found - expected).abs() < 4e-7, "{found}, expected {expected}");
        }
    }

    #[test]
    fn what_has_no_sum_is_refused() {
        let one = adapter(&[Q, K], 2, 3.0, false, 1);
        let refused = |parts: &[(&Adapter, f64)], expected: &str| {
            let error = Adapter::combine(parts).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}, expected {expected}");
        };
        refused(&[], "there is no adapter to add");
        refused(&[(&one, 1.0), (&one, 0.0)], "the weight of adapter 2 is 0, expected a finite number");
        refused(&[(&one, f64::NAN)], "the weight of adapter 1 is NaN");
        let wide = adapter(&[Slot { in_features: 8, ..K }], 2, 3.0, false, 1);
        refused(&[(&one, 1.0), (&wide, 1.0)], "blk.1.attn_k is [2, 4] in one adapter and [2, 8] in another");
        refused(&[(&one, 1e-30), (&one, 1e30)], "B of blk.0.attn_q leaves the range of f32");
    }
}
