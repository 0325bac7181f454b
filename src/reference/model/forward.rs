//! Forward pass and loss, written out in order. `backward.rs` mirrors this file.

use std::collections::BTreeMap;

use super::activations::{Activations, ExpertActivations, LayerActivations};
use super::latent::first_of_heads;
use super::{Model, norm_if};
use crate::adapter::lora::Slot;
use crate::base::Module;
use crate::base::config::LayerConfig;
use crate::data::batch::MicroBatch;
use crate::reference::{
    add_scaled, attention, cross_entropy, embedding, experts, gated, linear, lora, rms_norm, rope, router,
};

impl Model<'_> {
    /// Runs a micro-batch. `N` is the number of loss rows.
    pub fn forward(&self, batch: &MicroBatch) -> Activations {
        self.forward_routed(batch, &[])
    }

    /// [`Model::forward`] with given experts for each token, one list `[T, used]` per layer: even a step that is small enough
    /// for finite differences may change the router's choice.
    pub fn forward_routed(&self, batch: &MicroBatch, chosen: &[Vec<usize>]) -> Activations {
        let d = self.config.width;
        let embeddings = embedding::forward(
            &batch.tokens,
            &self.weights.token_embd,
            d,
            f64::from(self.config.embedding_scale),
        );
        let per_layer_inputs = self.per_layer_inputs(batch, &embeddings);
        let mut acts = Activations { hidden: vec![embeddings], per_layer_inputs, ..Default::default() };
        for layer in 0..self.config.layers.len() {
            self.layer_forward(layer, batch, chosen.get(layer).map(Vec::as_slice), &mut acts);
        }
        acts.head = embedding::gather(&acts.hidden[self.config.layers.len()], &batch.loss_rows, d);
        acts.logits = self.logits(&acts.head);
        acts
    }

    /// Logits before the softcap, `[N, V]`, of rows of the final residual stream, `[N, D]`.
    pub fn logits(&self, hidden: &[f64]) -> Vec<f64> {
        let normed =
            rms_norm::forward(hidden, Some(&self.weights.output_norm), self.config.width, self.eps());
        let mut logits = linear::forward(&normed, self.output(), self.config.width);
        logits.iter_mut().for_each(|logit| *logit *= f64::from(self.config.logit_scale));
        logits
    }

    /// `factor` times the summed cross entropy of the loss rows; `factor` is one over their number in the step.
    pub fn loss(&self, batch: &MicroBatch, acts: &Activations, factor: f64) -> f64 {
        let losses = cross_entropy::forward(&acts.logits, &batch.targets, self.softcap(), self.config.vocab);
        factor * losses.iter().sum::<f64>()
    }

    /// `(√P·table[token] + norm(D^-½·model_proj·embedding))/√2`, `L` times `[T, P]`.
    fn per_layer_inputs(&self, batch: &MicroBatch, embeddings: &[f64]) -> Vec<Vec<f64>> {
        let Some(weights) = &self.weights.per_layer else { return Vec::new() };
        let (d, p, layers) = (self.config.width, self.config.per_layer_width, self.config.layers.len());
        let from_token = embedding::forward(&batch.tokens, &weights.token_embd, layers * p, root(p));
        let mut from_stream = linear::forward(embeddings, &weights.model_proj, d);
        for value in &mut from_stream {
            *value *= (d as f64).powf(-0.5);
        }
        let from_stream = rms_norm::forward(&from_stream, Some(&weights.proj_norm), p, self.eps());
        let mut inputs = vec![vec![0.0; batch.len() * p]; layers];
        for t in 0..batch.len() {
            for layer in 0..layers {
                for i in 0..p {
                    let n = (t * layers + layer) * p + i;
                    inputs[layer][t * p + i] = (from_token[n] + from_stream[n]) / 2f64.sqrt();
                }
            }
        }
        inputs
    }

    fn layer_forward(
        &self,
        layer: usize,
        batch: &MicroBatch,
        chosen: Option<&[usize]>,
        acts: &mut Activations,
    ) {
        // Longer than 60 lines: the maths of a layer from start to end.
        let (l, w) = (&self.config.layers[layer], &self.weights.layers[layer]);
        let (d, eps) = (self.config.width, self.eps());
        let h = &acts.hidden[layer];
        let mut a = LayerActivations::default();

        a.attn_normed = norm_if(h, w.attn_norm.as_ref(), d, eps);
        a.attn_output = match (&l.delta, &w.short_conv) {
            (Some(delta), _) => {
                let (inner, output) = self.delta_forward(layer, delta, batch, &a.attn_normed, &mut acts.z);
                a.delta = Some(inner);
                output
            }
            (_, Some(conv)) => {
                let (x, z) = (&a.attn_normed, &mut acts.z);
                let (inner, output) = self.short_conv_forward(layer, conv, batch, x, z);
                a.short_conv = Some(inner);
                output
            }
            _ => self.attention_forward(layer, batch, &mut a, &acts.layers, &mut acts.z),
        };
        let (h, z) = (&acts.hidden[layer], &mut acts.z);
        a.after_attention = norm_if(&a.attn_output, w.post_attention_norm.as_ref(), d, eps);
        add_scaled(&mut a.after_attention, 1.0, h);

        a.ffn_normed = norm_if(&a.after_attention, w.ffn_norm.as_ref(), d, eps);
        if l.ffn_width > 0 {
            let [gate, up, down] = l.dense_modules();
            a.ffn_gate = self.adapted(layer, gate, &a.ffn_normed, &w.ffn_gate, z);
            a.ffn_up = self.adapted(layer, up, &a.ffn_normed, &w.ffn_up, z);
            a.gated = gated::forward(&a.ffn_gate, &a.ffn_up, l.activation);
            a.ffn_down = self.adapted(layer, down, &a.gated, &w.ffn_down, z);
        }
        a.experts = self.experts_forward(layer, &a, chosen, z);
        let ffn = a.experts.as_ref().map_or(&a.ffn_down, |experts| &experts.sum);
        a.after_ffn = norm_if(ffn, w.post_ffw_norm.as_ref(), d, eps);
        add_scaled(&mut a.after_ffn, 1.0, &a.after_attention);

        let mut out = a.after_ffn.clone();
        if let Some(w) = &w.per_layer {
            a.inp_gate = self.adapted(layer, Module::InpGate, &a.after_ffn, &w.inp_gate, z);
            a.gated_input =
                gated::forward(&a.inp_gate, &acts.per_layer_inputs[layer], self.config.per_layer_activation);
            a.proj = self.adapted(layer, Module::Proj, &a.gated_input, &w.proj, z);
            add_scaled(&mut out, 1.0, &rms_norm::forward(&a.proj, Some(&w.post_norm), d, eps));
        }
        for value in &mut out {
            *value *= w.output_scale;
        }
        acts.hidden.push(out);
        acts.layers.push(a);
    }

    /// Attention, from its normed input to the output projection.
    fn attention_forward(
        &self,
        layer: usize,
        batch: &MicroBatch,
        a: &mut LayerActivations,
        before: &[LayerActivations],
        z: &mut BTreeMap<Slot, Vec<f64>>,
    ) -> Vec<f64> {
        let (l, w) = (&self.config.layers[layer], &self.weights.layers[layer]);
        let (size, eps) = (l.head_size, self.eps());
        let [of_queries, of_keys] = l.qk_norm_sizes();
        let [q_turn, k_turn] = self.config.rotary(layer, longest(batch));
        self.raw_heads(layer, a, z);
        if l.output_gate {
            (a.attn_q, a.attn_gate) = halves_of_heads(&a.attn_q, size);
        }
        let turn = |x: &[f64], heads| rope::forward(x, &batch.positions, &q_turn.frequencies, heads);
        a.q = match l.qk_norm_behind {
            true => norm_if(&turn(&a.attn_q, l.heads), w.attn_q_norm.as_ref(), of_queries, eps),
            false => turn(&norm_if(&a.attn_q, w.attn_q_norm.as_ref(), of_queries, eps), l.heads),
        };
        self.scale_queries(layer, batch, &mut a.q);
        l.scale_turned(&mut a.q, k_turn.scale);
        if l.kv_donor.is_none() {
            a.k = match l.qk_norm_behind {
                true => norm_if(&turn(&a.attn_k, l.kv_heads), w.attn_k_norm.as_ref(), of_keys, eps),
                false => turn(&norm_if(&a.attn_k, w.attn_k_norm.as_ref(), of_keys, eps), l.kv_heads),
            };
            l.scale_turned(&mut a.k, k_turn.scale);
            a.v = match l.v_norm {
                true => rms_norm::forward(&a.attn_v, None, size, eps),
                false => a.attn_v.clone(),
            };
        }
        let (k, v) = match l.kv_donor {
            Some(donor) => (&before[donor].k, &before[donor].v),
            None => (&a.k, &a.v),
        };
        let softcap = l.score_softcap.map(f64::from);
        (a.attention, a.lse) =
            attention::forward_capped(&a.q, k, v, &batch.starts, l.window, l.heads, l.kv_heads, softcap);
        if let Some(sinks) = &w.sinks {
            attention::add_sinks(&mut a.attention, &mut a.lse, sinks);
        }
        a.gated_attention = match l.output_gate {
            true => gated::sigmoid_forward(&a.attention, &a.attn_gate),
            false => first_of_heads(&a.attention, size, l.attention_width() / l.heads),
        };
        self.adapted(layer, Module::AttnOutput, &a.gated_attention, &w.attn_output, z)
    }

    /// Queries, keys and values before norms and rotary embedding; the last two where the layer makes its own.
    fn raw_heads(&self, layer: usize, a: &mut LayerActivations, z: &mut BTreeMap<Slot, Vec<f64>>) {
        let (l, w) = (&self.config.layers[layer], &self.weights.layers[layer]);
        if let Some(latent) = &w.latent {
            let (inner, heads) = self.latent_forward(layer, latent, &a.attn_normed, z);
            [a.attn_q, a.attn_k, a.attn_v] = heads;
            a.latent = Some(inner);
            return;
        }
        a.attn_q = self.adapted(layer, Module::AttnQ, &a.attn_normed, &w.attn_q, z);
        if l.kv_donor.is_none() {
            let attn_k = w.attn_k.as_ref().expect("a layer without donor has attn_k");
            a.attn_k = self.adapted(layer, Module::AttnK, &a.attn_normed, attn_k, z);
            a.attn_v = match &w.attn_v {
                Some(attn_v) => self.adapted(layer, Module::AttnV, &a.attn_normed, attn_v, z),
                None => a.attn_k.clone(),
            };
        }
    }

    /// The router and the experts, and the sum of their output and that of the feed-forward block, if there is one.
    fn experts_forward(
        &self,
        layer: usize,
        a: &LayerActivations,
        chosen: Option<&[usize]>,
        z: &mut BTreeMap<Slot, Vec<f64>>,
    ) -> Option<ExpertActivations> {
        let (l, w) = (self.config.layers[layer].experts?, self.weights.layers[layer].experts.as_ref()?);
        let (d, eps) = (self.config.width, self.eps());
        let router_normed = match &w.norms {
            Some(norms) => rms_norm::forward(&a.after_attention, Some(&norms.router()), d, eps),
            None => a.ffn_normed.clone(),
        };
        let scores = self.adapted(layer, Module::FfnGateInp, &router_normed, &w.router, z);
        let routing = router::forward(&scores, &l, &w.selection, chosen);
        let normed = match &w.norms {
            Some(norms) => rms_norm::forward(&a.after_attention, Some(&norms.pre_ffw_norm_2), d, eps),
            None => a.ffn_normed.clone(),
        };
        let (output, inner) = experts::forward(&normed, &routing, &self.expert_matrices(layer, l.width)?, d);
        let shared_score = w.shared_gate.as_ref().map_or_else(Vec::new, |gate| {
            self.adapted(layer, Module::FfnGateInpShexp, &a.ffn_normed, gate, z)
        });
        let sum = match &w.norms {
            _ if l.scores_shared() => {
                let mut sum = gated::rows_forward(&a.ffn_down, &shared_score);
                add_scaled(&mut sum, 1.0, &output);
                sum
            }
            Some(norms) => {
                let mut sum = rms_norm::forward(&a.ffn_down, Some(&norms.post_ffw_norm_1), d, eps);
                let normed = rms_norm::forward(&output, Some(&norms.post_ffw_norm_2), d, eps);
                add_scaled(&mut sum, 1.0, &normed);
                sum
            }
            None if l.shared => {
                let mut sum = a.ffn_down.clone();
                add_scaled(&mut sum, 1.0, &output);
                sum
            }
            None => output.clone(),
        };
        Some(ExpertActivations { router_normed, routing, normed, inner, output, shared_score, sum })
    }

    /// `x·Wᵀ`, plus the adapter's term if the slot has one. Stores its `z`.
    pub(super) fn adapted(
        &self,
        layer: usize,
        module: Module,
        x: &[f64],
        w: &[f64],
        z: &mut BTreeMap<Slot, Vec<f64>>,
    ) -> Vec<f64> {
        let (slot, rows) = self.slot(layer, module);
        let mut y = linear::forward(x, w, slot.in_features);
        if let Some(bias) = self.weights.layers[layer].biases.get(&module) {
            y.chunks_exact_mut(bias.len()).for_each(|row| add_scaled(row, 1.0, bias));
        }
        if let Some(pair) = self.adapter.pairs.get(&slot) {
            let mask = self.adapter.masks.get(&slot).map(Vec::as_slice);
            let (rank, scale) = (self.adapter.rank, self.adapter.scale);
            let b = &pair.b[rows.start * rank..rows.end * rank];
            z.insert(slot, lora::forward(x, &pair.a, b, rank, scale, mask, &mut y));
        }
        y
    }

    /// Multiplies queries, or their gradients, by the factor on the scores and their growth.
    pub(super) fn scale_queries(&self, layer: usize, batch: &MicroBatch, queries: &mut [f64]) {
        let l = &self.config.layers[layer];
        for (row, position) in queries.chunks_exact_mut(l.heads * l.head_size).zip(&batch.positions) {
            let growth = l.query_growth.map_or(1.0, |growth| growth.factor(*position as usize));
            row.iter_mut().for_each(|q| *q *= l.score_scale * growth);
        }
    }

    /// The output matrix, `[V, D]`.
    pub(super) fn output(&self) -> &[f64] {
        self.weights.output.as_ref().unwrap_or(&self.weights.token_embd)
    }
}

