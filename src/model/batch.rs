//! [`Tokens`], what the layers have to know of the tokens that pass through them: so they are written once, for training and decoding. In
//! training these are a micro-batch, with its inputs, the adapter, and the activations that it uses.

use super::inputs::PerLayerRows;
use super::{Inputs, Model, Trainable};
use crate::gpu::Recorder;
use crate::memory::{Activations, Chunk, ExpertActs, ExpertScratch, LayerActs};
use crate::ops::act::Act;
use crate::ops::dropout::Mask;
use crate::ops::dropout::grouped::ExpertMask;
use crate::ops::linear::Adapters;
use crate::ops::linear::experts::ExpertLora;
use crate::ops::lora::{Input, Lora};
use crate::ops::pass::Pass;

/// Tokens on their way through the layers.
pub(super) trait Tokens {
    /// All of them.
    fn all(&self) -> Chunk;

    /// The activations of layer `layer`, of `chunk`.
    fn layer(&self, layer: usize, chunk: Chunk) -> LayerActs;

    /// The input of layer `layer`, or behind the last one the model's output, from token `first` on.
    fn input(&self, layer: usize, first: usize) -> Act;

    /// The adapters of the matrices that read `input` in `layer`.
    fn adapters(&self, layer: usize, input: Input) -> Adapters<'_>;

    /// The adapters of a layer's experts, for a pass from token `first` on.
    fn expert_loras(&self, layer: usize, first: usize) -> ExpertLoras<'_>;

    /// The experts' buffers, of `chunk`.
    fn experts(&self, layer: usize, chunk: Chunk) -> Option<(&ExpertActs, &ExpertScratch)>;

    /// The tokens' rows of the per-layer embedding table, where a layer still has to take its inputs from them.
    fn per_layer_rows(&self) -> Option<&PerLayerRows> {
        None
    }

    /// The micro-batch, where the heads of layer `layer` are divided into parts.
    fn in_parts(&self, _: usize) -> Option<&Batch<'_>> {
        None
    }

    /// Attention, or the delta net or short convolution in its place: from the results of the layer's first products to the input of its output
    /// projection.
    fn mix(&self, p: &mut Pass, model: &Model, layer: usize, a: &LayerActs);
}

/// A micro-batch on its way through the layers.
pub(super) struct Batch<'a> {
    pub inputs: &'a Inputs,
    pub adapter: &'a Trainable,
    pub acts: &'a Activations,
    pub dropout: Option<Mask>,
    /// Whether this is backward: activations that were kept are marked, so that ops do not compute them again.
    pub in_backward: bool,
}

impl<'a> Batch<'a> {
    /// A pass over all tokens.
    pub fn pass<'p, 'g>(&self, rec: &'p mut Recorder<'g>) -> Pass<'p, 'g>
    where
        'a: 'p,
    {
        Pass::new(rec, self.inputs.tokens, &self.acts.scratch)
    }

    /// The adapters of the matrices that read `input` in `layer`, where any is adapted.
    pub fn lora(&self, layer: usize, input: Input) -> Option<Lora<'a>> {
        let group = self.adapter.group(layer, input)?;
        let mask = self.dropout.map(|mask| group.mask(mask));
        Some(Lora { group, rank: self.adapter.padded_rank, scale: self.adapter.scale, mask })
    }

    fn expert_lora(&self, layer: usize, input: Input, first_token: usize) -> Option<ExpertLora<'a>> {
        let Lora { group, rank, scale, mask } = self.lora(layer, input)?;
        let b = &group.members.first()?.b;
        Some(ExpertLora {
            a: &group.a.value,
            b: &b.value,
            gradients: Some([&group.a.grad, &b.grad]),
            rank,
            scale,
            mask: mask.map(|mask| ExpertMask { mask, first_token }),
        })
    }

    /// The activations of part `part` of the heads of layer `layer`, of `chunk`.
    pub fn layer_part(&self, layer: usize, part: usize, chunk: Chunk) -> LayerActs {
        self.acts.layer_part(layer, part, chunk, self.in_backward)
    }

    /// Keys and values that layer `donor` has made.
    pub fn keys_values(&self, donor: usize) -> [Act; 2] {
        self.acts.keys_values(donor, self.inputs.tokens)
    }
}

impl Tokens for Batch<'_> {
    fn all(&self) -> Chunk {
        Chunk { first: 0, tokens: self.inputs.tokens }
    }

    fn layer(&self, layer: usize, chunk: Chunk) -> LayerActs {
        self.acts.layer(layer, chunk, self.in_backward)
    }

    fn input(&self, layer: usize, first: usize) -> Act {
        self.acts.input(layer, first, self.in_backward)
    }

    fn adapters(&self, layer: usize, input: Input) -> Adapters<'_> {
        Adapters::Trained(self.lora(layer, input))
    }

    fn expert_loras(&self, layer: usize, first: usize) -> ExpertLoras<'_> {
        ExpertLoras {
            gate_up: self.expert_lora(layer, Input::ExpertsNormed, first),
            down: self.expert_lora(layer, Input::ExpertsGated, first),
        }
    }

    fn experts(&self, layer: usize, chunk: Chunk) -> Option<(&ExpertActs, &ExpertScratch)> {
        self.acts.experts(layer, chunk)
    }

    fn per_layer_rows(&self) -> Option<&PerLayerRows> {
        self.inputs.per_layer.as_ref()
    }

    fn in_parts(&self, layer: usize) -> Option<&Batch<'_>> {
        (self.acts.parts(layer) > 1).then_some(self)
    }

    fn mix(&self, p: &mut Pass, model: &Model, layer: usize, a: &LayerActs) {
        model.mix(p, self, layer, a);
    }
}

/// The adapters of a layer's experts.
#[derive(Clone, Copy, Default)]
pub(super) struct ExpertLoras<'a> {
    pub gate_up: Option<ExpertLora<'a>>,
    pub down: Option<ExpertLora<'a>>,
}
