//! Backward: `forward.rs` from the last line to the first.

use super::super::backward::dattn_k;
use super::super::batch::{Batch, Tokens};
use super::super::delta::remember_backward;
use super::super::forward::mixed;
use super::super::short_conv::convolve_backward;
use super::super::{DeltaLayer, Model, ShortConvLayer};
use super::Part;
use crate::base::Module;
use crate::memory::{Chunk, Saved, Temp};
use crate::ops::linear::Projection;
use crate::ops::lora::Input;
use crate::ops::pass::Pass;
use crate::ops::{attention, columns, heads, linear, output_gate, rms_norm};

impl Model<'_> {
    /// From the gradient of the output projection's result to that of the layer's input in `dhidden`.
    pub(in crate::model) fn parts_backward(&self, p: &mut Pass, batch: &Batch, layer: usize) {
        let w = &self.layers[layer];
        let parts = self.parts_of(batch, layer);
        let a = batch.layer(layer, batch.all());
        let s = batch.acts.backward_scratch(layer, batch.all());
        if !batch.acts.shares_keys(layer) {
            batch.acts.clear_dkeys_values(p.rec.now(), layer, p.tokens);
        }
        for chunk in batch.acts.chunks(batch.inputs.tokens) {
            p.over(chunk.range());
            self.output_backward(p, batch, layer, &parts, chunk);
        }
        p.over(batch.all().range());
        for part in &parts {
            match (&w.delta, &w.short_conv) {
                (Some(delta), _) => self.delta_part_backward(p, batch, part, delta),
                (_, Some(conv)) => self.short_conv_part_backward(p, batch, part, conv),
                _ => self.attention_part_backward(p, batch, part),
            }
        }
        if self.config().layers[layer].has_attention() {
            self.keys_backward(p, batch, layer, &a, &s);
        }
        for chunk in batch.acts.chunks(batch.inputs.tokens) {
            p.over(chunk.range());
            self.inputs_backward(p, batch, layer, &parts, chunk);
        }
        p.over(batch.all().range());
        if layer > batch.adapter.lowest_layer() {
            let (norm, scale) = (&w.attn_norm, self.layers[layer - 1].output_scale);
            rms_norm::backward_add(p, &s.dhidden, &s[Temp::DNormed], &a[Saved::Input], norm, scale);
        }
    }

    /// From the gradient of the output projection's result to that of its input in each part, of the tokens of `chunk`.
    fn output_backward(&self, p: &mut Pass, batch: &Batch, layer: usize, parts: &[Part], chunk: Chunk) {
        let w = &self.layers[layer];
        let a = batch.layer(layer, chunk);
        let s = batch.acts.backward_scratch(layer, batch.all());
        let staged = &s[Temp::StagedOutput];
        for part in parts {
            part.put_output(p, batch, mixed(&self.config().layers[layer]), staged, chunk);
        }
        let doutput = &s.doutput.rows_from(chunk.first);
        let gradients = w.last(doutput);
        let dstaged = &s[Temp::StagedInput].reshaped(staged.rows().stride);
        let lora = batch.lora(layer, Input::Attention);
        linear::backward(p, Some((dstaged, false)), &gradients, staged, lora, &a[Saved::ZOutput]);
        for part in parts {
            let own = batch.acts.backward_scratch_of(layer, part.part, batch.all());
            let to = own[Temp::DGatedAttention].rows().below(chunk.first);
            columns::take(p.rec.now(), &to, dstaged.rows(), &part.spans.output, chunk.tokens);
        }
    }

    /// From the gradient of the input of the output projection to that of the raw queries, with gates where there are any, of a part of
    /// the heads; gradients of keys and values are added to what is there.
    fn attention_part_backward(&self, p: &mut Pass, batch: &Batch, part: &Part) {
        let layer = part.layer;
        let w = &self.layers[layer];
        let l = &self.config().layers[layer];
        let a = batch.layer_part(layer, part.part, batch.all());
        let s = batch.acts.backward_scratch_of(layer, part.part, batch.all());
        let shape = self.attention_of(p, batch, part, &s);
        let (dgated, dinput, out) = (&s[Temp::DGatedAttention], &s[Temp::DMixerInput], &a[Saved::Attention]);
        let (dout, dattn_q) = if l.output_gate { (&s.dattention, &s.dattention) } else { (dgated, dinput) };
        if l.output_gate {
            output_gate::backward(p, [dout, dinput], dgated, out, &a[Saved::MixerInput], shape.heads);
        }
        let [k, v] = &self.keys_of(p, batch, part, &s);
        let (dk, dv) = batch.acts.dkeys_values(l.kv_donor.unwrap_or(layer));
        let own = [&s[Temp::PartDK], &s[Temp::PartDV]];
        for (own, whole) in own.into_iter().zip([dk, dv]) {
            columns::take(p.rec.now(), own.rows(), whole.rows(), &part.spans.keys, p.tokens);
        }
        let qkv = [&a[Saved::Q], k, v];
        attention::backward(p, &shape, [&s.dq, own[0], own[1]], dout, qkv, out, &a[Saved::Lse]);
        for (own, whole) in own.into_iter().zip([dk, dv]) {
            columns::put(p.rec.now(), whole.rows(), own.rows(), &part.spans.keys, p.tokens);
        }
        let [turn, _] = w.turns(batch.inputs);
        heads::backward(p, dattn_q, &s.dq, &a[Saved::AttnQ], &w.attn_q_norm, turn, shape.heads);
        if l.output_gate {
            output_gate::join(p, dinput, dattn_q, shape.heads);
        }
    }

    /// From the gradient of the input of the output projection to those of the results of the first products, of a part of the heads.
    fn delta_part_backward(&self, p: &mut Pass, batch: &Batch, part: &Part, w: &DeltaLayer) {
        let a = batch.layer_part(part.layer, part.part, batch.all());
        let s = batch.acts.backward_scratch_of(part.layer, part.part, batch.all());
        let frozen = self.frozen_of(p, part, w, &s);
        remember_backward(p, w, &a, &s, &self.delta_of(batch, part, w, &frozen));
    }

    /// From the gradient of the input of the output projection to that of the result of the first product, of a part of the channels.
    fn short_conv_part_backward(&self, p: &mut Pass, batch: &Batch, part: &Part, w: &ShortConvLayer) {
        let a = batch.layer_part(part.layer, part.part, batch.all());
        let s = batch.acts.backward_scratch_of(part.layer, part.part, batch.all());
        let taps = self.taps_of(p, part, w, &s);
        convolve_backward(p, &a, &s, &self.convolution_of(batch, part, &taps), batch.inputs);
    }

    /// From the gradients of the results of the first products to that of the layer's normed input, of the tokens of `chunk`.
    fn inputs_backward(&self, p: &mut Pass, batch: &Batch, layer: usize, parts: &[Part], chunk: Chunk) {
        let w = &self.layers[layer];
        let s = batch.acts.backward_scratch(layer, batch.all());
        for part in parts {
            let own = batch.acts.backward_scratch_of(layer, part.part, batch.all());
            for (staged, _) in self.inputs_of_parts(layer) {
                let from = own[gradient_of(staged)].rows().below(chunk.first);
                columns::put(p.rec.now(), s[staged].rows(), &from, part.spans(staged), chunk.tokens);
            }
        }
        match (&w.delta, &w.short_conv) {
            (_, Some(conv)) => {
                let gradients = [(Module::ShortconvInProj, &conv.in_proj, &s[Temp::StagedInput])];
                self.normed_backward(p, batch, layer, &gradients, chunk);
            }
            (Some(delta), _) => {
                // In the order of a delta net in one part.
                let gradients: [Projection; 4] = [
                    (Module::SsmAlpha, &delta.alpha, &s[Temp::StagedAlpha]),
                    (Module::SsmBeta, &delta.beta, &s[Temp::StagedBeta]),
                    (Module::AttnGate, &delta.gate, &s[Temp::StagedGate]),
                    (Module::AttnQkv, &delta.qkv, &s[Temp::StagedInput]),
                ];
                self.normed_backward(p, batch, layer, &gradients, chunk);
            }
            _ => {
                let l = &self.config().layers[layer];
                let [dk, dv] = [dattn_k(l), Temp::DAttnV].map(|name| s[name].rows_from(chunk.first));
                let gradients = w.qkv([&s[Temp::StagedInput], &dk, &dv]);
                self.normed_backward(p, batch, layer, &gradients, chunk);
            }
        }
    }

    /// The gradient of the layer's normed input, unless nothing below learns, and those of the adapters of the matrices that read it.
    fn normed_backward(&self, p: &mut Pass, batch: &Batch, layer: usize, of: &[Projection], chunk: Chunk) {
        let a = batch.layer(layer, chunk);
        let s = batch.acts.backward_scratch(layer, batch.all());
        let dnormed = s[Temp::DNormed].rows_from(chunk.first);
        let dx = (layer > batch.adapter.lowest_layer()).then_some((&dnormed, false));
        let lora = batch.lora(layer, Input::AttnNormed);
        linear::backward(p, dx, of, &a[Saved::AttnNormed], lora, &a[Saved::ZAttn]);
    }
}

/// The gradient of a part of what products leave in `staged`.
fn gradient_of(staged: Temp) -> Temp {
    match staged {
        Temp::StagedGate => Temp::DDeltaGate,
        Temp::StagedAlpha => Temp::DAlpha,
        Temp::StagedBeta => Temp::DBeta,
        _ => Temp::DMixerInput,
    }
}