impl LayerConfig {
    /// Multiplies the values of heads that rotary embedding turns, or their gradients.
    pub(super) fn scale_turned(&self, heads: &mut [f64], factor: f64) {
        let turned = self.rotated.unwrap_or(self.head_size);
        heads
            .chunks_exact_mut(self.head_size)
            .for_each(|head| head[..turned].iter_mut().for_each(|x| *x *= factor));
    }
}

/// Tokens of the longest sample, on which LongRoPE depends.
pub(super) fn longest(batch: &MicroBatch) -> usize {
    batch.positions.iter().max().map_or(0, |last| *last as usize + 1)
}

/// The first and the second half of every head of `2·size` values.
pub(super) fn halves_of_heads(x: &[f64], size: usize) -> (Vec<f64>, Vec<f64>) {
    let half = |i: usize| x.chunks_exact(size).skip(i).step_by(2).flatten().copied().collect();
    (half(0), half(1))
}

/// The factor on per-layer embeddings of this width, rounded to f32 as in transformers and llama.cpp.
fn root(width: usize) -> f64 {
    f64::from((width as f32).sqrt())
}

#[cfg(test)]
mod tests {
    use crate::base::config::{Config, LayerConfig};
    use crate::data::batch::MicroBatch;
    use crate::reference::model::{Adapter, Model, Weights};

