//! Attention whose keys and values come from a latent vector, forward and backward: the vector is expanded to the keys and values of every
//! head, then all is as in other attention.

use super::batch::{Batch, Tokens};
use super::forward::mixed;
use super::{LatentLayer, Model};
use crate::base::Module;
use crate::base::config::{Latent, LayerConfig};
use crate::memory::{LayerActs, Saved, ScratchActs, Temp};
use crate::ops::act::Act;
use crate::ops::columns::{self, Span};
use crate::ops::latent::{self, Parts};
use crate::ops::linear::{self, Projection, transposed};
use crate::ops::lora::Input;
use crate::ops::pass::Pass;
use crate::ops::{attention, heads, rms_norm, rope};

/// The parts of heads of keys, and of those of values.
pub(super) fn parts(l: &LayerConfig, latent: &Latent) -> [Parts; 2] {
    let keys = Parts { heads: l.heads, size: l.head_size, shared: latent.turned, own: latent.key_size };
    [keys, Parts { shared: 0, own: latent.value_size, ..keys }]
}

/// The latent vector in the columns behind the turned part of keys.
pub(super) fn vector(latent: &Latent) -> Span {
    Span { whole: latent.turned, part: 0, count: latent.rank }
}

impl Model<'_> {
    /// From the results of the first products of layer `layer` to the input of its output projection.
    pub(super) fn latent_forward(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        w: &LatentLayer,
        a: &LayerActs,
    ) {
        let l = &self.config().layers[layer];
        if let Some((_, norm)) = &w.q_a {
            rms_norm::forward(p, &a[Saved::QueryNormed], &a[Saved::QueryLatent], norm);
            let outputs = [(Module::AttnQB, &w.q, &a[Saved::AttnQ])];
            let adapters = batch.adapters(layer, Input::QueryLatent);
            linear::forward(p, &outputs, &a[Saved::QueryNormed], adapters, &a[Saved::ZQuery]);
        }
        self.queries_forward(p, batch, layer, a, l.heads);
        self.expand(p, batch, layer, w, a);
        let shape = self.attention(layer, batch.inputs);
        let qkv = [&a[Saved::Q], &a[Saved::K], &a[Saved::V]];
        attention::forward(p, &shape, &a[Saved::Attention], &a[Saved::Lse], qkv);
        without_zeros(p, l, a);
    }

    /// The keys, turned, and the values of every head.
    fn expand(&self, p: &mut Pass, batch: &Batch, layer: usize, w: &LatentLayer, a: &LayerActs) {
        let (l, lw) = (&self.config().layers[layer], &self.layers[layer]);
        let latent = l.latent.expect("the layer has a latent vector");
        let (vectors, both) = (&a[Saved::Latent], a[Saved::KeyValueLatent].rows());
        columns::take(p.rec.now(), vectors.rows(), both, &[vector(&latent)], p.tokens);
        rms_norm::forward(p, &a[Saved::LatentNormed], vectors, &w.kv_norm);
        let values = if l.has_narrow_values() { &a[Saved::LatentValues] } else { &a[Saved::WholeValues] };
        let [of_keys, of_values] =
            [(Module::AttnKB, &w.k_b, &a[Saved::LatentKeys]), (Module::AttnVB, &w.v_b, values)];
        let (x, z) = (&a[Saved::LatentNormed], &a[Saved::ZLatent]);
        let adapters = || batch.adapters(layer, Input::Latent);
        match latent.apart {
            true => {
                linear::forward(p, &[of_values], x, adapters(), z);
                transposed::forward(p, of_keys, x, adapters(), z);
            }
            false => linear::forward(p, &[of_keys, of_values], x, adapters(), z),
        }
        let [key_parts, value_parts] = parts(l, &latent);
        let whole = [&a[Saved::WholeKeys], &a[Saved::WholeValues]];
        let keys = a[Saved::LatentKeys].rows();
        latent::join(p.rec.now(), &key_parts, whole[0].rows().all(), keys, Some(both.all()), p.tokens);
        if l.has_narrow_values() {
            latent::join(p.rec.now(), &value_parts, whole[1].rows().all(), values.rows(), None, p.tokens);
        }
        let [_, turn] = lw.turns(batch.inputs);
        let norms = [lw.attn_k_norm.as_ref().expect("the layer makes keys"), &lw.attn_v_norm];
        heads::forward_both(p, [&a[Saved::K], &a[Saved::V]], whole, norms, turn, l.heads);
    }

    /// From the gradient of the output projection's result in `s.doutput` to that of the layer's input.
    pub(super) fn latent_backward(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        w: &LatentLayer,
        a: &LayerActs,
        s: &ScratchActs,
    ) {
        let (l, lw) = (&self.config().layers[layer], &self.layers[layer]);
        let latent = l.latent.expect("the layer has a latent vector");
        batch.acts.clear_dkeys_values(p.rec.now(), layer, p.tokens);
        let gradients = lw.last(&s.doutput);
        let shape = self.attention(layer, batch.inputs);
        let dattention = &attention::gradient_of(p, &shape, &s.dattention, &a[Saved::Q]);
        let doutput = if l.has_narrow_values() { &s[Temp::DGatedAttention] } else { dattention };
        let lora = batch.lora(layer, Input::Attention);
        let (dx, x) = (Some((doutput, false)), &a[mixed(l)]);
        linear::backward(p, dx, &gradients, x, lora, &a[Saved::ZOutput]);
        if l.has_narrow_values() {
            let [_, values] = parts(l, &latent);
            let whole = s.dattention.rows().all();
            latent::join(p.rec.now(), &values, whole, doutput.rows(), None, p.tokens);
        }
        let (dk, dv) = batch.acts.dkeys_values(layer);
        let qkv = [&a[Saved::Q], &a[Saved::K], &a[Saved::V]];
        let (out, lse) = (&a[Saved::Attention], &a[Saved::Lse]);
        attention::backward(p, &shape, [&s.dq, dk, dv], &s.dattention, qkv, out, lse);
        self.expand_backward(p, batch, layer, w, a, s);
        let [turn, _] = lw.turns(batch.inputs);
        heads::backward(p, &s.dattn_q, &s.dq, &a[Saved::AttnQ], &lw.attn_q_norm, turn, l.heads);
        if let Some((_, norm)) = &w.q_a {
            let gradients = [(Module::AttnQB, &w.q, &s.dattn_q)];
            let (dnormed, x) = (&s[Temp::DQueryNormed], &a[Saved::QueryNormed]);
            let lora = batch.lora(layer, Input::QueryLatent);
            linear::backward(p, Some((dnormed, false)), &gradients, x, lora, &a[Saved::ZQuery]);
            rms_norm::backward(p, &s[Temp::DQueryLatent], dnormed, &a[Saved::QueryLatent], norm);
        }
        let gradients = w.first([&s[Temp::DQueryLatent], &s.dattn_q], &s[Temp::DKeyValueLatent]);
        self.input_backward(p, batch, layer, &gradients, a, s);
    }

    /// From the gradients of keys and values to that of the latent vector with the turned part of keys.
    fn expand_backward(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        w: &LatentLayer,
        a: &LayerActs,
        s: &ScratchActs,
    ) {
        let (l, lw) = (&self.config().layers[layer], &self.layers[layer]);
        let latent = l.latent.expect("the layer has a latent vector");
        let (dk, dv) = batch.acts.dkeys_values(layer);
        let [key_parts, value_parts] = parts(l, &latent);
        // The norms of keys and values pass them on.
        if let [_, Some((positions, table))] = lw.turns(batch.inputs) {
            rope::backward(p.rec.now(), dk.rows(), positions, table, l.heads, p.tokens);
        }
        let (both, dkeys) = (s[Temp::DKeyValueLatent].rows(), &s[Temp::DLatentKeys]);
        latent::sum(p.rec.now(), &key_parts, both.all(), dk.rows(), p.tokens);
        latent::part(p.rec.now(), &key_parts, dkeys.rows(), dk.rows(), p.tokens);
        let dvalues = if l.has_narrow_values() { &s[Temp::DLatentValues] } else { dv };
        if l.has_narrow_values() {
            latent::part(p.rec.now(), &value_parts, dvalues.rows(), dv.rows(), p.tokens);
        }
        let of_keys = (Module::AttnKB, &w.k_b, dkeys);
        let of_values = (Module::AttnVB, &w.v_b, dvalues);
        let (x, z, dnormed) = (&a[Saved::LatentNormed], &a[Saved::ZLatent], &s[Temp::DLatentNormed]);
        let lora = batch.lora(layer, Input::Latent);
        match latent.apart {
            true => {
                transposed::backward(p, dnormed, of_keys, lora, z);
                linear::backward(p, Some((dnormed, true)), &[of_values], x, lora, z);
            }
            false => linear::backward(p, Some((dnormed, false)), &[of_keys, of_values], x, lora, z),
        }
        // Forward keeps the vectors with the turned part of keys alone.
        let vectors = &a[Saved::Latent];
        let kept = a[Saved::KeyValueLatent].rows();
        columns::take(p.rec.now(), vectors.rows(), kept, &[vector(&latent)], p.tokens);
        rms_norm::backward(p, &s[Temp::DLatent], dnormed, vectors, &w.kv_norm);
        columns::put(p.rec.now(), both, s[Temp::DLatent].rows(), &[vector(&latent)], p.tokens);
    }
}

/// The output of attention without the zeros behind its heads, where heads of values are narrower than those of keys.
pub(super) fn without_zeros(p: &mut Pass, l: &LayerConfig, a: &LayerActs) {
    let Some(latent) = l.latent.filter(|_| l.has_narrow_values()) else { return };
    let ([_, values], output) = (parts(l, &latent), &a[Saved::GatedAttention]);
    let whole = a[Saved::Attention].f32(p.rec.now(), p.tokens);
    latent::part(p.rec.now(), &values, &output.staging(), &whole, p.tokens);
    output.store(p.rec.now(), p.tokens);
}

impl LatentLayer {
    /// The matrices that read the layer's normed input, with what they make or its gradients: the latent vector of queries or the queries,
    /// and that of keys and values with the turned part of keys.
    pub(super) fn first<'a>(
        &'a self,
        [query_latent, queries]: [&'a Act; 2],
        both: &'a Act,
    ) -> [Projection<'a>; 2] {
        let of_queries = match &self.q_a {
            Some((q_a, _)) => (Module::AttnQA, q_a, query_latent),
            None => (Module::AttnQ, &self.q, queries),
        };
        [of_queries, (Module::AttnKvAMqa, &self.kv_a, both)]
    }
}
