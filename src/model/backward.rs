//! Backward: `forward.rs` from the last line to the first. Gradients of the adapter are added to what is there.

use super::activations::{Activations, Chunk};
use super::forward::Pass;
use super::trainable::{Input, Trainable};
use super::{Inputs, Model};
use crate::base::Module;
use crate::gpu::{GpuError, Recorder};
use crate::ops::dropout::Mask;
use crate::ops::gated as geglu;
use crate::ops::gated::coop16 as coop_geglu;
use crate::ops::rms_norm;
use crate::ops::rope;
use crate::ops::scale;

impl<'b> Model<'b> {
    /// From the gradient of the last stream in `acts` (see [`super::Head::backward`]) to the adapter's gradients.
    pub async fn backward<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        inputs: &Inputs,
        adapter: &Trainable,
        acts: &Activations,
        dropout: Option<Mask>,
    ) -> Result<(), GpuError> {
        let pass = Pass { inputs, adapter, dropout };
        for layer in (0..self.layers.len()).filter(|&layer| acts.kept_keys[layer]) {
            acts.clear_dkv(rec, layer, inputs.tokens);
        }
        let scale = self.layers.last().map_or(1.0, |layer| layer.output_scale);
        if scale != 1.0 {
            scale::in_place(rec, &acts.dhidden, scale, inputs.tokens);
        }
        for layer in (adapter.lowest_layer()..self.layers.len()).rev() {
            acts.restore_input(rec, layer, inputs.tokens);
            let again = acts.layers[layer].kept().recomputes();
            if again {
                self.attention_forward(rec, &pass, acts, layer, true);
            }
            self.fetch(rec, layer).await?;
            for chunk in acts.chunks(inputs.tokens) {
                if again {
                    self.feed_forward(rec, &pass, acts, layer, chunk, None);
                }
                self.feed_forward_backward(rec, &pass, acts, layer, chunk);
            }
            self.attention_backward(rec, &pass, acts, layer);
        }
        Ok(())
    }

    /// Turns the gradient of the layer's output before its scale in `acts.dhidden` into that of `after_attention`, for the tokens of
    /// `chunk`.
    fn feed_forward_backward<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        pass: &Pass,
        acts: &Activations,
        layer: usize,
        chunk: Chunk,
    ) {
        let (w, l) = (&self.layers[layer], &self.config().layers[layer]);
        let (saved, s, t) = (&acts.layers[layer].feed_forward(chunk), &acts.scratch, chunk.tokens);
        let after_attention = &acts.layers[layer].attention.after_attention.below(chunk.first);
        let (dhidden, products) = (&acts.dhidden.below(chunk.first), pass.products(acts, chunk));
        let group = |input| pass.adapter.group(layer, input);

        if let Some(branch) = &w.per_layer {
            let dproj = products.norm_backward(rec, &s.dstream, dhidden, &saved.proj, &branch.post_norm);
            let gradients = [(Module::Proj, &branch.proj, &dproj)];
            let dx = Some((&s.dgated, false));
            products.backward(rec, group(Input::PerLayer), &saved.z_proj, &saved.gated_input, &gradients, dx);
            geglu::backward(rec, &s.dinp_gate, None, &s.dgated, &saved.inp_gate, &saved.per_layer_input, t);
            let gradients = [(Module::InpGate, &branch.inp_gate, &s.dinp_gate)];
            let dx = Some((dhidden, true));
            products.backward(rec, group(Input::AfterFfn), &saved.z_gate, &saved.after_ffn, &gradients, dx);
        }

        let [dgeglu, dgate, dup] = [&s.dgeglu, &s.dgate, &s.dup].map(|rows| rows.narrowed(l.ffn_width));
        let down = &acts.down(layer, chunk);
        let ddown = match (&w.experts, acts.experts(layer, chunk), &s.experts) {
            (Some(w_experts), Some(acts), Some(scratch)) => {
                rms_norm::backward(rec, &s.dstream, dhidden, &acts.sum, &w.post_ffw_norm, t, None);
                let (doutput, norm) = (&scratch.normed, &w_experts.post_ffw_norm_2);
                rms_norm::backward(rec, doutput, &s.dstream, &acts.output, norm, t, None);
                let in_f32 = products.in_f32();
                w_experts.backward(
                    rec,
                    dhidden,
                    after_attention,
                    acts,
                    scratch,
                    pass.adapter.experts(layer, pass.dropout, chunk.first),
                    t,
                    |rec, dscores, x, router| {
                        // The product reads x before it writes the gradient in its place.
                        let gradients = [(Module::FfnGateInp, router, dscores)];
                        let dx = Some((x, false));
                        in_f32.backward(rec, group(Input::RouterNormed), &acts.z, x, &gradients, dx);
                    },
                );
                let norm = &w_experts.post_ffw_norm_1;
                products.norm_backward(rec, &s.dnormed, &s.dstream, down, norm)
            }
            _ => products.norm_backward(rec, &s.dstream, dhidden, down, &w.post_ffw_norm),
        };
        let gradients = [(Module::FfnDown, &w.ffn_down, &ddown)];
        let dx = Some((&dgeglu, false));
        products.backward(rec, group(Input::Geglu), &saved.z_down, &saved.geglu, &gradients, dx);
        match (&dgate.packed, &dup.packed) {
            (Some(dgate), Some(dup)) => {
                coop_geglu::backward(rec, [dgate, dup], &dgeglu, &saved.ffn_gate, &saved.ffn_up, t);
            }
            _ => geglu::backward(rec, &dgate, Some(&dup), &dgeglu, &saved.ffn_gate, &saved.ffn_up, t),
        }
        let gradients = [(Module::FfnGate, &w.ffn_gate, &dgate), (Module::FfnUp, &w.ffn_up, &dup)];
        let dx = Some((&s.dnormed, false));
        products.backward(rec, group(Input::FfnNormed), &saved.z_ffn, &saved.ffn_normed, &gradients, dx);
        rms_norm::backward(rec, dhidden, &s.dnormed, after_attention, &w.ffn_norm, t, Some(1.0));
    }

    /// Turns the gradient of `after_attention` in `acts.dhidden` into that of the layer's input, before the scale of the layer below.
    fn attention_backward<'a>(
        &'a self,
        rec: &mut Recorder<'a>,
        pass: &Pass,
        acts: &Activations,
        layer: usize,
    ) {
        let (w, l) = (&self.layers[layer], &self.config().layers[layer]);
        let (a, s, t) = (&acts.layers[layer], &acts.scratch, pass.inputs.tokens);
        let (saved, dhidden) = (&a.attention, &acts.dhidden);
        let products = pass.products(acts, Chunk { first: 0, tokens: t });
        let group = |input| pass.adapter.group(layer, input);
        let positions = &pass.inputs.positions;

        let (queries, keys) = (l.heads * l.head_size, l.kv_heads * l.head_size);
        let [dq, dattn_q] = [&s.dq, &s.dattn_q].map(|rows| rows.narrowed(queries));
        let [dattn_k, dattn_v] = [&s.dattn_k, &s.dattn_v].map(|rows| rows.narrowed(keys));
        let dattention = &dattn_q;
        let norm = &w.post_attention_norm;
        let doutput = products.norm_backward(rec, &s.dstream, dhidden, &saved.attn_output, norm);
        let gradients = [(Module::AttnOutput, &w.attn_output, &doutput)];
        let (out, dx) = (&acts.attended(layer, t), Some((dattention, false)));
        products.backward(rec, group(Input::Attention), &saved.z_output, out, &gradients, dx);

        if !acts.kept_keys[layer] {
            acts.clear_dkv(rec, layer, t);
        }
        let donor = l.kv_donor.unwrap_or(layer);
        let (dk, dv) = acts.dkv[donor].as_ref().expect("a donor makes keys and values");
        let attention = self.attention(layer, pass.inputs);
        let (gradients, lse) = ([&dq, dk, dv], &a.lse);
        match (&acts.coop_attention, self.operands(acts, layer, t)) {
            (Some(scratch), Some(heads)) => {
                scratch.backward(rec, &attention, gradients, &s.dheads, dattention, heads.bind(), out, lse);
            }
            _ => {
                out.packed.iter().for_each(|packed| packed.unpack(rec, out.all(), queries, t));
                let delta = s.delta.narrowed(2 * l.heads);
                let qkv = [&saved.q, &acts.layers[donor].k, &acts.layers[donor].v];
                attention.backward(rec, gradients, [&delta, &s.dheads], dattention, qkv, out, lse);
            }
        }

        let (norm, turn) = (&w.attn_q_norm, (positions, &w.rope));
        let dattn_q = products.heads_backward(rec, &dattn_q, &dq, &saved.attn_q, norm, turn, l.heads);
        let mut gradients = vec![(Module::AttnQ, &w.attn_q, &dattn_q)];
        if let (Some(attn_k), Some(k_norm)) = (&w.attn_k, &w.attn_k_norm) {
            // Every layer that shares these keys and values lies above and has added its part.
            rope::backward(rec, dk, positions, &w.rope, l.kv_heads, t);
            rms_norm::backward(rec, &dattn_k, dk, &saved.attn_k, k_norm, t * l.kv_heads, None);
            let draw_values = if l.k_eq_v { &dattn_k } else { &dattn_v };
            let raw_values = a.raw_values(l.k_eq_v);
            let onto = l.k_eq_v.then_some(1.0);
            rms_norm::backward(rec, draw_values, dv, raw_values, &w.attn_v_norm, t * l.kv_heads, onto);
            gradients.push((Module::AttnK, attn_k, &dattn_k));
            gradients.extend(w.attn_v.iter().map(|v| (Module::AttnV, v, &dattn_v)));
        }
        let lowest = layer == pass.adapter.lowest_layer();
        let dx = (!lowest).then_some((&s.dnormed, false));
        products.backward(rec, group(Input::AttnNormed), &saved.z_attn, &saved.attn_normed, &gradients, dx);
        if !lowest {
            let scale = self.layers[layer - 1].output_scale;
            rms_norm::backward(rec, dhidden, &s.dnormed, &a.input, &w.attn_norm, t, Some(scale));
        }
    }
}
