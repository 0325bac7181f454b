//! Forward, straight through; `backward.rs` is the mirror of this file.

use super::activations::{Activations, LayerActivations};
use super::products::Products;
use super::trainable::{Input, Trainable};
use super::{Inputs, Model};
use crate::gpu::Recorder;
use crate::lora::Module;
use crate::ops::attention::Attention;
use crate::ops::dropout::Mask;
use crate::ops::{Rows, coop_geglu, embedding, geglu, rms_norm, rope, scale};

/// The parts of a pass over one micro-batch.
pub(super) struct Pass<'a> {
    pub inputs: &'a Inputs,
    pub adapter: &'a Trainable,
    pub dropout: Option<Mask>,
}

impl<'b> Model<'b> {
    /// Runs `inputs` through all layers; the result is the last stream, the rest is kept for [`Model::backward`].
    pub fn forward<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        inputs: &Inputs,
        adapter: &Trainable,
        acts: &Activations,
        dropout: Option<Mask>,
    ) {
        let pass = Pass { inputs, adapter, dropout };
        let d = self.config().width;
        let root_d = (d as f64).sqrt() as f32;
        embedding::forward(rec, acts.hidden(0), &inputs.ids, 0, &self.token_embd, 0, root_d, inputs.tokens);
        for layer in 0..self.layers.len() {
            self.layer_forward(rec, &pass, acts, layer, acts.hidden(layer + 1));
        }
    }

    /// One layer from `acts.layers[layer].input` to `output`.
    pub(super) fn layer_forward<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        pass: &Pass,
        acts: &Activations,
        layer: usize,
        output: &Rows,
    ) {
        let (w, l) = (&self.layers[layer], &self.config().layers[layer]);
        let (a, saved, t) = (&acts.layers[layer], &acts.layers[layer].inner, pass.inputs.tokens);
        let products = pass.products(acts);
        let group = |input| pass.adapter.group(layer, input);
        let positions = &pass.inputs.positions;

        rms_norm::forward(rec, &saved.attn_normed, &a.input, &w.attn_norm, None, 1.0, t);
        let mut outputs = vec![(Module::AttnQ, &w.attn_q, &saved.attn_q)];
        outputs.extend(w.attn_k.iter().map(|k| (Module::AttnK, k, &saved.attn_k)));
        outputs.extend(w.attn_v.iter().map(|v| (Module::AttnV, v, &saved.attn_v)));
        products.forward(rec, group(Input::AttnNormed), &saved.z_attn, &saved.attn_normed, &outputs);

        rms_norm::forward(rec, &saved.q, &saved.attn_q, &w.attn_q_norm, None, 1.0, t * l.heads);
        rope::forward(rec, &saved.q, positions, &w.rope, l.heads, t);
        if let Some(k_norm) = &w.attn_k_norm {
            rms_norm::forward(rec, &a.k, &saved.attn_k, k_norm, None, 1.0, t * l.kv_heads);
            rope::forward(rec, &a.k, positions, &w.rope, l.kv_heads, t);
            rms_norm::forward(rec, &a.v, a.raw_values(l.k_eq_v), &w.attn_v_norm, None, 1.0, t * l.kv_heads);
        }
        let donor = &acts.layers[l.kv_donor.unwrap_or(layer)];
        let attention = self.attention(layer, pass.inputs);
        match acts.attention(l.head_size) {
            Some(coop) => {
                coop.forward(rec, &attention, &saved.attention, &saved.lse, [&saved.q, &donor.k, &donor.v]);
            }
            None => attention.forward(rec, &saved.attention, &saved.lse, &saved.q, &donor.k, &donor.v),
        }

        let outputs = [(Module::AttnOutput, &w.attn_output, &saved.attn_output)];
        products.forward(rec, group(Input::Attention), &saved.z_output, &saved.attention, &outputs);
        let stream = Some(&a.input);
        rms_norm::forward(
            rec,
            &saved.after_attention,
            &saved.attn_output,
            &w.post_attention_norm,
            stream,
            1.0,
            t,
        );

        rms_norm::forward(rec, &saved.ffn_normed, &saved.after_attention, &w.ffn_norm, None, 1.0, t);
        let outputs =
            [(Module::FfnGate, &w.ffn_gate, &saved.ffn_gate), (Module::FfnUp, &w.ffn_up, &saved.ffn_up)];
        products.forward(rec, group(Input::FfnNormed), &saved.z_ffn, &saved.ffn_normed, &outputs);
        match &saved.geglu.packed {
            Some(packed) => coop_geglu::forward(rec, packed, &saved.ffn_gate, &saved.ffn_up, t),
            None => geglu::forward(rec, &saved.geglu, &saved.ffn_gate, &saved.ffn_up, t),
        }
        let outputs = [(Module::FfnDown, &w.ffn_down, &saved.ffn_down)];
        products.forward(rec, group(Input::Geglu), &saved.z_down, &saved.geglu, &outputs);

        let mut ffn = &saved.ffn_down;
        if let (Some(w), Some(acts), Some(scratch)) = (&w.experts, &saved.experts, &acts.scratch.experts) {
            let in_f32 = products.in_f32();
            w.forward(rec, &saved.after_attention, acts, scratch, t, |rec, scores, x, router| {
                let outputs = [(Module::FfnGateInp, router, scores)];
                in_f32.forward(rec, group(Input::RouterNormed), &acts.z, x, &outputs);
            });
            rms_norm::forward(rec, &scratch.normed, ffn, &w.post_ffw_norm_1, None, 1.0, t);
            let beside = Some(&scratch.normed);
            rms_norm::forward(rec, &acts.sum, &acts.output, &w.post_ffw_norm_2, beside, 1.0, t);
            ffn = &acts.sum;
        }
        let stream = Some(&saved.after_attention);
        let Some(branch) = &w.per_layer else {
            rms_norm::forward(rec, output, ffn, &w.post_ffw_norm, stream, w.output_scale, t);
            return;
        };
        rms_norm::forward(rec, &saved.after_ffn, ffn, &w.post_ffw_norm, stream, 1.0, t);
        self.per_layer_input(rec, pass, acts, layer);
        let outputs = [(Module::InpGate, &branch.inp_gate, &saved.inp_gate)];
        products.forward(rec, group(Input::AfterFfn), &saved.z_gate, &saved.after_ffn, &outputs);
        geglu::forward(rec, &saved.gated_input, &saved.inp_gate, &saved.per_layer_input, t);
        let outputs = [(Module::Proj, &branch.proj, &saved.proj)];
        products.forward(rec, group(Input::PerLayer), &saved.z_proj, &saved.gated_input, &outputs);
        let stream = Some(&saved.after_ffn);
        rms_norm::forward(rec, output, &saved.proj, &branch.post_norm, stream, w.output_scale, t);
    }

    /// `(√P·table[token] + norm(D^-½·model_proj·embedding))/√2` of one layer; `gated_input` is scratch here.
    fn per_layer_input<'a>(&'a self, rec: &mut Recorder<'a>, pass: &Pass, acts: &Activations, layer: usize) {
        let (Some(global), Some(rows)) = (&self.per_layer, &pass.inputs.per_layer) else { return };
        let (saved, t) = (&acts.layers[layer].inner, pass.inputs.tokens);
        let (d, p) = (self.config().width as f64, self.config().per_layer_width);
        let root_d = d.sqrt().recip() as f32;
        let projection = &global.model_proj[layer];
        pass.products(acts).frozen(rec, &saved.inp_gate, acts.hidden(0), projection, root_d);
        rms_norm::forward(rec, &saved.gated_input, &saved.inp_gate, &global.proj_norm, None, 1.0, t);
        let root_p = (p as f64).sqrt() as f32;
        embedding::forward(rec, &saved.per_layer_input, &rows.ids, 0, &rows.table, layer * p, root_p, t);
        scale::add(rec, &saved.per_layer_input, &saved.gated_input, std::f32::consts::FRAC_1_SQRT_2, t);
    }

    pub(super) fn attention<'a>(&self, layer: usize, inputs: &'a Inputs) -> Attention<'a> {
        let l = &self.config().layers[layer];
        Attention {
            heads: l.heads,
            kv_heads: l.kv_heads,
            head_size: l.head_size,
            window: l.window,
            bounds: &inputs.bounds,
            rows: inputs.tokens,
        }
    }
}

impl LayerActivations {
    /// What the values' norm reads: the raw keys where the layer has no matrix for values.
    pub(super) fn raw_values(&self, k_eq_v: bool) -> &Rows {
        if k_eq_v { &self.inner.attn_k } else { &self.inner.attn_v }
    }
}

impl<'a> Pass<'a> {
    pub(super) fn products(&self, acts: &'a Activations) -> Products<'a> {
        Products {
            adapter: self.adapter,
            dropout: self.dropout,
            masked: &acts.scratch.masked,
            u: &acts.scratch.u,
            packs: acts.packs.as_ref(),
            rows: self.inputs.tokens,
        }
    }
}
