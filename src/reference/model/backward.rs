//! Backward pass, written out in the reverse order of `forward.rs`.

use super::forward::longest;
use super::{Activations, Gradients, Model, Pair, norm_if_backward};
use crate::base::Module;
use crate::data::batch::MicroBatch;
use crate::reference::{
    add_scaled, attention, cross_entropy, embedding, experts, gated, latent, linear, lora, rms_norm, rope,
    router,
};

/// Gradients of the keys and values of each layer that computes its own, `[T, G, K]`. The layer's own attention and the layers
/// that share its keys and values add to them until its own backward uses them.
struct KeyValueGradients {
    dk: Vec<Vec<f64>>,
    dv: Vec<Vec<f64>>,
}

impl Model<'_> {
    /// Gradients of [`Model::loss`] with the same arguments.
    pub fn backward(&self, batch: &MicroBatch, acts: &Activations, factor: f64) -> Gradients {
        self.backward_rows(batch, acts, &vec![factor; batch.targets.len()])
    }

    /// Gradients of the sum of the rows' losses, each times its coefficient.
    pub fn backward_rows(&self, batch: &MicroBatch, acts: &Activations, coefficients: &[f64]) -> Gradients {
        let (softcap, vocab) = (self.softcap(), self.config.vocab);
        let dlogits = cross_entropy::backward(coefficients, &acts.logits, &batch.targets, softcap, vocab);
        self.backward_logits(batch, acts, &dlogits)
    }

    /// Gradients from those of the logits of the loss rows before the softcap, `[N, V]`.
    pub fn backward_logits(&self, batch: &MicroBatch, acts: &Activations, dlogits: &[f64]) -> Gradients {
        let (d, eps, layers) = (self.config.width, self.eps(), self.config.layers.len());
        let mut grads = Gradients { pairs: self.adapter.pairs.clone(), hidden: vec![Vec::new(); layers + 1] };
        for pair in grads.pairs.values_mut() {
            pair.a.fill(0.0);
            pair.b.fill(0.0);
        }
        let zeros: Vec<Vec<f64>> = acts.layers.iter().map(|a| vec![0.0; a.k.len()]).collect();
        let mut shared = KeyValueGradients { dk: zeros.clone(), dv: zeros };

        let scale = f64::from(self.config.logit_scale);
        let dlogits: Vec<f64> = dlogits.iter().map(|d| scale * d).collect();
        let dnormed = linear::backward(&dlogits, self.output(), d);
        let dhead = rms_norm::backward(&dnormed, &acts.head, Some(&self.weights.output_norm), d, eps);
        grads.hidden[layers] = embedding::scatter(&dhead, &batch.loss_rows, d, batch.len());

        for layer in (0..layers).rev() {
            self.layer_backward(layer, batch, acts, &mut shared, &mut grads);
        }
        grads
    }

    fn layer_backward(
        &self,
        layer: usize,
        batch: &MicroBatch,
        acts: &Activations,
        shared: &mut KeyValueGradients,
        grads: &mut Gradients,
    ) {
        // Longer than 60 lines: the mirror image of `layer_forward`.
        let (l, w, a) = (&self.config.layers[layer], &self.weights.layers[layer], &acts.layers[layer]);
        let (d, eps) = (self.config.width, self.eps());

        let mut dh = grads.hidden[layer + 1].clone();
        for value in &mut dh {
            *value *= w.output_scale;
        }
        if let Some(w) = &w.per_layer {
            let dproj = rms_norm::backward(&dh, &a.proj, Some(&w.post_norm), d, eps);
            let dgated =
                self.adapted_backward(layer, Module::Proj, &dproj, &a.gated_input, &w.proj, acts, grads);
            let (dgate, _) = gated::backward(
                &dgated,
                &a.inp_gate,
                &acts.per_layer_inputs[layer],
                self.config.per_layer_activation,
            );
            let dx =
                self.adapted_backward(layer, Module::InpGate, &dgate, &a.after_ffn, &w.inp_gate, acts, grads);
            add_scaled(&mut dh, 1.0, &dx);
        }

        let ddown = match a.experts {
            Some(_) => self.experts_backward(layer, acts, &mut dh, grads),
            None => norm_if_backward(&dh, &a.ffn_down, w.post_ffw_norm.as_ref(), d, eps),
        };
        if l.ffn_width > 0 {
            let dx = self.dense_backward(layer, &ddown, acts, grads);
            add_scaled(&mut dh, 1.0, &dx);
        }

        let doutput = norm_if_backward(&dh, &a.attn_output, w.post_attention_norm.as_ref(), d, eps);
        let dnormed = match (&l.delta, &a.delta, &w.short_conv, &a.short_conv) {
            (Some(delta), Some(inner), ..) => {
                self.delta_backward(layer, delta, batch, &doutput, (inner, acts), grads)
            }
            (.., Some(conv), Some(inner)) => {
                self.short_conv_backward(layer, conv, batch, &doutput, (inner, acts), grads)
            }
            _ => self.attention_backward(layer, batch, &doutput, acts, shared, grads),
        };
        let dx = norm_if_backward(&dnormed, &acts.hidden[layer], w.attn_norm.as_ref(), d, eps);
        add_scaled(&mut dh, 1.0, &dx);
        grads.hidden[layer] = dh;
    }

    /// From the gradient of attention's output projection to that of its normed input.
    fn attention_backward(
        &self,
        layer: usize,
        batch: &MicroBatch,
        doutput: &[f64],
        acts: &Activations,
        shared: &mut KeyValueGradients,
        grads: &mut Gradients,
    ) -> Vec<f64> {
        // Longer than 60 lines: the mirror image of `attention_forward`.
        let (l, w, a) = (&self.config.layers[layer], &self.weights.layers[layer], &acts.layers[layer]);
        let (size, eps) = (l.head_size, self.eps());
        let [of_queries, of_keys] = l.qk_norm_sizes();
        let [q_turn, k_turn] = self.config.rotary(layer, longest(batch));
        let x = &a.gated_attention;
        let mut dattention =
            self.adapted_backward(layer, Module::AttnOutput, doutput, x, &w.attn_output, acts, grads);
        if l.latent.is_some() {
            dattention = latent::join(&dattention, &[], batch.len(), l.heads, size);
        }
        let mut dgate = Vec::new();
        if l.output_gate {
            (dattention, dgate) = gated::sigmoid_backward(&dattention, &a.attention, &a.attn_gate);
        }
        let source = l.kv_donor.unwrap_or(layer);
        let mut dq = attention::backward_capped(
            &dattention,
            &a.q,
            &acts.layers[source].k,
            &acts.layers[source].v,
            &batch.starts,
            l.window,
            l.heads,
            l.kv_heads,
            &a.attention,
            &a.lse,
            &mut shared.dk[source],
            &mut shared.dv[source],
            l.score_softcap.map(f64::from),
        );
        self.scale_queries(layer, batch, &mut dq);
        l.scale_turned(&mut dq, k_turn.scale);
        let (positions, frequencies) = (&batch.positions, &q_turn.frequencies);
        // From the gradient of normed and turned heads to that of `x`.
        let heads_backward =
            |dy: &[f64], x: &[f64], weight: Option<&Vec<f64>>, width: usize, heads: usize| {
                if l.qk_norm_behind {
                    let turned = rope::forward(x, positions, frequencies, heads);
                    let dturned = norm_if_backward(dy, &turned, weight, width, eps);
                    return rope::backward(&dturned, positions, frequencies, heads);
                }
                let dnormed = rope::backward(dy, positions, frequencies, heads);
                norm_if_backward(&dnormed, x, weight, width, eps)
            };
        let mut dq = heads_backward(&dq, &a.attn_q, w.attn_q_norm.as_ref(), of_queries, l.heads);
        if l.output_gate {
            let heads = dq.chunks_exact(size).zip(dgate.chunks_exact(size));
            dq = heads.flat_map(|(dq, dgate)| [dq, dgate].concat()).collect();
        }
        if let Some(latent) = &w.latent {
            let mut dk = shared.dk[layer].clone();
            l.scale_turned(&mut dk, k_turn.scale);
            let dk = heads_backward(&dk, &a.attn_k, None, of_keys, l.kv_heads);
            return self.latent_backward(layer, latent, [dq, dk, shared.dv[layer].clone()], acts, grads);
        }
        let mut dnormed =
            self.adapted_backward(layer, Module::AttnQ, &dq, &a.attn_normed, &w.attn_q, acts, grads);
        if l.kv_donor.is_none() {
            let mut dk = shared.dk[layer].clone();
            l.scale_turned(&mut dk, k_turn.scale);
            let mut dk = heads_backward(&dk, &a.attn_k, w.attn_k_norm.as_ref(), of_keys, l.kv_heads);
            let dv = match l.v_norm {
                true => rms_norm::backward(&shared.dv[layer], &a.attn_v, None, size, eps),
                false => shared.dv[layer].clone(),
            };
            match &w.attn_v {
                Some(attn_v) => {
                    let dx =
                        self.adapted_backward(layer, Module::AttnV, &dv, &a.attn_normed, attn_v, acts, grads);
                    add_scaled(&mut dnormed, 1.0, &dx);
                }
                None => add_scaled(&mut dk, 1.0, &dv),
            }
            let attn_k = w.attn_k.as_ref().expect("a layer without donor has attn_k");
            let dx = self.adapted_backward(layer, Module::AttnK, &dk, &a.attn_normed, attn_k, acts, grads);
            add_scaled(&mut dnormed, 1.0, &dx);
        }
        dnormed
    }

    /// From the gradient of the dense block's output to that of the residual stream before its norm.
    fn dense_backward(
        &self,
        layer: usize,
        ddown: &[f64],
        acts: &Activations,
        grads: &mut Gradients,
    ) -> Vec<f64> {
        let (l, w, a) = (&self.config.layers[layer], &self.weights.layers[layer], &acts.layers[layer]);
        let [gate, up, down] = l.dense_modules();
        let dgated = self.adapted_backward(layer, down, ddown, &a.gated, &w.ffn_down, acts, grads);
        let (dgate, dup) = gated::backward(&dgated, &a.ffn_gate, &a.ffn_up, l.activation);
        let mut dnormed = self.adapted_backward(layer, up, &dup, &a.ffn_normed, &w.ffn_up, acts, grads);
        let dx = self.adapted_backward(layer, gate, &dgate, &a.ffn_normed, &w.ffn_gate, acts, grads);
        add_scaled(&mut dnormed, 1.0, &dx);
        norm_if_backward(&dnormed, &a.after_attention, w.ffn_norm.as_ref(), self.config.width, self.eps())
    }

    /// Adds the gradient through the router and the experts to `dh`, the gradient of the residual stream. Returns the gradient
    /// of the feed-forward block's output, empty without such a block.
    fn experts_backward(
        &self,
        layer: usize,
        acts: &Activations,
        dh: &mut [f64],
        grads: &mut Gradients,
    ) -> Vec<f64> {
        let (l, a) = (&self.config.layers[layer], &acts.layers[layer]);
        let w = &self.weights.layers[layer];
        let (Some(l), Some(e), Some(we)) = (l.experts, &a.experts, &w.experts) else { return Vec::new() };
        let Some(matrices) = self.expert_matrices(layer, l.width) else { return Vec::new() };
        let (d, eps) = (self.config.width, self.eps());
        let dsum = norm_if_backward(dh, &e.sum, w.post_ffw_norm.as_ref(), d, eps);
        let (input_norm, router_norm, doutput) = match &we.norms {
            Some(norms) => {
                let doutput = rms_norm::backward(&dsum, &e.output, Some(&norms.post_ffw_norm_2), d, eps);
                (Some(&norms.pre_ffw_norm_2), Some(norms.router()), doutput)
            }
            None => (w.ffn_norm.as_ref(), w.ffn_norm.clone(), dsum.clone()),
        };
        let g = experts::backward(&doutput, &e.normed, &e.routing, &matrices, &e.inner, d);
        for (module, gradient) in
            [(Module::FfnGateUpExps, g.dgate_up_lora), (Module::FfnDownExps, g.ddown_lora)]
        {
            let pair = grads.pairs.get_mut(&self.slot(layer, module).0);
            if let (Some(pair), Some([da, db])) = (pair, gradient) {
                add_scaled(&mut pair.a, 1.0, &da);
                add_scaled(&mut pair.b, 1.0, &db);
            }
        }
        let dx = norm_if_backward(&g.dx, &a.after_attention, input_norm, d, eps);
        add_scaled(dh, 1.0, &dx);
        let dscores = router::backward(&g.dweights, &e.routing, l.count);
        let module = Module::FfnGateInp;
        let mut dnormed =
            self.adapted_backward(layer, module, &dscores, &e.router_normed, &we.router, acts, grads);
        let mut ddown = we.norms.as_ref().map_or_else(Vec::new, |norms| {
            rms_norm::backward(&dsum, &a.ffn_down, Some(&norms.post_ffw_norm_1), d, eps)
        });
        if let Some(gate) = &we.shared_gate {
            let dscore;
            (ddown, dscore) = gated::rows_backward(&dsum, &a.ffn_down, &e.shared_score);
            let (module, x) = (Module::FfnGateInpShexp, &a.ffn_normed);
            let dx = self.adapted_backward(layer, module, &dscore, x, gate, acts, grads);
            add_scaled(&mut dnormed, 1.0, &dx);
        }
        if l.shared && l.ungated {
            ddown = dsum;
        }
        let dx = norm_if_backward(&dnormed, &a.after_attention, router_norm.as_ref(), d, eps);
        add_scaled(dh, 1.0, &dx);
        ddown
    }

    /// `dx` of a product with an adapter; adds to the slot's gradients.
    pub(super) fn adapted_backward(
        &self,
        layer: usize,
        module: Module,
        dy: &[f64],
        x: &[f64],
        w: &[f64],
        acts: &Activations,
        grads: &mut Gradients,
    ) -> Vec<f64> {
        let (slot, rows) = self.slot(layer, module);
        let mut dx = linear::backward(dy, w, slot.in_features);
        if let Some(Pair { a, b }) = self.adapter.pairs.get(&slot) {
            let (rank, scale) = (self.adapter.rank, self.adapter.scale);
            let mask = self.adapter.masks.get(&slot).map(Vec::as_slice);
            let d = grads.pairs.get_mut(&slot).expect("gradients have the adapter's slots");
            let rows = rows.start * rank..rows.end * rank;
            let (b, db) = (&b[rows.clone()], &mut d.b[rows]);
            lora::backward(dy, x, a, b, rank, scale, mask, &acts.z[&slot], &mut dx, &mut d.a, db);
        }
        dx
    }
}
