//! A gated short convolution in a pass: its state is its last inputs.

use super::Place;
use super::tokens::Walk;
use crate::memory::{LayerActs, Saved};
use crate::model::ShortConvLayer;
use crate::ops::pass::Pass;
use crate::ops::short_conv::{self, Convolution};

impl Walk<'_, '_> {
    /// A short convolution with its state, from the result of its first product to its output.
    pub(super) fn short_conv(&self, p: &mut Pass, layer: usize, conv: &ShortConvLayer, a: &LayerActs) {
        let (d, w, state) = (self.decoder, self.decoder.w, &self.state(layer));
        let of_layer =
            Convolution { channels: conv.out_proj.cols, taps: &conv.taps, tokens: d.live(self.rows) };
        let (y, bcx) = (a[Saved::GatedAttention].rows(), a[Saved::MixerInput].rows());
        match d.place {
            Place::Each(_) => {
                short_conv::each(p.rec.now(), &of_layer, state, &w.step().table, y, bcx);
            }
            _ => short_conv::forward_carried(p.rec.now(), &of_layer, state, &w.tokens, y, bcx),
        }
    }
}
