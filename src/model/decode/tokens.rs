//! The tokens of a pass on their way through the layers: which buffers hold their activations, all layers the same ones.

use super::{Decoder, Place};
use crate::memory::{Chunk, ExpertActs, ExpertScratch, LayerActs, Saved};
use crate::model::batch::{ExpertLoras, Tokens};
use crate::model::{Dense, Layer, Model};
use crate::ops::act::Act;
use crate::ops::delta::Carried;
use crate::ops::linear::Adapters;
use crate::ops::linear::with_adapter::Applied;
use crate::ops::lora::Input;
use crate::ops::matvec::integers::{self, Integers};
use crate::ops::matvec::{takes_ended, takes_gated};
use crate::ops::pass::Pass;
use crate::ops::{Rows, Weight};

/// The `rows` tokens of a pass.
pub(super) struct Walk<'d, 'a> {
    pub decoder: &'d Decoder<'a>,
    pub rows: usize,
}

impl Tokens for Walk<'_, '_> {
    fn all(&self) -> Chunk {
        Chunk { first: 0, tokens: self.rows }
    }

    fn layer(&self, layer: usize, _: Chunk) -> LayerActs {
        LayerActs::new(|name| self.act(layer, name))
    }

    fn input(&self, _: usize, _: usize) -> Act {
        self.decoder.w.stream.clone().into()
    }

    fn adapters(&self, layer: usize, input: Input) -> Adapters<'_> {
        Adapters::Applied(self.adapter(layer, input))
    }

    fn expert_loras(&self, layer: usize, _: usize) -> ExpertLoras<'_> {
        self.decoder.adapter.as_ref().map_or_else(ExpertLoras::default, |adapter| adapter.experts(layer))
    }

    fn experts(&self, _: usize, _: Chunk) -> Option<(&ExpertActs, &ExpertScratch)> {
        self.decoder.w.experts.as_ref().map(|(acts, scratch)| (acts, scratch))
    }

    fn mix(&self, p: &mut Pass, model: &Model, layer: usize, a: &LayerActs) {
        let w = &model.layers[layer];
        match (&w.delta, &w.short_conv) {
            (Some(net), _) => self.delta_net(p, layer, net, a),
            (_, Some(conv)) => self.short_conv(p, layer, conv, a),
            _ => self.attention(p, layer, a),
        }
    }
}

