//! A gated short convolution in the place of attention, forward and backward.

use super::batch::Batch;
use super::{Model, ShortConvLayer};
use crate::base::Module;
use crate::memory::{LayerActs, Saved, ScratchActs, Temp};
use crate::model::Inputs;
use crate::ops::linear;
use crate::ops::lora::Input;
use crate::ops::pass::Pass;
use crate::ops::short_conv::{self, Convolution, Taps};

impl Model<'_> {
    /// From the gradient of the output projection's result in `s.doutput` to that of the layer's input.
    pub(super) fn short_conv_backward(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        w: &ShortConvLayer,
        a: &LayerActs,
        s: &ScratchActs,
    ) {
        let gradients = self.layers[layer].last(&s.doutput);
        let (x, dgated) = (&a[Saved::GatedAttention], &s[Temp::DGatedAttention]);
        let lora = batch.lora(layer, Input::Attention);
        linear::backward(p, Some((dgated, false)), &gradients, x, lora, &a[Saved::ZOutput]);
        convolve_backward(p, a, s, &self.convolution(layer, &w.taps, batch.inputs), batch.inputs);
        let gradients = [(Module::ShortconvInProj, &w.in_proj, &s[Temp::DMixerInput])];
        self.input_backward(p, batch, layer, &gradients, a, s);
    }

    /// The convolution of layer `layer` over a micro-batch.
    pub(super) fn convolution<'a>(&self, layer: usize, taps: &'a Taps, inputs: &Inputs) -> Convolution<'a> {
        let shape = self.config().layers[layer].short_conv.expect("the layer has a short convolution");
        Convolution { channels: shape.channels, taps, tokens: inputs.tokens }
    }
}

/// From the result of the first product to the input of the output projection.
pub(super) fn convolve(p: &mut Pass, a: &LayerActs, conv: &Convolution, inputs: &Inputs) {
    let y = &a[Saved::GatedAttention];
    short_conv::forward(p.rec.now(), conv, &y.staging(), a[Saved::MixerInput].rows(), &inputs.bounds);
    y.store(p.rec.now(), p.tokens);
}

/// The mirror of [`convolve`].
pub(super) fn convolve_backward(
    p: &mut Pass,
    a: &LayerActs,
    s: &ScratchActs,
    conv: &Convolution,
    inputs: &Inputs,
) {
    let [dy, dbcx] = [&s[Temp::DGatedAttention], &s[Temp::DMixerInput]].map(|act| act.rows());
    short_conv::backward(p.rec.now(), conv, dbcx, dy, a[Saved::MixerInput].rows(), &inputs.bounds);
}
