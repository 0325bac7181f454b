//! A gated delta net in the place of attention, forward and backward.

use super::batch::Batch;
use super::{DeltaLayer, Model};
use crate::base::Module;
use crate::base::config::{Activation, DeltaNet};
use crate::memory::{LayerActs, Saved, ScratchActs, Temp};
use crate::model::Inputs;
use crate::ops::act::Act;
use crate::ops::delta::{self, Delta, Gradients};
use crate::ops::linear::Projection;
use crate::ops::lora::Input;
use crate::ops::pass::Pass;
use crate::ops::{gated, heads, linear};

impl Model<'_> {
    /// From the gradient of the output projection's result in `s.doutput` to that of the layer's input.
    pub(super) fn delta_backward(
        &self,
        p: &mut Pass,
        batch: &Batch,
        layer: usize,
        w: &DeltaLayer,
        a: &LayerActs,
        s: &ScratchActs,
    ) {
        let shape = self.delta_net(layer, w, batch.inputs);
        let gradients = self.layers[layer].last(&s.doutput);
        let (x, dgated) = (&a[Saved::GatedAttention], &s[Temp::DGatedAttention]);
        let lora = batch.lora(layer, Input::Attention);
        linear::backward(p, Some((dgated, false)), &gradients, x, lora, &a[Saved::ZOutput]);
        remember_backward(p, w, a, s, &shape);
        // The largest gradients are last: in f16, the adapters' term is scaled as they are.
        let gradients: [Projection; 4] = [
            (Module::SsmAlpha, &w.alpha, &s[Temp::DAlpha]),
            (Module::SsmBeta, &w.beta, &s[Temp::DBeta]),
            (Module::AttnGate, &w.gate, &s[Temp::DDeltaGate]),
            (Module::AttnQkv, &w.qkv, &s[Temp::DMixerInput]),
        ];
        self.input_backward(p, batch, layer, &gradients, a, s);
    }

    /// The delta net of layer `layer` over a micro-batch.
    pub(super) fn delta_net<'a>(&self, layer: usize, w: &'a DeltaLayer, inputs: &'a Inputs) -> Delta<'a> {
        let config = self.config();
        let net = config.layers[layer].delta.expect("the layer has a delta net");
        let DeltaNet { key_heads, value_heads, head_size } = net;
        let (eps, bounds) = (config.rms_eps, &inputs.bounds);
        Delta { key_heads, value_heads, head_size, eps, frozen: &w.frozen, bounds, tokens: inputs.tokens }
    }
}

/// The recurrence, its norm and its gates: from the results of the first products to the input of the output projection.
pub(super) fn remember(p: &mut Pass, w: &DeltaLayer, a: &LayerActs, shape: &Delta) {
    let output = &a[Saved::DeltaOutput];
    delta::forward(p.rec.now(), shape, &saved(a), output.rows());
    gate(p, w, a, shape.value_heads);
}

/// The norm and the gates of what the recurrence gives.
pub(super) fn gate(p: &mut Pass, w: &DeltaLayer, a: &LayerActs, value_heads: usize) {
    heads::forward(p, &a[Saved::DeltaNormed], &a[Saved::DeltaOutput], &w.norm, None, value_heads);
    let gated_output = &a[Saved::GatedAttention];
    gated::forward(p, gated_output, &a[Saved::DeltaGate], &a[Saved::DeltaNormed], Activation::Silu);
}

/// The mirror of [`remember`], from the gradient of [`Saved::GatedAttention`].
pub(super) fn remember_backward(p: &mut Pass, w: &DeltaLayer, a: &LayerActs, s: &ScratchActs, shape: &Delta) {
    let dgated = s[Temp::DGatedAttention].rows();
    let [gate, output] = [&a[Saved::DeltaGate], &a[Saved::DeltaOutput]].map(Act::rows);
    let [dgate, doutput] = [&s[Temp::DDeltaGate], &s[Temp::DDeltaOutput]].map(Act::rows);
    delta::norm::backward(p.rec.now(), shape, &w.norm, [dgate, doutput], dgated, [gate, output]);
    delta::backward(p.rec.now(), shape, &saved(a), doutput, &gradients_of(s));
}

pub(super) fn saved(a: &LayerActs) -> delta::Saved<'_> {
    delta::Saved {
        qkv: a[Saved::MixerInput].rows(),
        alpha: a[Saved::Alpha].rows(),
        beta: a[Saved::Beta].rows(),
        mixed: a[Saved::Mixed].rows(),
        gates: a[Saved::Decays].rows(),
        inverse: a[Saved::Inverse].rows(),
        wu: a[Saved::WU].rows(),
        states: a[Saved::States].rows(),
        values: a[Saved::DeltaNormed].rows(),
    }
}

fn gradients_of(s: &ScratchActs) -> Gradients<'_> {
    Gradients {
        dqkv: s[Temp::DMixerInput].rows(),
        dalpha: s[Temp::DAlpha].rows(),
        dbeta: s[Temp::DBeta].rows(),
        du: s[Temp::DU].rows(),
        dstates: s[Temp::DStates].rows(),
        pairs: s[Temp::DPairs].rows(),
        dmixed: s[Temp::DMixed].rows(),
    }
}
