//! The f64 reference with the experts that a device has chosen, for mixtures on kernels with f16 operands.
//!
//! Where two scores are closer than f16 can tell, a device takes another expert than PyTorch. All that follows differs then, and no
//! tolerance tells it from a mistake. With the device's choice, the reference is as close as it is for dense models.

use std::collections::BTreeMap;

use pollster::block_on;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rullama_train::adapter::lora::{Adapter, Pair};
use rullama_train::data::batch::{MicroBatch, Step};
use rullama_train::gpu::{Gpu, GpuError};
use rullama_train::model::Model;
use rullama_train::model::plan::Recompute;
use rullama_train::reference::model as reference;
use rullama_train::train::Trainer;

use super::golden::{self, Golden};
use super::gpu;

/// Largest difference of two scores, in standard deviations of a token's scores, that a device may take for the other order: 5.5e-3
/// was seen.
pub const CLOSE: f64 = 5e-2;
/// Root mean square of the relative rounding error of f16, at most: 2⁻¹⁰/√12.
const ROUNDING: f64 = 2.8e-4;
/// A device rounds both operands of every product; [`Twin::sensitivity`] rounds one of them. 1.8 was seen.
pub const OPERANDS: f64 = 4.0;

/// The reference's model of a golden folder with an adapter, and a micro-batch.
pub struct Twin<'a> {
    golden: &'a Golden,
    batch: &'a MicroBatch,
    weights: reference::Weights,
    adapter: reference::Adapter,
    /// By layer, the experts of each token, `[T, used]`.
    chosen: Vec<Vec<usize>>,
    /// The largest preference of the reference for an expert that is not chosen over one that is, in standard deviations.
    pub margin: f64,
}

