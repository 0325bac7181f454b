//! Forward; `backward.rs` is the mirror of this file.

use super::super::batch::{Batch, Tokens};
use super::super::delta::remember;
use super::super::forward::{attend, mixed};
use super::super::short_conv::convolve;
use super::super::{DeltaLayer, Model, ShortConvLayer};
use super::Part;
use crate::memory::{Chunk, Saved, Temp};
use crate::ops::lora::Input;
use crate::ops::pass::Pass;
use crate::ops::{columns, linear};

impl Model<'_> {
    /// From the normed input of layer `layer` to the output projection of attention or of the delta net.
    pub(in crate::model) fn parts_forward(&self, p: &mut Pass, batch: &Batch, layer: usize) {
        let w = &self.layers[layer];
        let parts = self.parts_of(batch, layer);
        let a = batch.layer(layer, batch.all());
        let is_kept = self.inputs_of_parts(layer).iter().all(|(_, name)| a[*name].is_kept());
        for chunk in batch.acts.chunks(batch.inputs.tokens).filter(|_| !is_kept) {
            p.over(chunk.range());
            self.inputs_forward(p, batch, layer, &parts, chunk);
        }
        p.over(batch.all().range());
        if self.config().layers[layer].has_attention() {
            self.keys_forward(p, batch, layer, &a);
        }
        for part in &parts {
            match (&w.delta, &w.short_conv) {
                (Some(delta), _) => self.delta_part(p, batch, part, delta),
                (_, Some(conv)) => self.short_conv_part(p, batch, part, conv),
                _ => self.attention_part(p, batch, part),
            }
        }
        if a[Saved::AttnOutput].is_kept() && a[Saved::ZOutput].is_kept() {
            return;
        }
        for chunk in batch.acts.chunks(batch.inputs.tokens) {
            p.over(chunk.range());
            self.output_forward(p, batch, layer, &parts, chunk);
        }
    }

    /// The products of the layer's normed input, of the tokens of `chunk`.
    fn inputs_forward(&self, p: &mut Pass, batch: &Batch, layer: usize, parts: &[Part], chunk: Chunk) {
        let w = &self.layers[layer];
        let a = batch.layer(layer, chunk);
        let s = batch.acts.backward_scratch(layer, chunk);
        let staged = self.inputs_of_parts(layer);
        let outputs = w.first(&self.config().layers[layer], |name| {
            staged.iter().find(|(_, saved)| *saved == name).map_or(&a[name], |(staged, _)| &s[*staged])
        });
        let adapters = batch.adapters(layer, Input::AttnNormed);
        linear::forward(p, &outputs, &a[Saved::AttnNormed], adapters, &a[Saved::ZAttn]);
        for part in parts {
            let own = batch.layer_part(layer, part.part, chunk);
            for (staged, name) in self.inputs_of_parts(layer) {
                let (to, from) = (own[name].rows(), s[staged].rows());
                columns::take(p.rec.now(), to, from, part.spans(staged), chunk.tokens);
            }
        }
    }

    /// Attention of a part of the heads, from raw queries to the input of the output projection.
    fn attention_part(&self, p: &mut Pass, batch: &Batch, part: &Part) {
        let a = batch.layer_part(part.layer, part.part, batch.all());
        let s = batch.acts.backward_scratch_of(part.layer, part.part, batch.all());
        let shape = self.attention_of(p, batch, part, &s);
        self.queries_forward(p, batch, part.layer, &a, shape.heads);
        let [k, v] = &self.keys_of(p, batch, part, &s);
        attend(p, &shape, &self.config().layers[part.layer], &a, [k, v]);
    }

    /// A part of a delta net's heads, from the results of the first products to the input of the output projection.
    fn delta_part(&self, p: &mut Pass, batch: &Batch, part: &Part, w: &DeltaLayer) {
        let a = batch.layer_part(part.layer, part.part, batch.all());
        let s = batch.acts.backward_scratch_of(part.layer, part.part, batch.all());
        let frozen = self.frozen_of(p, part, w, &s);
        remember(p, w, &a, &self.delta_of(batch, part, w, &frozen));
    }

    /// A part of a short convolution's channels, from the result of the first product to the input of the output projection.
    fn short_conv_part(&self, p: &mut Pass, batch: &Batch, part: &Part, w: &ShortConvLayer) {
        let a = batch.layer_part(part.layer, part.part, batch.all());
        let s = batch.acts.backward_scratch_of(part.layer, part.part, batch.all());
        let taps = self.taps_of(p, part, w, &s);
        convolve(p, &a, &self.convolution_of(batch, part, &taps), batch.inputs);
    }

    /// The output projection, of the tokens of `chunk`.
    fn output_forward(&self, p: &mut Pass, batch: &Batch, layer: usize, parts: &[Part], chunk: Chunk) {
        let w = &self.layers[layer];
        let a = batch.layer(layer, chunk);
        let s = batch.acts.backward_scratch(layer, chunk);
        let staged = &s[Temp::StagedOutput];
        for part in parts {
            part.put_output(p, batch, mixed(&self.config().layers[layer]), staged, chunk);
        }
        let adapters = batch.adapters(layer, Input::Attention);
        linear::forward(p, &w.last(&a[Saved::AttnOutput]), staged, adapters, &a[Saved::ZOutput]);
    }
}
