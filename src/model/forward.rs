//! Forward, straight through; `backward.rs` is the mirror of this file.

use super::batch::Batch;
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
use crate::ops::rms_norm::Norm;
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
        let tokens = inputs.tokens;
        let embedding_scale = self.config().embedding_scale;
        let input = batch.input(0, 0);
        let embeddings = input.staging();
        embedding::forward(rec, &embeddings, &inputs.ids, 0, &self.token_embd, 0, embedding_scale, tokens);
        input.store(rec, tokens);
        let mut normed = false;
        for layer in 0..self.layers.len() {
            let parts = self.attention_forward(rec, &batch, layer, normed);
            self.fetch(rec, layer).await?;
            for chunk in acts.chunks(tokens) {
                normed = self.feed_forward(rec, &batch, layer, chunk, parts);
            }
        }
        Ok(())
    }

    /// The first half of a layer, from its input, or its `normed` input where that is there, to the output projection of attention. Where one
    /// chunk of tokens follows, the output may be left in parts, whose number is returned: see [`linear::forward_in_parts`].
    pub(super) fn attention_forward(
        &self,
        rec: &mut Recorder,
        batch: &Batch,
        layer: usize,
        normed: bool,
    ) -> u32 {
        let w = &self.layers[layer];
        let l = &self.config().layers[layer];
        let a = batch.layer(layer, batch.all());
        let p = &mut batch.pass(rec, batch.all());
        if !normed {
            let input = a[Saved::Input].f32(p.rec, p.tokens).into();
            rms_norm::forward(p, &a[Saved::AttnNormed], &input, &w.attn_norm);
        }
        if let Some(delta) = &w.delta {
            return self.delta_forward(p, batch, layer, delta, &a);
        }
        let [q_turn, k_turn] = w.turns(batch.inputs);
        let lora = batch.lora(layer, Input::AttnNormed);
        linear::forward(p, &w.qkv(&a, l), &a[Saved::AttnNormed], lora, &a[Saved::ZAttn]);
        if l.output_gate {
            output_gate::split(p, &a[Saved::AttnQ], &a[Saved::MixerInput], l.heads);
        }
        heads::forward(p, &a[Saved::Q], &a[Saved::AttnQ], &w.attn_q_norm, q_turn, l.heads);
        if let Some(k_norm) = &w.attn_k_norm {
            // Raw keys that are the values too come in rows of f32, so nothing is rounded to the same tiles twice.
            let (own, raw) = ([&a[Saved::K], &a[Saved::V]], [&a[Saved::AttnK], raw_values(&a, l)]);
            heads::forward_both(p, own, raw, [k_norm, &w.attn_v_norm], k_turn, l.kv_heads);
        }
        let [k, v] = &batch.keys_values(l.kv_donor.unwrap_or(layer));
        let shape = self.attention(layer, batch.inputs);
        attention::forward(p, &shape, &a[Saved::Attention], &a[Saved::Lse], [&a[Saved::Q], k, v]);
        let output = gated_attention(&a, l);
        if l.output_gate {
            output_gate::forward(p, output, &a[Saved::Attention], &a[Saved::MixerInput], l.heads);
        }
        let lora = batch.lora(layer, Input::Attention);
        let (outputs, z) = (w.attn_output(&a), &a[Saved::ZOutput]);
        batch.output_forward(p, &outputs, output, lora, z)
    }

    /// The second half, for the tokens of `chunk`: from attention's output projection, which may be in `parts`, to the next layer's input.
    /// Returns whether that is normed, too.
    pub(super) fn feed_forward(
        &self,
        rec: &mut Recorder,
        batch: &Batch,
        layer: usize,
        chunk: Chunk,
        parts: u32,
    ) -> bool {
        let w = &self.layers[layer];
        let a = batch.layer(layer, chunk);
        let stream = a[Saved::Input].staging().into();
        let after_attention = &a[Saved::AfterAttention];
        let ffn_normed = &a[Saved::FfnNormed];
        let p = &mut batch.pass(rec, chunk);

        let attn_output = (&a[Saved::AttnOutput], parts);
        let norm = &w.post_attention_norm;
        let parts = match &w.dense {
            Some(dense) => {
                let next = &w.ffn_norm;
                norm_add::forward_then_norm(p, after_attention, ffn_normed, attn_output, norm, &stream, next);
                self.dense_forward(p, batch, layer, dense, &a)
            }
            None => {
                norm_add::forward(p, after_attention, attn_output, norm, &stream, 1.0);
                0
            }
        };
        let mut output = (&a[Saved::Down], parts);
        if let (Some(experts), Some((acts, scratch))) = (&w.experts, batch.acts.experts(layer, chunk)) {
            experts.forward(p, batch, layer, after_attention, acts, scratch);
            output = (experts.with_dense(p, output.0, acts, scratch), 0);
        }
        let Some(branch) = &w.per_layer else {
            return self.next_input(p, batch, layer, output, &w.post_ffw_norm, after_attention);
        };
        norm_add::forward(p, &a[Saved::AfterFfn], output, &w.post_ffw_norm, after_attention, 1.0);
        let parts = self.per_layer_branch(p, batch, layer, branch, &a);
        let proj = (&a[Saved::Proj], parts);
        self.next_input(p, batch, layer, proj, &branch.post_norm, &a[Saved::AfterFfn])
    }

    /// The next layer's input, the scaled sum of the stream and of the norm of `x`; in forward, where one chunk of tokens follows, its norm
    /// as well. Returns whether that is there.
    fn next_input(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        x: (&Act, u32),
        norm: &Norm,
        stream: &Act,
    ) -> bool {
        let (next, scale) = (batch.input(layer + 1, p.first), self.layers[layer].output_scale);
        if let Some(above) = self.layers.get(layer + 1).filter(|_| batch.is_whole() && !batch.in_backward) {
            let normed = &batch.layer(layer + 1, batch.all())[Saved::AttnNormed];
            let norms = [norm, &above.attn_norm];
            if norm_add::forward_kept_then_norm(p, [&next, normed], x, norms, stream, scale) {
                return true;
            }
        }
        norm_add::forward(p, &next, x, norm, stream, scale);
        false
    }

    /// The dense feed-forward block, from its normed input to its output, which may be left in parts: returns their number. None are left
    /// where experts add to it, as nothing packs it on the way then.
    fn dense_forward(&self, p: &mut Pass, batch: &Batch, layer: usize, dense: &Dense, a: &LayerActs) -> u32 {
        let lora = batch.lora(layer, Input::FfnNormed);
        linear::forward(p, &dense.gate_up(a), &a[Saved::FfnNormed], lora, &a[Saved::ZFfn]);
        let activation = self.config().layers[layer].activation;
        gated::forward(p, &a[Saved::Gated], &a[Saved::FfnGate], &a[Saved::FfnUp], activation);
        let lora = batch.lora(layer, Input::Gated);
        linear::forward_in_parts(p, &dense.output(a), &a[Saved::Gated], lora, &a[Saved::ZDown])
    }

    /// The per-layer branch: the stream decides how much of a token's embedding for this layer is added to it. Its output may be left in
    /// parts: returns their number.
    fn per_layer_branch(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        branch: &PerLayerBranch,
        a: &LayerActs,
    ) -> u32 {
        self.per_layer_input(p, batch, layer, a);
        let lora = batch.lora(layer, Input::AfterFfn);
        linear::forward(p, &branch.inp_gate(a), &a[Saved::AfterFfn], lora, &a[Saved::ZGate]);
        let activation = self.config().per_layer_activation;
        gated::forward(p, &a[Saved::GatedInput], &a[Saved::InpGate], &a[Saved::PerLayerInput], activation);
        let lora = batch.lora(layer, Input::PerLayer);
        linear::forward_in_parts(p, &branch.proj(a), &a[Saved::GatedInput], lora, &a[Saved::ZProj])
    }

    /// `(√P·table[token] + norm(D^-½·model_proj·embedding))/√2` of one layer; the gate's buffer is scratch here.
    fn per_layer_input(&self, p: &mut Pass, batch: &Batch, layer: usize, a: &LayerActs) {
        let (Some(global), Some(rows)) = (&self.per_layer, &batch.inputs.per_layer) else { return };
        let projection_scale = (self.config().width as f64).sqrt().recip() as f32;
        let (input, projected) = (&a[Saved::PerLayerInput], &a[Saved::InpGate]);
        if input.is_kept() {
            return;
        }
        let (embeddings, matrix) = (batch.input(0, p.first), &global.model_proj[layer]);
        let parts = linear::frozen_in_parts(p, projected, &embeddings, matrix, projection_scale);
        let table = Table { rows: &rows.table, ids: &rows.ids, first: p.first };
        let (input, projected) = (input.rows(), (projected.rows(), parts));
        per_layer::layer::forward(p.rec, input, projected, &global.proj_norm, table, layer, p.tokens);
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

/// The input of attention's output projection.
pub(super) fn gated_attention<'a>(a: &'a LayerActs, l: &LayerConfig) -> &'a Act {
    if l.output_gate { &a[Saved::GatedAttention] } else { &a[Saved::Attention] }
}

impl Layer {
    /// The rotary embeddings of queries and of keys.
    pub(super) fn turns<'a>(&'a self, inputs: &'a Inputs) -> [Option<Rotation<'a>>; 2] {
        [0, 1].map(|i| self.rope.as_ref().map(|rope| (&inputs.positions, &rope[i])))
    }

    fn qkv<'a>(&'a self, a: &'a LayerActs, l: &LayerConfig) -> Vec<Projection<'a>> {
        let queries = if l.output_gate { &a[Saved::MixerInput] } else { &a[Saved::AttnQ] };
        let mut outputs: Vec<Projection> = Vec::with_capacity(3);
        outputs.extend(self.attn_q.iter().map(|q| (Module::AttnQ, q, queries)));
        outputs.extend(self.attn_k.iter().map(|k| (Module::AttnK, k, &a[Saved::AttnK])));
        outputs.extend(self.attn_v.iter().map(|v| (Module::AttnV, v, &a[Saved::AttnV])));
        outputs
    }

    fn attn_output<'a>(&'a self, a: &'a LayerActs) -> Vec<Projection<'a>> {
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
