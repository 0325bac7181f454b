//! Backward: `forward.rs` from the last line to the first. Gradients of the adapter are added to what is there.
//!
//! The gradient of the stream is passed from layer to layer as that of the layer's output before its scale.

use super::batch::{Batch, Tokens};
use super::forward::mixed;
use super::offload::Way;
use super::{Dense, Layer, Model, PerLayerBranch};
use crate::base::Module;
use crate::base::config::LayerConfig;
use crate::gpu::{GpuError, Recorder};
use crate::memory::{Activations, Chunk, LayerActs, Saved, ScratchActs, Temp};
use crate::model::{Inputs, Trainable};
use crate::ops::act::Act;
use crate::ops::dropout::Mask;
use crate::ops::linear::Projection;
use crate::ops::lora::Input;
use crate::ops::pass::Pass;
use crate::ops::{attention, gated, heads, linear, output_gate, rms_norm, scale};

impl Model<'_> {
    /// From the gradient of the last stream in `acts` (see [`super::Head::backward`]) to the adapter's gradients.
    pub async fn backward(
        &self,
        rec: &mut Recorder<'_>,
        inputs: &Inputs,
        adapter: &Trainable,
        acts: &Activations,
        dropout: Option<Mask>,
    ) -> Result<(), GpuError> {
        let batch = Batch { inputs, adapter, acts, dropout, in_backward: true };
        for layer in (0..self.layers.len()).filter(|&layer| acts.shares_keys(layer)) {
            acts.clear_dkeys_values(rec, layer, inputs.tokens);
        }
        let output_scale = self.layers.last().map_or(1.0, |layer| layer.output_scale);
        if output_scale != 1.0 {
            scale::in_place(rec, acts.dhidden.rows(), output_scale, inputs.tokens);
        }
        let lowest = adapter.lowest_layer();
        self.fetch_first(rec, Way::Backward).await?;
        let p = &mut batch.pass(rec);
        for layer in (lowest..self.layers.len()).rev() {
            let recomputes = acts.recomputes(layer);
            if recomputes {
                self.attention_forward(p, &batch, layer);
            }
            if layer > lowest {
                self.exchange(p, acts, layer, Way::Backward).await?;
            }
            for chunk in acts.chunks(inputs.tokens) {
                if recomputes {
                    self.feed_forward(p, &batch, layer, chunk);
                }
                self.feed_forward_backward(p, &batch, layer, chunk);
            }
            self.attention_backward(p, &batch, layer);
        }
        Ok(())
    }

    /// From the gradient of the layer's output in `dhidden` to that of `after_attention`, for the tokens of `chunk`.
    fn feed_forward_backward(&self, p: &mut Pass, batch: &Batch, layer: usize, chunk: Chunk) {
        let w = &self.layers[layer];
        let a = batch.layer(layer, chunk);
        let s = batch.acts.backward_scratch(layer, chunk);
        p.over(chunk.range());
        if let Some(branch) = &w.per_layer {
            self.per_layer_branch_backward(p, batch, layer, branch, &a, &s);
        }
        let (dhidden, down, after_attention) = (&s.dhidden, &a[Saved::Down], &a[Saved::AfterAttention]);
        let mut ddown = &s.doutput;
        match (&w.experts, batch.acts.experts(layer, chunk)) {
            (Some(experts), Some((acts, scratch))) => {
                let dsum = &s[Temp::DStream];
                experts.sum_backward(p, [dsum, dhidden], &w.post_ffw_norm, down, acts, scratch);
                experts.backward(p, batch, layer, dhidden, after_attention, acts, scratch);
                ddown = &s.doutput_beside_experts;
                experts.down_output_backward(p, [ddown, dsum], down, acts, scratch);
            }
            _ => rms_norm::backward(p, ddown, dhidden, down, &w.post_ffw_norm),
        }
        if let Some(dense) = &w.dense {
            self.dense_backward(p, batch, layer, dense, &a, &s, ddown);
            rms_norm::backward_add(p, dhidden, &s[Temp::DNormed], after_attention, &w.ffn_norm, 1.0);
        }
    }

    /// From the gradient of the dense block's output to that of its normed input.
    fn dense_backward(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        dense: &Dense,
        a: &LayerActs,
        s: &ScratchActs,
        ddown: &Act,
    ) {
        let dgated = &s[Temp::DGated];
        let [gate, up, down] = dense.modules;
        let gradients = [(down, &dense.down, ddown)];
        let lora = batch.lora(layer, Input::Gated);
        linear::backward(p, Some((dgated, false)), &gradients, &a[Saved::Gated], lora, &a[Saved::ZDown]);
        let activation = self.config().layers[layer].activation;
        let (places, gate_up) = ([&s[Temp::DGate], &s[Temp::DUp]], [&a[Saved::FfnGate], &a[Saved::FfnUp]]);
        let [dgate, dup] = gated::backward_in_place(p, places, dgated, gate_up, activation);
        let gradients = [(gate, &dense.gate, &dgate), (up, &dense.up, &dup)];
        let lora = batch.lora(layer, Input::FfnNormed);
        let dnormed = &s[Temp::DNormed].read_by(&self.layers[layer].ffn_norm);
        linear::backward(p, Some((dnormed, false)), &gradients, &a[Saved::FfnNormed], lora, &a[Saved::ZFfn]);
    }

    /// Adds to `dhidden` the part that comes through the per-layer branch.
    fn per_layer_branch_backward(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        branch: &PerLayerBranch,
        a: &LayerActs,
        s: &ScratchActs,
    ) {
        let (dproj, dgated_input, dinp_gate) = (&s.doutput, &s[Temp::DGatedInput], &s[Temp::DInpGate]);
        rms_norm::backward(p, dproj, &s.dhidden, &a[Saved::Proj], &branch.post_norm);
        let gradients = [(Module::Proj, &branch.proj, dproj)];
        let lora = batch.lora(layer, Input::PerLayer);
        let (dx, x, z) = (Some((dgated_input, false)), &a[Saved::GatedInput], &a[Saved::ZProj]);
        linear::backward(p, dx, &gradients, x, lora, z);
        let (gate, input) = (&a[Saved::InpGate], &a[Saved::PerLayerInput]);
        let activation = self.config().per_layer_activation;
        gated::backward(p, dinp_gate, None, dgated_input, gate, input, activation);
        let gradients = [(Module::InpGate, &branch.inp_gate, dinp_gate)];
        let lora = batch.lora(layer, Input::AfterFfn);
        let (dx, x, z) = (Some((&s.dhidden, true)), &a[Saved::AfterFfn], &a[Saved::ZGate]);
        linear::backward(p, dx, &gradients, x, lora, z);
    }

    /// From the gradient of `after_attention` in `dhidden` to that of the layer's input, before the scale of the layer below.
    fn attention_backward(&self, p: &mut Pass, batch: &Batch, layer: usize) {
        let w = &self.layers[layer];
        let l = &self.config().layers[layer];
        let acts = batch.acts;
        let a = batch.layer(layer, batch.all());
        let s = acts.backward_scratch(layer, batch.all());
        p.over(batch.all().range());
        rms_norm::backward(p, &s.doutput, &s.dhidden, &a[Saved::AttnOutput], &w.post_attention_norm);
        if acts.parts(layer) > 1 {
            return self.parts_backward(p, batch, layer);
        }
        if let Some(delta) = &w.delta {
            return self.delta_backward(p, batch, layer, delta, &a, &s);
        }
        if let Some(conv) = &w.short_conv {
            return self.short_conv_backward(p, batch, layer, conv, &a, &s);
        }
        if let Some(latent) = &w.latent {
            return self.latent_backward(p, batch, layer, latent, &a, &s);
        }
        let donor = l.kv_donor.unwrap_or(layer);
        let [k, v] = &batch.keys_values(donor);
        let (dk, dv) = acts.dkeys_values(donor);
        if !acts.shares_keys(layer) {
            acts.clear_dkeys_values(p.rec.now(), layer, p.tokens);
        }
        let [q_turn, _] = w.turns(batch.inputs);

        let gradients = w.last(&s.doutput);
        let lora = batch.lora(layer, Input::Attention);
        let out = &a[Saved::Attention];
        let shape = self.attention(layer, batch.inputs);
        let dattention = &attention::gradient_of(p, &shape, &s.dattention, &a[Saved::Q]);
        let dgated = if l.output_gate { &s[Temp::DGatedAttention] } else { dattention };
        let x = &a[mixed(l)];
        linear::backward(p, Some((dgated, false)), &gradients, x, lora, &a[Saved::ZOutput]);
        let (both, dboth) = (&a[Saved::MixerInput], &s[Temp::DMixerInput]);
        if l.output_gate {
            output_gate::backward(p, [&s.dattention, dboth], dgated, out, both, l.heads);
        }
        let qkv = [&a[Saved::Q], k, v];
        attention::backward(p, &shape, [&s.dq, dk, dv], &s.dattention, qkv, out, &a[Saved::Lse]);
        let dattn_q = if l.output_gate { &s.dattention } else { &s.dattn_q };
        heads::backward(p, dattn_q, &s.dq, &a[Saved::AttnQ], &w.attn_q_norm, q_turn, l.heads);
        if l.output_gate {
            output_gate::join(p, dboth, dattn_q, l.heads);
        }
        self.keys_backward(p, batch, layer, &a, &s);
        self.input_backward(p, batch, layer, &w.qkv_gradients(&s, l), &a, &s);
    }

    /// From the gradients of keys and values to those before their norms, where the layer makes its own.
    pub(super) fn keys_backward(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        a: &LayerActs,
        s: &ScratchActs,
    ) {
        let w = &self.layers[layer];
        let l = &self.config().layers[layer];
        let [_, k_turn] = w.turns(batch.inputs);
        if let Some(k_norm) = &w.attn_k_norm {
            let (dk, dv) = batch.acts.dkeys_values(layer);
            // Every layer that shares these keys and values lies above and has added its part.
            let (dattn_k, dattn_v) = (&s[dattn_k(l)], &s[Temp::DAttnV]);
            let (keys, v_norm) = (&a[Saved::AttnK], &w.attn_v_norm);
            if l.k_eq_v {
                heads::backward(p, dattn_k, dk, keys, k_norm, k_turn, l.kv_heads);
                heads::backward_add(p, dattn_k, dv, keys, v_norm, l.kv_heads);
            } else {
                let (raw, norms) = ([keys, &a[Saved::AttnV]], [k_norm, v_norm]);
                heads::backward_both(p, [dattn_k, dattn_v], [dk, dv], raw, norms, k_turn, l.kv_heads);
            }
        }
    }

    /// From the gradients of the matrices that read the layer's normed input to that of the layer's input in `dhidden`.
    pub(super) fn input_backward(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        gradients: &[Projection],
        a: &LayerActs,
        s: &ScratchActs,
    ) {
        let is_lowest = layer == batch.adapter.lowest_layer();
        let dnormed = &s[Temp::DNormed].read_by(&self.layers[layer].attn_norm);
        let dx = (!is_lowest).then_some((dnormed, false));
        let lora = batch.lora(layer, Input::AttnNormed);
        linear::backward(p, dx, gradients, &a[Saved::AttnNormed], lora, &a[Saved::ZAttn]);
        if !is_lowest {
            let (norm, scale) = (&self.layers[layer].attn_norm, self.layers[layer - 1].output_scale);
            rms_norm::backward_add(p, &s.dhidden, dnormed, &a[Saved::Input], norm, scale);
        }
    }
}

impl Layer {
    fn qkv_gradients<'a>(&'a self, s: &'a ScratchActs, l: &LayerConfig) -> Vec<Projection<'a>> {
        let queries = if l.output_gate { &s[Temp::DMixerInput] } else { &s.dattn_q };
        self.qkv([queries, &s[dattn_k(l)], &s[Temp::DAttnV]])
    }
}

/// The gradient of the raw keys.
pub(super) fn dattn_k(l: &LayerConfig) -> Temp {
    if l.k_eq_v { Temp::DAttnKV } else { Temp::DAttnK }
}
