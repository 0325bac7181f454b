//! A gated delta net in the place of attention.

use std::collections::BTreeMap;

use super::activations::{Activations, DeltaActivations};
use super::{Gradients, Model};
use crate::adapter::lora::Slot;
use crate::base::Module;
use crate::base::config::{Activation, DeltaNet};
use crate::data::batch::MicroBatch;
use crate::reference::delta::net::{Net, Projected};
use crate::reference::{add_scaled, gated, rms_norm};

impl Model<'_> {
    /// From the normed input to the output projection, which is returned apart.
    pub(super) fn delta_forward(
        &self,
        layer: usize,
        delta: &DeltaNet,
        batch: &MicroBatch,
        x: &[f64],
        z: &mut BTreeMap<Slot, Vec<f64>>,
    ) -> (DeltaActivations, Vec<f64>) {
        let w = self.weights.layers[layer].delta.as_ref().expect("the layer has a delta net");
        let projected = Projected {
            qkv: self.adapted(layer, Module::AttnQkv, x, &w.qkv, z),
            alpha: self.adapted(layer, Module::SsmAlpha, x, &w.alpha, z),
            beta: self.adapted(layer, Module::SsmBeta, x, &w.beta, z),
        };
        let gate = self.adapted(layer, Module::AttnGate, x, &w.gate, z);
        let output = self.net(layer, delta, batch).forward(&projected);
        let normed = rms_norm::forward(&output, Some(&w.norm), delta.head_size, self.eps());
        let gated = gated::forward(&gate, &normed, Activation::Silu);
        let out = self.adapted(layer, Module::SsmOut, &gated, &w.out, z);
        (DeltaActivations { projected, gate, output, gated }, out)
    }

    /// From the gradient of the output projection to that of the normed input.
    pub(super) fn delta_backward(
        &self,
        layer: usize,
        delta: &DeltaNet,
        batch: &MicroBatch,
        doutput: &[f64],
        (a, acts): (&DeltaActivations, &Activations),
        grads: &mut Gradients,
    ) -> Vec<f64> {
        let w = self.weights.layers[layer].delta.as_ref().expect("the layer has a delta net");
        let (size, eps) = (delta.head_size, self.eps());
        let dgated = self.adapted_backward(layer, Module::SsmOut, doutput, &a.gated, &w.out, acts, grads);
        let normed = rms_norm::forward(&a.output, Some(&w.norm), size, eps);
        let (dgate, dnormed) = gated::backward(&dgated, &a.gate, &normed, Activation::Silu);
        let dout = rms_norm::backward(&dnormed, &a.output, Some(&w.norm), size, eps);
        let d = self.net(layer, delta, batch).backward(&dout, &a.projected);

        let x = &acts.layers[layer].attn_normed;
        let mut dnormed = vec![0.0; x.len()];
        for (module, dy, matrix) in [
            (Module::AttnQkv, &d.qkv, &w.qkv),
            (Module::AttnGate, &dgate, &w.gate),
            (Module::SsmAlpha, &d.alpha, &w.alpha),
            (Module::SsmBeta, &d.beta, &w.beta),
        ] {
            let dx = self.adapted_backward(layer, module, dy, x, matrix, acts, grads);
            add_scaled(&mut dnormed, 1.0, &dx);
        }
        dnormed
    }

    fn net<'a>(&'a self, layer: usize, delta: &DeltaNet, batch: &'a MicroBatch) -> Net<'a> {
        let w = self.weights.layers[layer].delta.as_ref().expect("the layer has a delta net");
        let starts = &batch.starts;
        Net { shape: *delta, taps: &w.taps, a: &w.a, dt: &w.dt, eps: self.eps(), starts }
    }
}
