//! Backward pass, written out in the reverse order of `forward.rs`.

use super::{Activations, Gradients, Model, Pair};
use crate::base::Module;
use crate::data::batch::MicroBatch;
use crate::reference::{
    add_scaled, attention, cross_entropy, embedding, experts, gated, linear, lora, rms_norm, rope, router,
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
        let (d, eps, layers) = (self.config.width, self.eps(), self.config.layers.len());
        let mut grads = Gradients { pairs: self.adapter.pairs.clone(), hidden: vec![Vec::new(); layers + 1] };
        for pair in grads.pairs.values_mut() {
            pair.a.fill(0.0);
            pair.b.fill(0.0);
        }
        let zeros: Vec<Vec<f64>> = acts.layers.iter().map(|a| vec![0.0; a.k.len()]).collect();
        let mut shared = KeyValueGradients { dk: zeros.clone(), dv: zeros };

        let (softcap, vocab) = (self.softcap(), self.config.vocab);
        let coefficients = vec![factor; batch.targets.len()];
        let dlogits = cross_entropy::backward(&coefficients, &acts.logits, &batch.targets, softcap, vocab);
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
        let (l, w, a) = (&self.config.layers[layer], &self.weights.layers[layer], &acts.layers[layer]);
        let (d, size, eps) = (self.config.width, l.head_size, self.eps());
        let frequencies = self.config.rope_frequencies(layer);

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
            None => rms_norm::backward(&dh, &a.ffn_down, Some(&w.post_ffw_norm), d, eps),
        };
        let dgated =
            self.adapted_backward(layer, Module::FfnDown, &ddown, &a.gated, &w.ffn_down, acts, grads);
        let (dgate, dup) = gated::backward(&dgated, &a.ffn_gate, &a.ffn_up, l.activation);
        let mut dnormed =
            self.adapted_backward(layer, Module::FfnUp, &dup, &a.ffn_normed, &w.ffn_up, acts, grads);
        let dx =
            self.adapted_backward(layer, Module::FfnGate, &dgate, &a.ffn_normed, &w.ffn_gate, acts, grads);
        add_scaled(&mut dnormed, 1.0, &dx);
        let dx = rms_norm::backward(&dnormed, &a.after_attention, Some(&w.ffn_norm), d, eps);
        add_scaled(&mut dh, 1.0, &dx);

        let doutput = rms_norm::backward(&dh, &a.attn_output, Some(&w.post_attention_norm), d, eps);
        let dattention = self.adapted_backward(
            layer,
            Module::AttnOutput,
            &doutput,
            &a.attention,
            &w.attn_output,
            acts,
            grads,
        );
        let source = l.kv_donor.unwrap_or(layer);
        let dq = attention::backward(
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
        );
        let dq = rope::backward(&dq, &batch.positions, &frequencies, l.heads);
        let dq = rms_norm::backward(&dq, &a.attn_q, Some(&w.attn_q_norm), size, eps);
        let mut dnormed =
            self.adapted_backward(layer, Module::AttnQ, &dq, &a.attn_normed, &w.attn_q, acts, grads);
        if l.kv_donor.is_none() {
            let dk = rope::backward(&shared.dk[layer], &batch.positions, &frequencies, l.kv_heads);
            let k_norm = w.attn_k_norm.as_ref().expect("a layer without donor has attn_k_norm");
            let mut dk = rms_norm::backward(&dk, &a.attn_k, Some(k_norm), size, eps);
            let dv = rms_norm::backward(&shared.dv[layer], &a.attn_v, None, size, eps);
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
        let dx = rms_norm::backward(&dnormed, &acts.hidden[layer], Some(&w.attn_norm), d, eps);
        add_scaled(&mut dh, 1.0, &dx);
        grads.hidden[layer] = dh;
    }

    /// Adds the gradient through the router and the experts to `dh`, the gradient of the residual stream. Returns the gradient
    /// of the feed-forward block's output.
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
        let dsum = rms_norm::backward(dh, &e.sum, Some(&w.post_ffw_norm), d, eps);
        let doutput = rms_norm::backward(&dsum, &e.output, Some(&we.post_ffw_norm_2), d, eps);
        let g = experts::backward(&doutput, &e.normed, &e.routing, &matrices, &e.inner, d);
        for (module, gradient) in
            [(Module::FfnGateUpExps, g.dgate_up_lora), (Module::FfnDownExps, g.ddown_lora)]
        {
            let pair = grads.pairs.get_mut(&self.slot(layer, module));
            if let (Some(pair), Some([da, db])) = (pair, gradient) {
                add_scaled(&mut pair.a, 1.0, &da);
                add_scaled(&mut pair.b, 1.0, &db);
            }
        }
        let dx = rms_norm::backward(&g.dx, &a.after_attention, Some(&we.pre_ffw_norm_2), d, eps);
        add_scaled(dh, 1.0, &dx);
        let dscores = router::backward(&g.dweights, &e.routing, l.count);
        let module = Module::FfnGateInp;
        let dnormed =
            self.adapted_backward(layer, module, &dscores, &e.router_normed, &we.router, acts, grads);
        let dx = rms_norm::backward(&dnormed, &a.after_attention, Some(&we.router_norm()), d, eps);
        add_scaled(dh, 1.0, &dx);
        rms_norm::backward(&dsum, &a.ffn_down, Some(&we.post_ffw_norm_1), d, eps)
    }

    /// `dx` of a product with an adapter; adds to the slot's gradients.
    fn adapted_backward(
        &self,
        layer: usize,
        module: Module,
        dy: &[f64],
        x: &[f64],
        w: &[f64],
        acts: &Activations,
        grads: &mut Gradients,
    ) -> Vec<f64> {
        let slot = self.slot(layer, module);
        let mut dx = linear::backward(dy, w, slot.in_features);
        if let Some(Pair { a, b }) = self.adapter.pairs.get(&slot) {
            let (rank, scale) = (self.adapter.rank, self.adapter.scale);
            let mask = self.adapter.masks.get(&slot).map(Vec::as_slice);
            let d = grads.pairs.get_mut(&slot).expect("gradients have the adapter's slots");
            lora::backward(dy, x, a, b, rank, scale, mask, &acts.z[&slot], &mut dx, &mut d.a, &mut d.b);
        }
        dx
    }
}