impl<'a> Twin<'a> {
    /// The twin that chooses as the trainer's last pass over `batch` did. The trainer keeps the activations of all layers.
    pub fn following(
        trainer: &Trainer,
        golden: &'a Golden,
        adapter: &Adapter,
        batch: &'a MicroBatch,
    ) -> Result<Twin<'a>, GpuError> {
        let mut twin = Twin::rounded(golden, adapter, batch, &mut || 1.0);
        let mut all = block_on(trainer.chosen_experts())?.into_iter();
        for (layer, l) in golden.base.config().layers.iter().enumerate() {
            let Some(chosen) = l.experts.and_then(|_| all.next()) else {
                twin.chosen.push(Vec::new());
                continue;
            };
            let acts = twin.model().forward_routed(batch, &twin.chosen);
            let routing = &acts.layers[layer].experts.as_ref().expect("a mixture").routing;
            let chosen: Vec<usize> =
                chosen[..routing.experts.len()].iter().map(|&expert| expert as usize).collect();
            twin.margin = twin.margin.max(margin(&chosen, &routing.preferences, batch.len()));
            twin.chosen.push(chosen);
        }
        Ok(twin)
    }

    /// [`Twin::following`] a pass over the model on the device.
    pub fn of_device(
        gpu: &Gpu,
        golden: &'a Golden,
        model: &Model,
        adapter: &Adapter,
        batch: &'a MicroBatch,
    ) -> Result<Twin<'a>, GpuError> {
        let trainer = super::trainer(gpu, model, adapter, &[&Step::of(batch.clone())], Recompute::Never);
        block_on(trainer.evaluate(std::slice::from_ref(batch), |_| ())).expect("the device computes");
        Twin::following(&trainer, golden, adapter, batch)
    }

    /// A twin whose matrices and adapter are multiplied by `factor`s.
    fn rounded(
        golden: &'a Golden,
        adapter: &Adapter,
        batch: &'a MicroBatch,
        factor: &mut dyn FnMut() -> f64,
    ) -> Twin<'a> {
        let mut widen =
            |values: &[f32]| -> Vec<f64> { values.iter().map(|&x| f64::from(x) * factor()).collect() };
        let matrix = |name: &str| Some(golden.base.matrix(name)?.dequantize());
        let weights =
            reference::Weights::from_tensors(golden.base.config(), |name| Some(widen(&matrix(name)?)));
        let weights = weights.expect("a whole model");
        let pairs = adapter.pairs.iter();
        let pairs = pairs.map(|(slot, p)| (*slot, reference::Pair { a: widen(&p.a), b: widen(&p.b) }));
        let pairs = pairs.collect();
        let (rank, scale) = (adapter.rank, adapter.scale());
        let adapter = reference::Adapter { rank, scale, pairs, masks: Default::default() };
        Twin { golden, batch, weights, adapter, chosen: Vec::new(), margin: 0.0 }
    }

    fn model(&self) -> reference::Model<'_> {
        let config = self.golden.base.config();
        reference::Model { config, weights: &self.weights, adapter: &self.adapter }
    }

    /// Logits of every token, `[T, V]`.
    pub fn logits(&self) -> Vec<f64> {
        let mut batch = self.batch.clone();
        batch.loss_rows = (0..batch.len() as u32).collect();
        let logits = self.model().forward_routed(&batch, &self.chosen).logits;
        let cap = self.golden.base.config().softcap.map(f64::from);
        logits.into_iter().map(|x| cap.map_or(x, |cap| cap * (x / cap).tanh())).collect()
    }

    /// The mean loss.
    pub fn loss(&self) -> f64 {
        let acts = self.model().forward_routed(self.batch, &self.chosen);
        self.model().loss(self.batch, &acts, 1.0 / self.batch.loss_rows.len() as f64)
    }

    /// The gradients of the mean loss, by PEFT's names.
    pub fn gradients(&self) -> BTreeMap<String, Vec<f64>> {
        let acts = self.model().forward_routed(self.batch, &self.chosen);
        let factor = 1.0 / self.batch.loss_rows.len() as f64;
        let found = self.model().backward(self.batch, &acts, factor).pairs;
        let narrow = |values: Vec<f64>| values.into_iter().map(|x| x as f32).collect();
        let pairs = found.into_iter().map(|(slot, p)| (slot, Pair { a: narrow(p.a), b: narrow(p.b) }));
        golden::by_name(&pairs.collect(), self.golden.base.config()).into_iter().collect()
    }

    /// By how much each gradient changes, relative to itself, where all weights are rounded to the precision of f16: the most of four
    /// random ways.
    pub fn sensitivity(&self, adapter: &Adapter) -> BTreeMap<String, f64> {
        let exact = self.gradients();
        let mut most: BTreeMap<String, f64> = BTreeMap::new();
        for seed in 0..4 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let width = ROUNDING * 3f64.sqrt(); // of a uniform distribution
            let mut factor = || 1.0 + rng.random_range(-width..width);
            let twin = Twin {
                chosen: self.chosen.clone(),
                ..Twin::rounded(self.golden, adapter, self.batch, &mut factor)
            };
            for (name, found) in twin.gradients() {
                let change = gpu::relative(&found, &exact[&name]);
                let known = most.entry(name).or_default();
                *known = known.max(change);
            }
        }
        most
    }
}

/// By how much the largest score of an expert that is not among those `chosen` `[T, used]` by a token exceeds the smallest of one that
/// is, in standard deviations of the token's scores: the most of all tokens, at least 0.
fn margin(chosen: &[usize], scores: &[f64], tokens: usize) -> f64 {
    let (used, count) = (chosen.len() / tokens, scores.len() / tokens);
    let of_token = |(chosen, scores): (&[usize], &[f64])| {
        let mean = scores.iter().sum::<f64>() / count as f64;
        let variance = scores.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / count as f64;
        let least = chosen.iter().map(|&e| scores[e]).fold(f64::INFINITY, f64::min);
        let others = (0..count).filter(|e| !chosen.contains(e)).map(|e| scores[e]);
        (others.fold(f64::NEG_INFINITY, f64::max) - least) / variance.sqrt()
    };
    chosen.chunks(used).zip(scores.chunks(count)).map(of_token).fold(0.0, f64::max)
}
