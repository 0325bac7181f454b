//! The whole text model on one micro-batch: forward, loss, and all adapter gradients.

mod activations;
mod backward;
mod delta;
mod forward;
mod latent;
mod random;
mod short_conv;
mod tensors;
mod weights;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::adapter::lora::Slot;
use crate::base::Module;
use crate::base::config::Config;
use crate::reference::{experts, rms_norm};

pub use activations::{
    Activations, DeltaActivations, ExpertActivations, LatentActivations, LayerActivations,
    ShortConvActivations,
};
pub use tensors::WeightsError;
pub use weights::{
    DeltaWeights, ExpertNorms, ExpertWeights, LatentWeights, LayerWeights, PerLayerBranchWeights,
    PerLayerInputWeights, ShortConvWeights, Weights,
};

/// A frozen base with an adapter. Its methods are `forward`, `logits`, `loss` and `backward`.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    /// Shapes and constants.
    pub config: &'a Config,
    /// The frozen base.
    pub weights: &'a Weights,
    /// The trained adapter.
    pub adapter: &'a Adapter,
}

/// `A` `[R, in]` and `B` `[out, R]` of one slot, or their gradients; for experts `[E, R, in]` and `[E, out, R]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// `[R, in]`.
    pub a: Vec<f64>,
    /// `[out, R]`.
    pub b: Vec<f64>,
}

/// LoRA matrices of any subset of the model's slots.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// `R`, equal in every slot.
    pub rank: usize,
    /// Factor on `B·A`; see [`crate::adapter::lora::scale`].
    pub scale: f64,
    /// The matrices. Slots that are missing are not adapted.
    pub pairs: BTreeMap<Slot, Pair>,
    /// Inverted dropout masks (0 or `1/(1 − p)`) of this micro-batch, `[T, in]`, or for experts `[T·used, in]`. Slots that are
    /// missing have no dropout.
    pub masks: BTreeMap<Slot, Vec<f64>>,
}

/// Result of [`Model::backward`].
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// Gradients of every slot of the adapter.
    pub pairs: BTreeMap<Slot, Pair>,
    /// Gradients of [`Activations::hidden`], `L + 1` times `[T, D]`. The first one excludes the path through the per-layer
    /// inputs, because it contains no trained tensor.
    pub hidden: Vec<Vec<f64>>,
}

impl Adapter {
    /// An adapter without slots: the base alone.
    pub fn none() -> Adapter {
        Adapter { rank: 1, scale: 0.0, pairs: BTreeMap::new(), masks: BTreeMap::new() }
    }

    /// Random, nonzero `A` and `B` for `slots`, so that every gradient is nonzero.
    ///
    /// `A ~ N(0, 1/in)`, `B ~ N(0, b_std²)`.
    pub fn random(slots: &[Slot], rank: usize, scale: f64, b_std: f64, seed: u64) -> Adapter {
        let mut normal = random::Normal::new(seed);
        let mut adapter = Adapter { rank, scale, ..Adapter::none() };
        for slot in slots {
            let a = normal.vec(slot.len_a(rank), 0.0, (slot.in_features as f64).powf(-0.5));
            let b = normal.vec(slot.len_b(rank), 0.0, b_std);
            adapter.pairs.insert(*slot, Pair { a, b });
        }
        adapter
    }
}

/// The norm of `x`, or `x` itself where the layer has no such norm.
fn norm_if(x: &[f64], weight: Option<&Vec<f64>>, width: usize, eps: f64) -> Vec<f64> {
    weight.map_or_else(|| x.to_vec(), |weight| rms_norm::forward(x, Some(weight), width, eps))
}

/// The gradient of `x` in [`norm_if`].
fn norm_if_backward(dy: &[f64], x: &[f64], weight: Option<&Vec<f64>>, width: usize, eps: f64) -> Vec<f64> {
    weight.map_or_else(|| dy.to_vec(), |weight| rms_norm::backward(dy, x, Some(weight), width, eps))
}

impl Model<'_> {
    /// The slot that adapts a matrix of the layer, and the rows of its `B` that are the matrix's.
    fn slot(&self, layer: usize, module: Module) -> (Slot, Range<usize>) {
        let slot = Slot::adapting(self.config, layer, module);
        slot.expect("forward only asks for matrices that the layer has")
    }

    /// The matrices of a layer's experts, of width `width` each, with their adapters.
    fn expert_matrices(&self, layer: usize, width: usize) -> Option<experts::Experts<'_>> {
        let w = &self.weights.layers[layer];
        let activation = self.config.layers[layer].activation;
        let matrices = w.experts.as_ref()?.matrices(width, activation, &w.biases);
        let lora = |module: Module| {
            let (slot, _) = self.slot(layer, module);
            let Pair { a, b } = self.adapter.pairs.get(&slot)?;
            let mask = self.adapter.masks.get(&slot).map(Vec::as_slice);
            Some(experts::Lora { a, b, rank: self.adapter.rank, scale: self.adapter.scale, mask })
        };
        let (gate_up_lora, down_lora) = (lora(Module::FfnGateUpExps), lora(Module::FfnDownExps));
        Some(experts::Experts { gate_up_lora, down_lora, ..matrices })
    }

    /// `ε` of every norm.
    fn eps(&self) -> f64 {
        f64::from(self.config.rms_eps)
    }

    /// `c` of the softcap.
    fn softcap(&self) -> Option<f64> {
        self.config.softcap.map(f64::from)
    }
}
