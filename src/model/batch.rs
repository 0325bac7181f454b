//! One micro-batch in training: its inputs, the adapter, and the activations that it uses.

use super::{Inputs, Trainable};
use crate::gpu::Recorder;
use crate::memory::{Activations, Chunk, LayerActs};
use crate::ops::act::Act;
use crate::ops::dropout::Mask;
use crate::ops::dropout::grouped::ExpertMask;
use crate::ops::linear::experts::ExpertLora;
use crate::ops::lora::{Input, Lora};
use crate::ops::pass::Pass;

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
    /// All tokens.
    pub fn all(&self) -> Chunk {
        Chunk { first: 0, tokens: self.inputs.tokens }
    }

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

    /// The adapters of a layer's experts, for a pass from token `first_token` on.
    pub fn expert_loras(&self, layer: usize, first_token: usize) -> ExpertLoras<'a> {
        ExpertLoras {
            gate_up: self.expert_lora(layer, Input::ExpertsNormed, first_token),
            down: self.expert_lora(layer, Input::ExpertsGated, first_token),
        }
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

    /// The activations of layer `layer`, of `chunk`.
    pub fn layer(&self, layer: usize, chunk: Chunk) -> LayerActs {
        self.acts.layer(layer, chunk, self.in_backward)
    }

    /// The activations of part `part` of the heads of layer `layer`, of `chunk`.
    pub fn layer_part(&self, layer: usize, part: usize, chunk: Chunk) -> LayerActs {
        self.acts.layer_part(layer, part, chunk, self.in_backward)
    }

    /// The input of layer `layer`, or behind the last one the model's output, from token `first` on.
    pub fn input(&self, layer: usize, first: usize) -> Act {
        self.acts.input(layer, first, self.in_backward)
    }

    /// Keys and values that layer `donor` has made.
    pub fn keys_values(&self, donor: usize) -> [Act; 2] {
        self.acts.keys_values(donor, self.inputs.tokens)
    }
}

/// The adapters of a layer's experts.
#[derive(Clone, Copy, Default)]
pub(super) struct ExpertLoras<'a> {
    pub gate_up: Option<ExpertLora<'a>>,
    pub down: Option<ExpertLora<'a>>,
}
