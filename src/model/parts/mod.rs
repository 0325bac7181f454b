//! Attention and delta nets whose heads, and short convolutions whose channels, are divided into parts, because buffers of all heads over
//! all tokens would be too long.
//!
//! Products read and write all heads, of a chunk of the tokens at a time. Their columns are copied to and from the parts' buffers, and each
//! part runs over all tokens as a whole layer of fewer heads does. So no kernel knows of parts.

mod backward;
mod forward;

use super::batch::Batch;
use super::{DeltaLayer, Model, ShortConvLayer};
use crate::base::config::DeltaNet;
use crate::memory::{Chunk, PartSpans, Saved, ScratchActs, Temp};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::attention::Attention;
use crate::ops::columns;
use crate::ops::delta::{Delta, Frozen};
use crate::ops::pass::Pass;
use crate::ops::short_conv::{Convolution, Taps};

/// One part of the heads of a layer.
struct Part {
    layer: usize,
    part: usize,
    spans: PartSpans,
}

/// A result of a product of all heads, and the same of a part of them.
type Halves = (Temp, Saved);

impl Model<'_> {
    /// The parts of the heads of layer `layer`.
    fn parts_of(&self, batch: &Batch, layer: usize) -> Vec<Part> {
        let l = &self.config().layers[layer];
        let count = batch.acts.parts(layer);
        (0..count).map(|part| Part { layer, part, spans: PartSpans::of(l, part, count) }).collect()
    }

    /// The results of a layer's first products.
    fn inputs_of_parts(&self, layer: usize) -> Vec<Halves> {
        let l = &self.config().layers[layer];
        match (l.delta, l.output_gate || l.short_conv.is_some()) {
            (None, false) => vec![(Temp::StagedInput, Saved::AttnQ)],
            (None, true) => vec![(Temp::StagedInput, Saved::MixerInput)],
            (Some(_), _) => vec![
                (Temp::StagedInput, Saved::MixerInput),
                (Temp::StagedGate, Saved::DeltaGate),
                (Temp::StagedAlpha, Saved::Alpha),
                (Temp::StagedBeta, Saved::Beta),
            ],
        }
    }

    /// Attention of a part; `s` has room for its sinks.
    fn attention_of<'a>(
        &'a self,
        p: &mut Pass,
        batch: &'a Batch,
        part: &Part,
        s: &'a ScratchActs,
    ) -> Attention<'a> {
        let whole = self.attention(part.layer, batch.inputs);
        let parts = batch.acts.parts(part.layer);
        let sinks = whole.sinks.map(|sinks| {
            let (all, own) =
                (Rows { buffer: sinks.clone(), stride: whole.heads, start: 0 }, s[Temp::PartSinks].rows());
            columns::take(p.rec.now(), own, &all, &part.spans.heads, 1);
            &own.buffer
        });
        Attention { heads: whole.heads / parts, kv_heads: whole.kv_heads.div_ceil(parts), sinks, ..whole }
    }

    /// The keys and values that the queries of a part see.
    fn keys_of(&self, p: &mut Pass, batch: &Batch, part: &Part, s: &ScratchActs) -> [Act; 2] {
        let l = &self.config().layers[part.layer];
        let whole = batch.keys_values(l.kv_donor.unwrap_or(part.layer));
        let spans = &part.spans.keys;
        let copy = |p: &mut Pass, whole: &Act, own: &Act| match whole.tiles() {
            Some(tiles) => Act::tiled(tiles.columns_from(spans[0].whole), None),
            None => {
                columns::take(p.rec.now(), own.rows(), whole.rows(), spans, p.tokens);
                own.clone()
            }
        };
        [copy(p, &whole[0], &s[Temp::PartK]), copy(p, &whole[1], &s[Temp::PartV])]
    }

    /// The delta net of a part, with `frozen`.
    fn delta_of<'a>(
        &self,
        batch: &'a Batch,
        part: &Part,
        w: &'a DeltaLayer,
        frozen: &'a Frozen,
    ) -> Delta<'a> {
        let whole = self.delta_net(part.layer, w, batch.inputs);
        let parts = batch.acts.parts(part.layer);
        let (key_heads, value_heads) = (whole.key_heads / parts, whole.value_heads / parts);
        Delta { key_heads, value_heads, frozen, ..whole }
    }

    /// The weights of a part of a short convolution's channels, in memory of `s`.
    fn taps_of(&self, p: &mut Pass, part: &Part, w: &ShortConvLayer, s: &ScratchActs) -> Taps {
        let conv = self.config().layers[part.layer].short_conv.expect("the layer has a short convolution");
        let own = s[Temp::PartTaps].rows();
        let spans: Vec<columns::Span> = part.spans.output.iter().map(|span| span.times(4)).collect();
        columns::take(p.rec.now(), own, &w.taps.as_rows(conv.channels), &spans, 1);
        Taps::in_rows(own)
    }

    /// The convolution of a part, with `taps`.
    fn convolution_of<'a>(&self, batch: &Batch, part: &Part, taps: &'a Taps) -> Convolution<'a> {
        let whole = self.convolution(part.layer, taps, batch.inputs);
        Convolution { channels: whole.channels / batch.acts.parts(part.layer), ..whole }
    }

    /// The frozen parameters of a part of a delta net's heads, in memory of `s`.
    fn frozen_of(&self, p: &mut Pass, part: &Part, w: &DeltaLayer, s: &ScratchActs) -> Frozen {
        let net: DeltaNet = self.config().layers[part.layer].delta.expect("the layer has a delta net");
        let [taps, gates] = w.frozen.as_rows(net.channels(), net.value_heads);
        let own = [s[Temp::PartTaps].rows(), s[Temp::PartGates].rows()];
        let times = |spans: &[columns::Span], times: usize| -> Vec<columns::Span> {
            spans.iter().map(|span| span.times(times)).collect()
        };
        columns::take(p.rec.now(), own[0], &taps, &times(&part.spans.input, 4), 1);
        columns::take(p.rec.now(), own[1], &gates, &times(&part.spans.heads, 2), 1);
        Frozen::in_rows(own)
    }
}

impl Part {
    /// The part's columns of a result of products.
    fn spans(&self, name: Temp) -> &[columns::Span] {
        match name {
            Temp::StagedInput => &self.spans.input,
            Temp::StagedGate => &self.spans.output,
            _ => &self.spans.heads,
        }
    }

    /// The part's input of the output projection, put beside those of the other parts in `staged`, for the tokens of `chunk`.
    fn put_output(&self, p: &mut Pass, batch: &Batch, name: Saved, staged: &Act, chunk: Chunk) {
        let a = batch.layer_part(self.layer, self.part, chunk);
        columns::put(p.rec.now(), staged.rows(), a[name].rows(), &self.spans.output, chunk.tokens);
    }
}
