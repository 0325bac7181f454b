//! Forward, straight through; `backward.rs` is the mirror of this file.

use super::batch::Batch;
use super::offload::Way;
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
use crate::ops::{attention, embedding, gated, heads, linear, norm_add, output_gate, per_layer, rms_norm};

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
    pub(super) fn attention_forward(&self, p: &mut Pass, batch: &Batch, layer: usize) {
        let w = &self.layers[layer];
        let l = &self.config().layers[layer];
        let a = batch.layer(layer, batch.all());
        p.over(batch.all().range());
        rms_norm::forward(p, &a[Saved::AttnNormed], &a[Saved::Input], &w.attn_norm);
        if batch.acts.parts(layer) > 1 {
            return self.parts_forward(p, batch, layer);
        }
        if let Some(delta) = &w.delta {
            return self.delta_forward(p, batch, layer, delta, &a);
        }
        if let Some(conv) = &w.short_conv {
            return self.short_conv_forward(p, batch, layer, conv, &a);
        }
        if let Some(latent) = &w.latent {
            return self.latent_forward(p, batch, layer, latent, &a);
        }
        let lora = batch.lora(layer, Input::AttnNormed);
        let queries = raw_queries(&a, l);
        linear::forward(p, &w.qkv(&a, queries), &a[Saved::AttnNormed], lora, &a[Saved::ZAttn]);
        self.queries_forward(p, batch, layer, &a, l.heads);
        self.keys_forward(p, batch, layer, &a);
        let [k, v] = &batch.keys_values(l.kv_donor.unwrap_or(layer));
        let shape = self.attention(layer, batch.inputs);
        attend(p, &shape, l, &a, [k, v]);
        let lora = batch.lora(layer, Input::Attention);
        linear::forward(p, &w.attn_output(&a), gated_attention(&a, l), lora, &a[Saved::ZOutput]);
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
    pub(super) fn feed_forward(&self, p: &mut Pass, batch: &Batch, layer: usize, chunk: Chunk) {
        let w = &self.layers[layer];
        let a = batch.layer(layer, chunk);
        p.over(chunk.range());
        let (after_attention, norm) = (&a[Saved::AfterAttention], &w.post_attention_norm);
        norm_add::forward(p, after_attention, &a[Saved::AttnOutput], norm, &a[Saved::Input], 1.0);
        if let Some(dense) = &w.dense {
            rms_norm::forward(p, &a[Saved::FfnNormed], after_attention, &w.ffn_norm);
            self.dense_forward(p, batch, layer, dense, &a);
        }
        let mut output = &a[Saved::Down];
        if let (Some(experts), Some((acts, scratch))) = (&w.experts, batch.acts.experts(layer, chunk)) {
            experts.forward(p, batch, layer, after_attention, acts, scratch);
            output = experts.with_dense(p, output, acts, scratch);
        }
        let (next, scale) = (&batch.input(layer + 1, p.first), w.output_scale);
        let Some(branch) = &w.per_layer else {
            return norm_add::forward(p, next, output, &w.post_ffw_norm, after_attention, scale);
        };
        let after_ffn = &a[Saved::AfterFfn];
        norm_add::forward(p, after_ffn, output, &w.post_ffw_norm, after_attention, 1.0);
        self.per_layer_branch(p, batch, layer, branch, &a);
        norm_add::forward(p, next, &a[Saved::Proj], &branch.post_norm, after_ffn, scale);
    }

    /// The dense feed-forward block, from its normed input to its output.
    fn dense_forward(&self, p: &mut Pass, batch: &Batch, layer: usize, dense: &Dense, a: &LayerActs) {
        let lora = batch.lora(layer, Input::FfnNormed);
        linear::forward(p, &dense.gate_up(a), &a[Saved::FfnNormed], lora, &a[Saved::ZFfn]);
        let activation = self.config().layers[layer].activation;
        gated::forward(p, &a[Saved::Gated], &a[Saved::FfnGate], &a[Saved::FfnUp], activation);
        let lora = batch.lora(layer, Input::Gated);
        linear::forward(p, &dense.output(a), &a[Saved::Gated], lora, &a[Saved::ZDown]);
    }

    /// The per-layer branch: the stream decides how much of a token's embedding for this layer is added to it.
    fn per_layer_branch(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        branch: &PerLayerBranch,
        a: &LayerActs,
    ) {
        self.per_layer_input(p, batch, layer, a);
        let lora = batch.lora(layer, Input::AfterFfn);
        linear::forward(p, &branch.inp_gate(a), &a[Saved::AfterFfn], lora, &a[Saved::ZGate]);
        let activation = self.config().per_layer_activation;
        gated::forward(p, &a[Saved::GatedInput], &a[Saved::InpGate], &a[Saved::PerLayerInput], activation);
        let lora = batch.lora(layer, Input::PerLayer);
        linear::forward(p, &branch.proj(a), &a[Saved::GatedInput], lora, &a[Saved::ZProj]);
    }

    /// `(√P·table[token] + norm(D^-½·model_proj·embedding))/√2` of one layer.
    fn per_layer_input(&self, p: &mut Pass, batch: &Batch, layer: usize, a: &LayerActs) {
        let (Some(global), Some(rows)) = (&self.per_layer, &batch.inputs.per_layer) else { return };
        let (input, projected) = (&a[Saved::PerLayerInput], &a.projected_embeddings());
        if input.is_kept() {
            return;
        }
        let scale = (self.config().width as f64).sqrt().recip() as f32;
        linear::frozen(p, projected, &batch.input(0, p.first), &global.model_proj[layer], scale);
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
pub(super) fn raw_queries<'a>(a: &'a LayerActs, l: &LayerConfig) -> &'a Act {
    if l.output_gate { &a[Saved::MixerInput] } else { &a[Saved::AttnQ] }
}

