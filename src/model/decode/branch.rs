//! The per-layer branch of a pass, and the inputs of all layers' branches.

use super::Decoder;
use crate::gpu::Recorder;
use crate::model::PerLayerBranch;
use crate::ops::lora::Input;
use crate::ops::matvec::{self, Down, Ended, Gated};
use crate::ops::{Tile, Unfinished, Weight, cached_gated, linear, per_layer};

impl<'a> Decoder<'a> {
    /// The per-layer branch, from the stream to its output before the norm. With `end` its first product ends the block before it.
    pub(super) fn per_layer_branch(
        &self,
        rec: &mut Recorder<'a>,
        layer: usize,
        branch: &PerLayerBranch,
        end: Option<Ended>,
        rows: usize,
    ) -> Unfinished<'_> {
        let (w, model) = (self.w, self.w.model);
        let width = model.config().per_layer_width;
        let inputs = w.per_layer.from(layer * width);
        let activation = model.config().per_layer_activation;
        // A product does not read the buffer that it writes.
        let output = if end.is_some() { &w.products } else { &w.branch };
        let gate = match &end {
            Some(end) => self.ended_product(rec, layer, end, &branch.inp_gate),
            None => self.products(rec, layer, Input::AfterFfn, &w.stream, &[&branch.inp_gate], rows),
        };
        if self.shares_inputs() && self.is_short(rows) && matvec::takes_gated(rows, width) {
            let group = self.adapter.as_ref().and_then(|a| a.group(layer, Input::PerLayer));
            let model_width = branch.proj.rows;
            let y = output.reshaped(model_width + group.map_or(0, |g| g.a.rows));
            let down = group.map(|g| Down { a: &g.a, z_offset: model_width });
            let x = Gated { gate: &gate, up: inputs, activation };
            matvec::forward_gated(rec, y.all(), &x, &branch.proj, down.as_ref(), rows);
            return Unfinished::of(&y, group.map(|g| g.up(model_width)));
        }
        let gated_input = w.wide.reshaped(width);
        cached_gated::forward(rec, &gated_input, &gate, inputs, activation, rows, None);
        self.products(rec, layer, Input::PerLayer, &gated_input, &[&branch.proj], rows)
    }

    /// Whether the workgroups of a product may compute its input: on a software renderer no threads wait for what they share.
    pub(super) fn shares_inputs(&self) -> bool {
        self.w.gpu.kernels().software_lanes().is_none()
    }

    /// The product of the stream with `matrix`, which reads it behind the feed-forward block, and the end of that block.
    fn ended_product(
        &self,
        rec: &mut Recorder<'a>,
        layer: usize,
        end: &Ended,
        matrix: &Weight,
    ) -> Unfinished<'_> {
        let group = self.adapter.as_ref().and_then(|a| a.group(layer, Input::AfterFfn));
        let y = self.w.branch.reshaped(matrix.rows + group.map_or(0, |g| g.a.rows));
        let down = group.map(|g| Down { a: &g.a, z_offset: matrix.rows });
        matvec::forward_ended(rec, y.all(), end, matrix, down.as_ref());
        self.biases(rec, &y, &[matrix], 1);
        Unfinished::of(&y, group.map(|g| g.up(matrix.rows)))
    }

    /// `(√P·table[token] + norm(D^-½·model_proj·embedding))/√2` of all layers.
    pub(super) fn per_layer_inputs(&self, rec: &mut Recorder<'a>, rows: usize) {
        let (w, model) = (self.w, self.w.model);
        let (Some(global), Some(projection)) = (&model.per_layer, &w.model_proj) else { return };
        let factor = (model.config().width as f64).sqrt().recip() as f32;
        if self.is_short(rows) {
            let (y, x) = (w.per_layer.all(), w.stream.all());
            matvec::forward(rec, y, x, 0, &[projection], None, factor, None, rows);
        } else {
            let (y, x) = (w.per_layer.clone().into(), w.stream.clone().into());
            linear::frozen(&mut self.long(rec, rows), &y, &x, projection, factor);
        }
        let of_file = model.base.tensor("per_layer_token_embd").expect("such models have the table");
        let tile = Tile { first_row: 0, rows, buffer: w.table.clone(), range: None };
        let table = Weight { ty: of_file.ty, rows, cols: of_file.cols, tiles: vec![tile], bias: None };
        per_layer::forward(rec, &w.per_layer, &table, &global.proj_norm);
    }
}
