//! Weighted sums of adapters.

use std::collections::BTreeMap;

use super::lora::{Adapter, Pair, Slot, is_valid_scale, scale};

/// Why adapters cannot be added up.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum CombineError {
    /// There is no adapter.
    #[error("there is no adapter to add; name at least one")]
    None,
    /// A weight is zero or not finite.
    #[error(
        "the weight of adapter {number} is {weight}, expected a finite number other than 0; remove it, or choose another"
    )]
    Weight {
        /// Number of the adapter, from 1.
        number: usize,
        /// Its weight.
        weight: f64,
    },
    /// The adapters are for different models.
    #[error(
        "blk.{}.{} is [{}, {}] in one adapter and [{}, {}] in another; use adapters of one model",
        .one.layer, .one.module.gguf_name(), .one.out_features, .one.in_features, .other.out_features, .other.in_features
    )]
    Shape {
        /// Slot of one adapter.
        one: Slot,
        /// Slot of another adapter for the same matrix.
        other: Slot,
    },
    /// The scale of the sum is beyond f32.
    #[error("the scale of the sum is {scale:e}, expected one that f32 can hold; choose other weights")]
    Scale {
        /// The scale.
        scale: f64,
    },
    /// The scales are too different for f32.
    #[error(
        "B of blk.{}.{} exceeds the range of f32 in the sum; choose weights that are closer to each other",
        .slot.layer, .slot.module.gguf_name()
    )]
    Overflow {
        /// Slot whose `B` overflows.
        slot: Slot,
    },
}

impl Adapter {
    /// The weighted sum `Σ weight·scale·B·A` of adapters as one adapter, whose rank is the sum of their ranks. This is PEFT's
    /// `add_weighted_adapter` with `combination_type="cat"`.
    ///
    /// The `A` are stacked and the `B` put side by side. A slot that an adapter lacks is filled with zeros. The scale is that
    /// of the first adapter times its weight. The `B` of the others are multiplied by the ratio of the scales, with one
    /// rounding to f32; everything else is exact.
    ///
    /// Fails without adapters, on a weight that is 0 or not finite, on slots of different shapes, and on values beyond f32.
    pub fn combine(parts: &[(&Adapter, f64)]) -> Result<Adapter, CombineError> {
        let &[(first, weight), ..] = parts else { return Err(CombineError::None) };
        if let Some((index, (_, weight))) = parts.iter().enumerate().find(|(_, (_, w))| !w.is_normal()) {
            return Err(CombineError::Weight { number: index + 1, weight: *weight });
        }
        let rank = parts.iter().map(|(adapter, _)| adapter.rank).sum();
        let scale = first.scale() * weight;
        if !is_valid_scale(scale) {
            return Err(CombineError::Scale { scale });
        }
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
                let own = pair.a.chunks_exact(adapter.rank * k); // per expert
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

    /// An equivalent adapter with another alpha. `B` is multiplied by the ratio of the scales, with one rounding to f32.
    pub fn rescaled(mut self, alpha: f64, rslora: bool) -> Adapter {
        let factor = self.scale() / scale(self.rank, alpha, rslora);
        let values = self.pairs.values_mut().flat_map(|pair| &mut pair.b);
        values.for_each(|b| *b = (f64::from(*b) * factor) as f32);
        Adapter { alpha, rslora, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Module;

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
            "the first is unchanged"
        );
    }

    #[test]
    fn the_sum_of_one_adapter_is_itself_and_rescaling_keeps_the_product() {
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
    fn invalid_sums_are_rejected() {
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
        refused(&[(&one, 1e39)], "the scale of the sum is 1.5e39, expected one that f32 can hold");
        refused(&[(&one, 1e-30), (&one, 1e30)], "B of blk.0.attn_q exceeds the range of f32");
    }
}
