//! Forward, straight through, in training and in decoding; `backward.rs` is the mirror of this file.

use super::batch::{Batch, Tokens};
use super::delta::remember;
use super::offload::Way;
use super::short_conv::convolve;
use super::{Dense, Layer, Model, PerLayerBranch};
use crate::base::Module;
use crate::base::config::LayerConfig;
use crate::gpu::{GpuError, Recorder};
use crate::memory::{Activations, Chunk, LayerActs, Saved};
use crate::model::{Inputs, Trainable};
use crate::ops::act::Act;
use crate::ops::attention::Attention;
use crate::ops::dropout::Mask;
use crate::ops::heads::Rotation;
use crate::ops::linear::Projection;
use crate::ops::lora::Input;
use crate::ops::pass::Pass;
use crate::ops::per_layer::layer::Table;
use crate::ops::{
    Weight, attention, embedding, gated, heads, linear, norm_add, output_gate, per_layer, rms_norm,
};

impl Model<'_> {
    /// Runs `inputs` through all layers. The result is the last stream; the rest is kept for [`Model::backward`].
    pub async fn forward(
        &self,
        rec: &mut Recorder<'_>,
        inputs: &Inputs,
        adapter: &Trainable,
        acts: &Activations,
        dropout: Option<Mask>,
    ) -> Result<(), GpuError> {
        let batch = Batch { inputs, adapter, acts, dropout, in_backward: false };
        self.fetch_first(rec, Way::Forward).await?;
        let p = &mut batch.pass(rec);
        self.embed(p, &batch);
        for layer in 0..self.layers.len() {
            self.attention_forward(p, &batch, layer);
            self.exchange(p, acts, layer, Way::Forward).await?;
            for chunk in acts.chunks(inputs.tokens) {
                self.feed_forward(p, &batch, layer, chunk);
            }
        }
        acts.end_forward();
        Ok(())
    }

    /// The first layer's input.
    fn embed(&self, p: &mut Pass, batch: &Batch) {
        let (input, scale) = (batch.input(0, 0), self.config().embedding_scale);
        let (embeddings, ids) = (input.staging(), &batch.inputs.ids);
        embedding::forward(p.rec.now(), &embeddings, ids, 0, &self.token_embd, 0, scale, p.tokens);
        input.store(p.rec.now(), p.tokens);
    }

    /// The first half of a layer, from its input to the output projection of attention.
    pub(super) fn attention_forward(&self, p: &mut Pass, tokens: &dyn Tokens, layer: usize) {
        let w = &self.layers[layer];
        let l = &self.config().layers[layer];
        let a = tokens.layer(layer, tokens.all());
        p.over(tokens.all().range());
        rms_norm::forward(p, &a[Saved::AttnNormed], &a[Saved::Input], &w.attn_norm);
        if let Some(batch) = tokens.in_parts(layer) {
            return self.parts_forward(p, batch, layer);
        }
        let adapters = tokens.adapters(layer, Input::AttnNormed);
        let outputs = w.first(l, |name| &a[name]);
        linear::forward(p, &outputs, &a[Saved::AttnNormed], adapters, &a[Saved::ZAttn]);
        tokens.mix(p, self, layer, &a);
        let adapters = tokens.adapters(layer, Input::Attention);
        linear::forward(p, &w.last(&a[Saved::AttnOutput]), &a[mixed(l)], adapters, &a[Saved::ZOutput]);
    }

    /// See [`Tokens::mix`].
    pub(super) fn mix(&self, p: &mut Pass, batch: &Batch, layer: usize, a: &LayerActs) {
        let w = &self.layers[layer];
        let l = &self.config().layers[layer];
        match (&w.delta, &w.short_conv, &w.latent) {
            (Some(delta), ..) => remember(p, delta, a, &self.delta_net(layer, delta, batch.inputs)),
            (_, Some(conv), _) => {
                convolve(p, a, &self.convolution(layer, &conv.taps, batch.inputs), batch.inputs);
            }
            (.., Some(latent)) => self.latent_forward(p, batch, layer, latent, a),
            _ => {
                self.queries_forward(p, batch, layer, a, l.heads);
                self.keys_forward(p, batch, layer, a);
                let [k, v] = &batch.keys_values(l.kv_donor.unwrap_or(layer));
                attend(p, &self.attention(layer, batch.inputs), l, a, [k, v]);
            }
        }
    }

    /// The queries of `heads` heads, normed and turned.
    pub(super) fn queries_forward(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        a: &LayerActs,
        heads: usize,
    ) {
        let w = &self.layers[layer];
        let [turn, _] = w.turns(batch.inputs);
        if self.config().layers[layer].output_gate {
            output_gate::split(p, &a[Saved::AttnQ], &a[Saved::MixerInput], heads);
        }
        heads::forward(p, &a[Saved::Q], &a[Saved::AttnQ], &w.attn_q_norm, turn, heads);
    }

    /// The keys, normed and turned, and the values, where the layer makes its own.
    pub(super) fn keys_forward(&self, p: &mut Pass, batch: &Batch, layer: usize, a: &LayerActs) {
        let w = &self.layers[layer];
        let l = &self.config().layers[layer];
        let [_, turn] = w.turns(batch.inputs);
        if let Some(k_norm) = &w.attn_k_norm {
            // Raw keys that are the values too come in rows of f32, so nothing is rounded to the same tiles twice.
            let (own, raw) = ([&a[Saved::K], &a[Saved::V]], [&a[Saved::AttnK], raw_values(a, l)]);
            heads::forward_both(p, own, raw, [k_norm, &w.attn_v_norm], turn, l.kv_heads);
        }
    }

    /// The second half, for the tokens of `chunk`: from attention's output projection to the next layer's input.
    pub(super) fn feed_forward(&self, p: &mut Pass, tokens: &dyn Tokens, layer: usize, chunk: Chunk) {
        let w = &self.layers[layer];
        let a = tokens.layer(layer, chunk);
        p.over(chunk.range());
        let (after_attention, norm) = (&a[Saved::AfterAttention], &w.post_attention_norm);
        norm_add::forward(p, after_attention, &a[Saved::AttnOutput], norm, &a[Saved::Input], 1.0);
        if w.dense.is_some() {
            rms_norm::forward(p, &a[Saved::FfnNormed], after_attention, &w.ffn_norm);
        }
        let of_experts = w.experts.as_ref().zip(tokens.experts(layer, chunk));
        if let Some((experts, (acts, scratch))) = of_experts {
            experts.forward(p, tokens, layer, after_attention, acts, scratch);
        }
        if let Some(dense) = &w.dense {
            self.dense_forward(p, tokens, layer, dense, &a);
        }
        let mut output = &a[Saved::Down];
        if let Some((experts, (acts, scratch))) = of_experts {
            output = experts.with_dense(p, output, acts, scratch);
        }
        let (next, scale) = (&tokens.input(layer + 1, p.first), w.output_scale);
        let Some(branch) = &w.per_layer else {
            return norm_add::forward(p, next, output, &w.post_ffw_norm, after_attention, scale);
        };
        let after_ffn = &a[Saved::AfterFfn];
        norm_add::forward(p, after_ffn, output, &w.post_ffw_norm, after_attention, 1.0);
        self.per_layer_branch(p, tokens, layer, branch, &a);
        norm_add::forward(p, next, &a[Saved::Proj], &branch.post_norm, after_ffn, scale);
    }

    /// The dense feed-forward block, from its normed input to its output.
    fn dense_forward(&self, p: &mut Pass, tokens: &dyn Tokens, layer: usize, dense: &Dense, a: &LayerActs) {
        let adapters = tokens.adapters(layer, Input::FfnNormed);
        linear::forward(p, &dense.gate_up(a), &a[Saved::FfnNormed], adapters, &a[Saved::ZFfn]);
        let activation = self.config().layers[layer].activation;
        gated::forward(p, &a[Saved::Gated], &a[Saved::FfnGate], &a[Saved::FfnUp], activation);
        let adapters = tokens.adapters(layer, Input::Gated);
        linear::forward(p, &dense.output(a), &a[Saved::Gated], adapters, &a[Saved::ZDown]);
    }

    /// The per-layer branch: the stream decides how much of a token's embedding for this layer is added to it.
    fn per_layer_branch(
        &self,
        p: &mut Pass,
        tokens: &dyn Tokens,
        layer: usize,
        branch: &PerLayerBranch,
        a: &LayerActs,
    ) {
        self.per_layer_input(p, tokens, layer, a);
        let adapters = tokens.adapters(layer, Input::AfterFfn);
        linear::forward(p, &branch.inp_gate(a), &a[Saved::AfterFfn], adapters, &a[Saved::ZGate]);
        let activation = self.config().per_layer_activation;
        gated::forward(p, &a[Saved::GatedInput], &a[Saved::InpGate], &a[Saved::PerLayerInput], activation);
        let adapters = tokens.adapters(layer, Input::PerLayer);
        linear::forward(p, &branch.proj(a), &a[Saved::GatedInput], adapters, &a[Saved::ZProj]);
    }

    /// `(√P·table[token] + norm(D^-½·model_proj·embedding))/√2` of one layer.
    fn per_layer_input(&self, p: &mut Pass, tokens: &dyn Tokens, layer: usize, a: &LayerActs) {
        let (Some(global), Some(rows)) = (&self.per_layer, tokens.per_layer_rows()) else { return };
        let (input, projected) = (&a[Saved::PerLayerInput], &a.projected_embeddings());
        if input.is_kept() {
            return;
        }
        let scale = (self.config().width as f64).sqrt().recip() as f32;
        linear::frozen(p, projected, &tokens.input(0, p.first), &global.model_proj[layer], scale);
        let table = Table { rows: &rows.table, ids: &rows.ids, first: p.first };
        per_layer::of_layer(p, input, projected, &global.proj_norm, table, layer);
    }

    /// Attention of layer `layer` over a micro-batch.
    pub(super) fn attention<'a>(&'a self, layer: usize, inputs: &'a Inputs) -> Attention<'a> {
        let l = &self.config().layers[layer];
        let donor = &self.layers[l.kv_donor.unwrap_or(layer)];
        Attention {
            heads: l.heads,
            kv_heads: l.kv_heads,
            head_size: l.head_size,
            window: l.window,
            softcap: l.score_softcap,
            sinks: self.layers[layer].sinks.as_ref(),
            bounds: &inputs.bounds,
            rows: inputs.tokens,
            longest: inputs.longest,
            q_scale: self.layers[layer].attn_q_norm.scale,
            k_scale: donor.attn_k_norm.as_ref().expect("a donor makes keys").scale,
        }
    }
}

