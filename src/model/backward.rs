//! Backward: `forward.rs` from the last line to the first. Gradients of the adapter are added to what is there.
//!
//! The gradient of the stream is passed from layer to layer as that of the layer's output before its scale.

use super::batch::Batch;
use super::forward::raw_values;
use super::{Layer, Model, PerLayerBranch};
use crate::base::Module;
use crate::gpu::{GpuError, Recorder};
use crate::memory::{Activations, Chunk, LayerActs, Saved, ScratchActs, Temp};
use crate::model::{Inputs, Trainable};
use crate::ops::act::Act;
use crate::ops::dropout::Mask;
use crate::ops::linear::Projection;
use crate::ops::lora::Input;
use crate::ops::pass::Pass;
use crate::ops::{attention, gated, heads, linear, rms_norm, scale};

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
        for layer in (adapter.lowest_layer()..self.layers.len()).rev() {
            let recomputes = acts.recomputes(layer);
            match recomputes {
                true => self.attention_forward(rec, &batch, layer),
                false => drop(batch.input(layer, 0).f32(rec, inputs.tokens)),
            }
            self.fetch(rec, layer).await?;
            for chunk in acts.chunks(inputs.tokens) {
                if recomputes {
                    self.feed_forward(rec, &batch, layer, chunk);
                }
                self.feed_forward_backward(rec, &batch, layer, chunk);
            }
            self.attention_backward(rec, &batch, layer);
        }
        Ok(())
    }

    /// From the gradient of the layer's output in `acts.dhidden` to that of `after_attention`, for the tokens of `chunk`.
    fn feed_forward_backward(&self, rec: &mut Recorder, batch: &Batch, layer: usize, chunk: Chunk) {
        let w = &self.layers[layer];
        let a = batch.layer(layer, chunk);
        let s = batch.acts.backward_scratch(layer, chunk);
        let after_attention = &a[Saved::AfterAttention];
        let dhidden = &batch.acts.dhidden.rows_from(chunk.first);
        let p = &mut batch.pass(rec, chunk);

        if let Some(branch) = &w.per_layer {
            self.per_layer_branch_backward(p, batch, layer, branch, &a, &s, dhidden);
        }
        let mut ddown = &s.doutput;
        if let (Some(experts), Some((acts, scratch))) = (&w.experts, batch.acts.experts(layer, chunk)) {
            let dstream = &s[Temp::DStream];
            rms_norm::backward(p, dstream, dhidden, &acts.sum, &w.post_ffw_norm);
            rms_norm::backward(p, &scratch.normed, dstream, &acts.output, &experts.post_ffw_norm_2);
            experts.backward(p, batch, layer, dhidden, after_attention, acts, scratch);
            ddown = &s.doutput_beside_experts;
            rms_norm::backward(p, ddown, dstream, &a[Saved::Down], &experts.post_ffw_norm_1);
        } else {
            rms_norm::backward(p, ddown, dhidden, &a[Saved::Down], &w.post_ffw_norm);
        }
        let dgated = &s[Temp::DGated];
        let (dgate, dup) = (&s[Temp::DGate], &s[Temp::DUp]);
        let gradients = [(Module::FfnDown, &w.ffn_down, ddown)];
        let lora = batch.lora(layer, Input::Gated);
        linear::backward(p, Some((dgated, false)), &gradients, &a[Saved::Gated], lora, &a[Saved::ZDown]);
        let activation = self.config().layers[layer].activation;
        gated::backward(p, dgate, Some(dup), dgated, &a[Saved::FfnGate], &a[Saved::FfnUp], activation);
        let gradients = [(Module::FfnGate, &w.ffn_gate, dgate), (Module::FfnUp, &w.ffn_up, dup)];
        let lora = batch.lora(layer, Input::FfnNormed);
        let dnormed = &s[Temp::DNormed];
        linear::backward(p, Some((dnormed, false)), &gradients, &a[Saved::FfnNormed], lora, &a[Saved::ZFfn]);
        rms_norm::backward_add(p, dhidden, dnormed, after_attention, &w.ffn_norm, 1.0);
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
        dhidden: &Act,
    ) {
        let dproj = &s.doutput;
        let dgated_input = &s[Temp::DGatedInput];
        let dinp_gate = &s[Temp::DInpGate];
        rms_norm::backward(p, dproj, dhidden, &a[Saved::Proj], &branch.post_norm);
        let gradients = [(Module::Proj, &branch.proj, dproj)];
        let lora = batch.lora(layer, Input::PerLayer);
        let x = &a[Saved::GatedInput];
        linear::backward(p, Some((dgated_input, false)), &gradients, x, lora, &a[Saved::ZProj]);
        let (gate, input) = (&a[Saved::InpGate], &a[Saved::PerLayerInput]);
        let activation = self.config().per_layer_activation;
        gated::backward(p, dinp_gate, None, dgated_input, gate, input, activation);
        let gradients = [(Module::InpGate, &branch.inp_gate, dinp_gate)];
        let lora = batch.lora(layer, Input::AfterFfn);
        linear::backward(p, Some((dhidden, true)), &gradients, &a[Saved::AfterFfn], lora, &a[Saved::ZGate]);
    }

    /// From the gradient of `after_attention` in `acts.dhidden` to that of the layer's input, before the scale of the layer
    /// below.
    fn attention_backward(&self, rec: &mut Recorder, batch: &Batch, layer: usize) {
        let w = &self.layers[layer];
        let l = &self.config().layers[layer];
        let acts = batch.acts;
        let a = batch.layer(layer, batch.all());
        let s = acts.backward_scratch(layer, batch.all());
        let dhidden = &acts.dhidden;
        let donor = l.kv_donor.unwrap_or(layer);
        let [k, v] = &batch.keys_values(donor);
        let (dk, dv) = acts.dkeys_values(donor);
        if !acts.shares_keys(layer) {
            acts.clear_dkeys_values(rec, layer, batch.inputs.tokens);
        }
        let p = &mut batch.pass(rec, batch.all());
        let rotary = Some((&batch.inputs.positions, &w.rope));

        rms_norm::backward(p, &s.doutput, dhidden, &a[Saved::AttnOutput], &w.post_attention_norm);
        let gradients = [(Module::AttnOutput, &w.attn_output, &s.doutput)];
        let lora = batch.lora(layer, Input::Attention);
        let out = &a[Saved::Attention];
        linear::backward(p, Some((&s.dattention, false)), &gradients, out, lora, &a[Saved::ZOutput]);
        let shape = self.attention(layer, batch.inputs);
        let qkv = [&a[Saved::Q], k, v];
        attention::backward(p, &shape, [&s.dq, dk, dv], &s.dattention, qkv, out, &a[Saved::Lse]);
        heads::backward(p, &s.dattn_q, &s.dq, &a[Saved::AttnQ], &w.attn_q_norm, rotary, l.heads);
        if let Some(k_norm) = &w.attn_k_norm {
            // Every layer that shares these keys and values lies above and has added its part.
            let (dattn_k, dattn_v) = (&s[Temp::DAttnK], &s[Temp::DAttnV]);
            heads::backward(p, dattn_k, dk, &a[Saved::AttnK], k_norm, rotary, l.kv_heads);
            let values = raw_values(&a, l);
            match l.k_eq_v {
                true => heads::backward_add(p, dattn_k, dv, values, &w.attn_v_norm, l.kv_heads),
                false => heads::backward(p, dattn_v, dv, values, &w.attn_v_norm, None, l.kv_heads),
            }
        }
        let is_lowest = layer == batch.adapter.lowest_layer();
        let dnormed = &s[Temp::DNormed];
        let dx = (!is_lowest).then_some((dnormed, false));
        let lora = batch.lora(layer, Input::AttnNormed);
        linear::backward(p, dx, &w.qkv_gradients(&s), &a[Saved::AttnNormed], lora, &a[Saved::ZAttn]);
        if !is_lowest {
            let scale_below = self.layers[layer - 1].output_scale;
            let input = a[Saved::Input].staging().into();
            rms_norm::backward_add(p, dhidden, dnormed, &input, &w.attn_norm, scale_below);
        }
    }
}

impl Layer {
    fn qkv_gradients<'a>(&'a self, s: &'a ScratchActs) -> Vec<Projection<'a>> {
        let mut gradients = vec![(Module::AttnQ, &self.attn_q, &s.dattn_q)];
        gradients.extend(self.attn_k.iter().map(|k| (Module::AttnK, k, &s[Temp::DAttnK])));
        gradients.extend(self.attn_v.iter().map(|v| (Module::AttnV, v, &s[Temp::DAttnV])));
        gradients
    }
}
