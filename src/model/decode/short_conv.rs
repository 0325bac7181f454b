//! A gated short convolution in a pass: its state is its last inputs.

use super::{Decoder, Place};
use crate::gpu::Recorder;
use crate::model::ShortConvLayer;
use crate::ops::lora::Input;
use crate::ops::short_conv::{self, Convolution};

impl<'a> Decoder<'a> {
    /// A short convolution with its state, the residual sum, and the norm before the feed-forward block.
    pub(super) fn short_conv(
        &self,
        rec: &mut Recorder<'a>,
        layer: usize,
        conv: &'a ShortConvLayer,
        rows: usize,
    ) {
        let w = self.w;
        let carried = self.states[layer].as_ref().expect("the layer has a short convolution");
        let channels = conv.out_proj.cols;
        let products = self.products(rec, layer, Input::AttnNormed, &w.normed, &[&conv.in_proj], rows);
        let bcx = self.add_terms(rec, products, &[&conv.in_proj], rows);
        let y = w.wide.reshaped(channels);
        let of_layer = Convolution { channels, taps: &conv.taps, tokens: self.live(rows) };
        match self.place {
            Place::Alone => short_conv::forward_carried(rec, &of_layer, carried, &w.tokens, &y, &bcx),
            Place::One(of) => {
                short_conv::forward_carried(rec, &of_layer, &carried.sequence(of), &w.tokens, &y, &bcx);
            }
            Place::Each(_) => short_conv::each(rec, &of_layer, carried, &w.step().table, &y, &bcx),
        }
        let y = self.products(rec, layer, Input::Attention, &y, &[&conv.out_proj], rows);
        self.attention_end(rec, layer, &y, rows);
    }
}