/// The values before their norm: the raw keys where the layer has no matrix for values.
fn raw_values<'a>(a: &'a LayerActs, l: &LayerConfig) -> &'a Act {
    if l.k_eq_v { &a[Saved::AttnK] } else { &a[Saved::AttnV] }
}

/// The result of the matrix of the queries: queries alone, or with gates.
pub(super) fn raw_queries(l: &LayerConfig) -> Saved {
    if l.output_gate { Saved::MixerInput } else { Saved::AttnQ }
}

/// From queries, keys and values to the input of attention's output projection.
pub(super) fn attend(p: &mut Pass, shape: &Attention, l: &LayerConfig, a: &LayerActs, [k, v]: [&Act; 2]) {
    attention::forward(p, shape, &a[Saved::Attention], &a[Saved::Lse], [&a[Saved::Q], k, v]);
    if l.output_gate {
        let output = &a[Saved::GatedAttention];
        output_gate::forward(p, output, &a[Saved::Attention], &a[Saved::MixerInput], shape.heads);
    }
}

/// The input of the output projection of attention or of what stands in its place.
pub(super) fn mixed(l: &LayerConfig) -> Saved {
    let gated = !l.has_attention() || l.output_gate || l.has_narrow_values();
    if gated { Saved::GatedAttention } else { Saved::Attention }
}