impl<'a> Walk<'_, 'a> {
    /// The normed input of `layer`, or behind the last one of the head. The first comes from the embeddings, which leave no integers.
    pub fn normed(&self, layer: usize) -> Act {
        let model = self.decoder.w.model;
        let readers = match model.layers.get(layer) {
            Some(w) => first(w),
            None => vec![model.head_matrix()],
        };
        let integers = self.integers(0, &readers).filter(|_| layer > 0);
        Act::from(self.decoder.w.normed.clone()).with_integers(integers)
    }

    /// The integers of the only row of norms, or of gated products, for matrices that want them.
    pub fn integers(&self, of: usize, readers: &[&Weight]) -> Option<&'a Integers> {
        let w = self.decoder.w;
        let rows = w.integers.as_ref().filter(|_| self.rows == 1 && self.decoder.is_short(1))?;
        integers::wants(w.gpu, readers).then_some(&rows[of])
    }

    /// The state of a layer without attention, of the pass's sequence or of all.
    pub fn state(&self, layer: usize) -> Carried {
        let state = self.decoder.states[layer].as_ref().expect("the layer has a state");
        if let Place::One(of) = self.decoder.place { state.sequence(of) } else { state.clone() }
    }

    fn act(&self, layer: usize, name: Saved) -> Act {
        let w = self.decoder.w;
        let (lw, l) = (&w.model.layers[layer], &w.model.config().layers[layer]);
        let width = w.model.config().per_layer_width;
        match (name, &lw.dense) {
            (Saved::Input | Saved::AfterAttention, _) => w.stream.clone().into(),
            (Saved::AttnNormed, _) => self.normed(layer),
            (Saved::Attention, _) => w.wide.reshaped(l.heads * l.head_size).into(),
            (Saved::GatedAttention, _) => self.gated_attention(layer).into(),
            (Saved::FfnNormed, Some(Dense { gate, up, .. })) => {
                Act::from(w.normed.clone()).with_integers(self.integers(0, &[gate, up]))
            }
            (Saved::Gated, Some(Dense { down, .. })) => {
                Act::from(w.wide.reshaped(l.ffn_width)).with_integers(self.integers(1, &[down]))
            }
            (Saved::AfterFfn, _) if self.ends_in_product(lw) => w.normed.clone().into(),
            (Saved::AfterFfn, _) => w.stream.clone().into(),
            (Saved::PerLayerInput, _) => Act::columns(w.per_layer.clone(), layer * width),
            (Saved::GatedInput, _) if self.gates_in_product() => {
                Act::from(w.wide.reshaped(width)).finished_by_reader()
            }
            (Saved::GatedInput, _) => w.wide.reshaped(width).into(),
            _ => match self.of_delta_net(layer, name) {
                Some(rows) => rows.into(),
                None => self.product(layer, name).unwrap_or_else(|| w.z.clone().into()),
            },
        }
    }

    /// The result of a product, beside those of the other matrices that read its input.
    fn product(&self, layer: usize, name: Saved) -> Option<Act> {
        let w = self.decoder.w;
        let lw = &w.model.layers[layer];
        // A product does not read the rows that it writes.
        let (ends, gates) = (self.ends_in_product(lw), self.gates_in_product());
        let of_gate = if ends { &w.branch } else { &w.products };
        let of_branch = if gates && !ends { &w.branch } else { &w.products };
        let (rows, input, matrices, i) = match (name, &lw.dense, &lw.per_layer) {
            (Saved::AttnQ | Saved::QueryLatent | Saved::MixerInput, ..) => {
                (&w.products, Input::AttnNormed, first(lw), 0)
            }
            (Saved::AttnK | Saved::KeyValueLatent, ..) => (&w.products, Input::AttnNormed, first(lw), 1),
            (Saved::AttnV, ..) => (&w.products, Input::AttnNormed, first(lw), 2),
            (Saved::AttnOutput, ..) => (&w.products, Input::Attention, vec![lw.last_matrix().1], 0),
            (Saved::FfnGate, Some(d), _) => (&w.products, Input::FfnNormed, vec![&d.gate, &d.up], 0),
            (Saved::FfnUp, Some(d), _) => (&w.products, Input::FfnNormed, vec![&d.gate, &d.up], 1),
            (Saved::Down, Some(d), _) => (&w.products, Input::Gated, vec![&d.down], 0),
            (Saved::InpGate, _, Some(b)) => (of_gate, Input::AfterFfn, vec![&b.inp_gate], 0),
            (Saved::Proj, _, Some(b)) => (of_branch, Input::PerLayer, vec![&b.proj], 0),
            _ => return None,
        };
        let columns = |count: usize| matrices.iter().take(count).map(|matrix| matrix.rows).sum::<usize>();
        Some(Act::columns(rows.reshaped(columns(matrices.len()) + self.z(layer, input)), columns(i)))
    }

    /// The output of attention times its gates, or without zeros, or that of what stands in its place.
    fn gated_attention(&self, layer: usize) -> Rows {
        let w = self.decoder.w;
        let width = w.model.layers[layer].last_matrix().1.cols;
        match (&w.model.config().layers[layer], &w.delta, &w.latent) {
            (l, Some(b), _) if l.output_gate => b.normed.reshaped(width),
            (l, _, Some(b)) if l.latent.is_some() => b.output.reshaped(width),
            _ => w.wide.reshaped(width),
        }
    }

    /// The adapters of the matrices that read `input`.
    pub fn adapter(&self, layer: usize, input: Input) -> Option<&Applied> {
        self.decoder.adapter.as_ref()?.of(layer, input)
    }

    /// Columns of `z` of these matrices.
    pub fn z(&self, layer: usize, input: Input) -> usize {
        self.adapter(layer, input).map_or(0, |adapter| adapter.a.rows)
    }

    /// Whether the first product of the per-layer branch computes the end of the feed-forward block.
    fn ends_in_product(&self, w: &Layer) -> bool {
        let takes = |gate: &Weight| takes_ended(self.rows, &w.post_ffw_norm, gate);
        self.shares_inputs() && w.per_layer.as_ref().is_some_and(|branch| takes(&branch.inp_gate))
    }

    /// Whether the last product of the per-layer branch computes its gated input.
    fn gates_in_product(&self) -> bool {
        self.shares_inputs() && takes_gated(self.rows, self.decoder.w.model.config().per_layer_width)
    }

    /// Whether the workgroups of a product may compute its input: on a software renderer no threads wait for what they share.
    fn shares_inputs(&self) -> bool {
        self.decoder.is_short(self.rows) && self.decoder.w.gpu.kernels().software_lanes().is_none()
    }
}

/// The matrices that read the normed input of a layer and leave their results side by side: none of a delta net does.
pub(super) fn first(w: &Layer) -> Vec<&Weight> {
    match (&w.short_conv, &w.latent) {
        (Some(conv), _) => vec![&conv.in_proj],
        (_, Some(latent)) => {
            vec![latent.q_a.as_ref().map_or(&latent.q, |(q_a, _)| q_a), &latent.kv_a]
        }
        _ => w.attn_q.iter().chain(&w.attn_k).chain(&w.attn_v).collect(),
    }
}
