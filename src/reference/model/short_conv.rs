//! A gated short convolution in the place of attention.

use std::collections::BTreeMap;

use super::activations::{Activations, ShortConvActivations};
use super::{Gradients, Model, ShortConvWeights};
use crate::adapter::lora::Slot;
use crate::base::Module;
use crate::data::batch::MicroBatch;
use crate::reference::short_conv;

impl Model<'_> {
    /// From the normed input to the output projection, which is returned apart.
    pub(super) fn short_conv_forward(
        &self,
        layer: usize,
        w: &ShortConvWeights,
        batch: &MicroBatch,
        x: &[f64],
        z: &mut BTreeMap<Slot, Vec<f64>>,
    ) -> (ShortConvActivations, Vec<f64>) {
        let bcx = self.adapted(layer, Module::ShortconvInProj, x, &w.in_proj, z);
        let gated = short_conv::forward(&bcx, &w.taps, &batch.starts);
        let out = self.adapted(layer, Module::ShortconvOutProj, &gated, &w.out_proj, z);
        (ShortConvActivations { bcx, gated }, out)
    }

    /// From the gradient of the output projection to that of the normed input.
    pub(super) fn short_conv_backward(
        &self,
        layer: usize,
        w: &ShortConvWeights,
        batch: &MicroBatch,
        doutput: &[f64],
        (a, acts): (&ShortConvActivations, &Activations),
        grads: &mut Gradients,
    ) -> Vec<f64> {
        let module = Module::ShortconvOutProj;
        let dgated = self.adapted_backward(layer, module, doutput, &a.gated, &w.out_proj, acts, grads);
        let dbcx = short_conv::backward(&dgated, &a.bcx, &w.taps, &batch.starts);
        let x = &acts.layers[layer].attn_normed;
        self.adapted_backward(layer, Module::ShortconvInProj, &dbcx, x, &w.in_proj, acts, grads)
    }
}
