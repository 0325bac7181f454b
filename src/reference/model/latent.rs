//! Queries, keys and values of attention whose keys and values come from a latent vector.

use std::collections::BTreeMap;

use super::activations::{Activations, LatentActivations};
use super::{Gradients, LatentWeights, Model};
use crate::adapter::lora::Slot;
use crate::base::Module;
use crate::base::config::Latent;
use crate::reference::{add_scaled, latent, rms_norm};

/// Raw queries, keys and values, or their gradients, `[T, H, K]` each.
pub(super) type Heads = [Vec<f64>; 3];

impl Model<'_> {
    /// From the normed input `x` `[T, D]`.
    pub(super) fn latent_forward(
        &self,
        layer: usize,
        w: &LatentWeights,
        x: &[f64],
        z: &mut BTreeMap<Slot, Vec<f64>>,
    ) -> (LatentActivations, Heads) {
        let (l, shape) = (&self.config.layers[layer], w.shape);
        let (tokens, eps) = (x.len() / self.config.width, self.eps());
        let mut a = LatentActivations::default();
        let queries = match &w.q_a {
            Some((q_a, norm)) => {
                a.queries = self.adapted(layer, Module::AttnQA, x, q_a, z);
                a.queries_normed = rms_norm::forward(&a.queries, Some(norm), norm.len(), eps);
                self.adapted(layer, Module::AttnQB, &a.queries_normed, &w.q, z)
            }
            None => self.adapted(layer, Module::AttnQ, x, &w.q, z),
        };
        let both = self.adapted(layer, Module::AttnKvAMqa, x, &w.kv_a, z);
        let turned = columns(&both, shape.both(), 0..shape.turned);
        a.vectors = columns(&both, shape.both(), shape.turned..shape.both());
        a.normed = rms_norm::forward(&a.vectors, Some(&w.kv_norm), shape.rank, eps);
        let keys = self.adapted(layer, Module::AttnKB, &a.normed, &w.k_b, z);
        let values = self.adapted(layer, Module::AttnVB, &a.normed, &w.v_b, z);
        let whole = |own: &[f64], shared: &[f64]| latent::join(own, shared, tokens, l.heads, l.head_size);
        let (keys, values) = (whole(&keys, &turned), whole(&values, &[]));
        (a, [queries, keys, values])
    }

    /// From the gradients of raw queries, keys and values to that of the normed input.
    pub(super) fn latent_backward(
        &self,
        layer: usize,
        w: &LatentWeights,
        [dq, dk, dv]: Heads,
        acts: &Activations,
        grads: &mut Gradients,
    ) -> Vec<f64> {
        let (l, Latent { turned, key_size, value_size, rank, .. }) = (&self.config.layers[layer], w.shape);
        let (layer_acts, eps) = (&acts.layers[layer], self.eps());
        let (x, Some(a)) = (&layer_acts.attn_normed, &layer_acts.latent) else { return Vec::new() };
        let tokens = x.len() / self.config.width;
        let [dkeys, dturned] = latent::backward(&dk, tokens, l.heads, [key_size, turned]);
        let [dvalues, _] = latent::backward(&dv, tokens, l.heads, [value_size, 0]);
        let mut dnormed =
            self.adapted_backward(layer, Module::AttnKB, &dkeys, &a.normed, &w.k_b, acts, grads);
        let of_values =
            self.adapted_backward(layer, Module::AttnVB, &dvalues, &a.normed, &w.v_b, acts, grads);
        add_scaled(&mut dnormed, 1.0, &of_values);
        let dvectors = rms_norm::backward(&dnormed, &a.vectors, Some(&w.kv_norm), rank, eps);
        let rows = dturned.chunks_exact(turned).zip(dvectors.chunks_exact(rank));
        let dboth: Vec<f64> = rows.flat_map(|(turned, vector)| [turned, vector].concat()).collect();
        let mut dx = match &w.q_a {
            Some((q_a, norm)) => {
                let (module, normed) = (Module::AttnQB, &a.queries_normed);
                let dnormed = self.adapted_backward(layer, module, &dq, normed, &w.q, acts, grads);
                let dqueries = rms_norm::backward(&dnormed, &a.queries, Some(norm), norm.len(), eps);
                self.adapted_backward(layer, Module::AttnQA, &dqueries, x, q_a, acts, grads)
            }
            None => self.adapted_backward(layer, Module::AttnQ, &dq, x, &w.q, acts, grads),
        };
        let module = Module::AttnKvAMqa;
        add_scaled(&mut dx, 1.0, &self.adapted_backward(layer, module, &dboth, x, &w.kv_a, acts, grads));
        dx
    }
}

/// Some columns of rows of `width` values.
fn columns(rows: &[f64], width: usize, of: std::ops::Range<usize>) -> Vec<f64> {
    rows.chunks_exact(width).flat_map(|row| &row[of.clone()]).copied().collect()
}

/// The first `own` values of every head of `size` values.
pub(super) fn first_of_heads(heads: &[f64], size: usize, own: usize) -> Vec<f64> {
    columns(heads, size, 0..own)
}