impl Layer {
    /// The rotary embeddings of queries and of keys.
    pub(super) fn turns<'a>(&'a self, inputs: &'a Inputs) -> [Option<Rotation<'a>>; 2] {
        [0, 1].map(|i| self.rope.as_ref().map(|rope| (&inputs.positions, &rope[i])))
    }

    /// The matrices that read the layer's normed input, with what they make: `act` gives that by its name.
    pub(super) fn first<'a>(
        &'a self,
        l: &LayerConfig,
        act: impl Fn(Saved) -> &'a Act,
    ) -> Vec<Projection<'a>> {
        if let Some(delta) = &self.delta {
            return vec![
                (Module::AttnQkv, &delta.qkv, act(Saved::MixerInput)),
                (Module::AttnGate, &delta.gate, act(Saved::DeltaGate)),
                (Module::SsmAlpha, &delta.alpha, act(Saved::Alpha)),
                (Module::SsmBeta, &delta.beta, act(Saved::Beta)),
            ];
        }
        if let Some(conv) = &self.short_conv {
            return vec![(Module::ShortconvInProj, &conv.in_proj, act(Saved::MixerInput))];
        }
        if let Some(latent) = &self.latent {
            let made = [act(Saved::QueryLatent), act(Saved::AttnQ)];
            return latent.first(made, act(Saved::KeyValueLatent)).to_vec();
        }
        self.qkv([act(raw_queries(l)), act(Saved::AttnK), act(Saved::AttnV)])
    }

    /// The matrices of queries, keys and values, as far as the layer has them, with what they make or its gradients.
    pub(super) fn qkv<'a>(&'a self, [queries, keys, values]: [&'a Act; 3]) -> Vec<Projection<'a>> {
        let mut all: Vec<Projection> = Vec::with_capacity(3);
        all.extend(self.attn_q.iter().map(|q| (Module::AttnQ, q, queries)));
        all.extend(self.attn_k.iter().map(|k| (Module::AttnK, k, keys)));
        all.extend(self.attn_v.iter().map(|v| (Module::AttnV, v, values)));
        all
    }

    /// The output projection of attention or of what stands in its place, with its result or the gradient of that.
    pub(super) fn last<'a>(&'a self, y: &'a Act) -> [Projection<'a>; 1] {
        let (module, matrix) = self.last_matrix();
        [(module, matrix, y)]
    }

    /// The output projection.
    pub(super) fn last_matrix(&self) -> (Module, &Weight) {
        match (&self.delta, &self.short_conv) {
            (Some(delta), _) => (Module::SsmOut, &delta.out),
            (_, Some(conv)) => (Module::ShortconvOutProj, &conv.out_proj),
            _ => (Module::AttnOutput, self.attn_output.as_ref().expect("the layer has attention")),
        }
    }
}

impl Dense {
    fn gate_up<'a>(&'a self, a: &'a LayerActs) -> [Projection<'a>; 2] {
        let [gate, up, _] = self.modules;
        [(gate, &self.gate, &a[Saved::FfnGate]), (up, &self.up, &a[Saved::FfnUp])]
    }

    fn output<'a>(&'a self, a: &'a LayerActs) -> [Projection<'a>; 1] {
        let [_, _, down] = self.modules;
        [(down, &self.down, &a[Saved::Down])]
    }
}

impl PerLayerBranch {
    fn inp_gate<'a>(&'a self, a: &'a LayerActs) -> [Projection<'a>; 1] {
        [(Module::InpGate, &self.inp_gate, &a[Saved::InpGate])]
    }

    fn proj<'a>(&'a self, a: &'a LayerActs) -> [Projection<'a>; 1] {
        [(Module::Proj, &self.proj, &a[Saved::Proj])]
    }
}