/// From queries, keys and values to the input of attention's output projection.
pub(super) fn attend(p: &mut Pass, shape: &Attention, l: &LayerConfig, a: &LayerActs, [k, v]: [&Act; 2]) {
    attention::forward(p, shape, &a[Saved::Attention], &a[Saved::Lse], [&a[Saved::Q], k, v]);
    if l.output_gate {
        let output = gated_attention(a, l);
        output_gate::forward(p, output, &a[Saved::Attention], &a[Saved::MixerInput], shape.heads);
    }
}

/// The input of attention's output projection.
pub(super) fn gated_attention<'a>(a: &'a LayerActs, l: &LayerConfig) -> &'a Act {
    if l.output_gate { &a[Saved::GatedAttention] } else { &a[Saved::Attention] }
}

impl Layer {
    /// The rotary embeddings of queries and of keys.
    pub(super) fn turns<'a>(&'a self, inputs: &'a Inputs) -> [Option<Rotation<'a>>; 2] {
        [0, 1].map(|i| self.rope.as_ref().map(|rope| (&inputs.positions, &rope[i])))
    }

    /// The matrices that read the layer's normed input, of which that of the queries writes `queries`.
    pub(super) fn qkv<'a>(&'a self, a: &'a LayerActs, queries: &'a Act) -> Vec<Projection<'a>> {
        let mut outputs: Vec<Projection> = Vec::with_capacity(3);
        outputs.extend(self.attn_q.iter().map(|q| (Module::AttnQ, q, queries)));
        outputs.extend(self.attn_k.iter().map(|k| (Module::AttnK, k, &a[Saved::AttnK])));
        outputs.extend(self.attn_v.iter().map(|v| (Module::AttnV, v, &a[Saved::AttnV])));
        outputs
    }

    /// The output projection of attention.
    pub(super) fn attn_output<'a>(&'a self, a: &'a LayerActs) -> Vec<Projection<'a>> {
        self.attn_output.iter().map(|w| (Module::AttnOutput, w, &a[Saved::AttnOutput])).collect()
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