    /// No gradient depends on the factors on the embeddings, because only frozen tensors precede them.
    #[test]
    fn per_layer_inputs_by_hand() {
        let layer = LayerConfig {
            heads: 1,
            kv_heads: 1,
            head_size: 2,
            ffn_width: 3,
            qk_norm: true,
            v_norm: true,
            post_norms: true,
            ..LayerConfig::default()
        };
        let config = Config {
            architecture: "test",
            width: 4,
            embedding_scale: 4f32.sqrt(),
            vocab: 2,
            per_layer_width: 4,
            rms_eps: 18.75,
            context_length: 8,
            layers: vec![layer.clone(), layer],
            ..Config::default()
        };
        let mut weights = Weights::random(&config, 1);
        weights.token_embd = vec![0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 5.0];
        let per_layer = weights.per_layer.as_mut().expect("the width is 4");
        // Token 1: zeros for layer 0, (1, 2, 3, 4) for layer 1.
        per_layer.token_embd = vec![0.0; 16];
        per_layer.token_embd[12..].copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
        // Rows 4 and 5 (elements 0 and 1 of layer 1) read element 0 of the stream.
        per_layer.model_proj = vec![0.0; 32];
        per_layer.model_proj[4 * 4] = 3.0;
        per_layer.model_proj[5 * 4] = 4.0;
        per_layer.proj_norm = vec![1.0, 10.0, 1.0, 1.0];
        let model = Model { config: &config, weights: &weights, adapter: &Adapter::none() };
        let batch = MicroBatch {
            tokens: vec![1],
            positions: vec![0],
            starts: vec![0],
            ends: vec![1],
            ..Default::default()
        };
        let acts = model.forward(&batch);

        // The stream is √4·row = (2, 0, 0, 10); the product (6, 8, 0, 0)/√4 = (3, 4, 0, 0) has a mean square of
        // 6.25, with ε 25, so the norm divides by 5: (0.6, 0.8·10, 0, 0). The table adds √4·(1, 2, 3, 4).
        assert_eq!(acts.hidden[0], [2.0, 0.0, 0.0, 10.0]);
        assert_eq!(acts.per_layer_inputs[0], [0.0; 4]);
        let expected = [2.6, 12.0, 6.0, 8.0].map(|sum: f64| sum / 2f64.sqrt());
        for i in 0..4 {
            let found = acts.per_layer_inputs[1][i];
            assert!(
                (found - expected[i]).abs() < 1e-14,
                "element {i}: expected {}, found {found}",
                expected[i]
            );
        }
    }
}
