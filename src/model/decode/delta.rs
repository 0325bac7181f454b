//! A gated delta net in a pass: one token continues the state token by token, more tokens continue it in chunks.

use super::adapter::Group;
use super::lengths::rows;
use super::{Decoder, Place};
use crate::base::config::{Activation, Config, DeltaNet};
use crate::gpu::{Gpu, GpuError, Recorder};
use crate::model::DeltaLayer;
use crate::ops::delta::{self, CHUNK, Delta, Saved};
use crate::ops::linear::with_adapter;
use crate::ops::lora::{Input, cached};
use crate::ops::matvec::{self, Down};
use crate::ops::{Rows, Unfinished, Weight, cached_gated, rms_norm};

/// The buffers of one pass that only models with delta nets need.
pub(super) struct Buffers {
    /// Products: queries, keys and values `[chunk, C]`, gates `[chunk, Hv·K]`, decays and rates `[chunk, Hv]`; and `z` of one token.
    products: [Rows; 4],
    mixed: Rows,             // [chunk, C]
    gates: Rows,             // [chunk, 2, Hv]
    inverse: Rows,           // [chunk, Hv, 64]
    wu: Rows,                // [chunk, 2, Hv, K]
    states: Rows,            // [chunk / 64, Hv, K, K]
    output: Rows,            // [chunk, Hv, K]
    pub(super) normed: Rows, // [chunk, widest]: normed output, or the gated output of attention
    bounds: wgpu::Buffer,    // [chunk, 2]
}

/// Widths of the rows of [`Buffers`], those of the states last; `None` for a model without delta nets.
fn widths(config: &Config, rank: usize) -> Option<[usize; 11]> {
    let nets: Vec<DeltaNet> = config.layers.iter().filter_map(|l| l.delta).collect();
    let widest = |of: &dyn Fn(&DeltaNet) -> usize| nets.iter().map(of).max();
    let (channels, values) = (widest(&DeltaNet::channels)?, widest(&DeltaNet::values)?);
    let heads = widest(&|net| net.value_heads)?.next_multiple_of(4);
    let states = widest(&|net| net.values() * net.head_size)?;
    let queries = config.layers.iter().map(|l| l.heads * l.head_size).max()?;
    let products = [channels, values, heads, heads].map(|width| width + rank);
    let [qkv, gate, alpha, beta] = products;
    let normed = values.max(queries);
    Some([qkv, gate, alpha, beta, channels, 2 * heads, heads * CHUNK, 2 * values, values, normed, states])
}

impl Buffers {
    /// Buffers for passes of `chunk` tokens and adapters of padded rank `rank`; `None` for a model without delta nets.
    pub fn new(gpu: &Gpu, config: &Config, chunk: usize, rank: usize) -> Result<Option<Buffers>, GpuError> {
        let Some(widths) = widths(config, rank) else { return Ok(None) };
        let rows = |width: usize| Rows::new(gpu, "delta net", chunk, width);
        let [qkv, gate, alpha, beta, mixed, gates, inverse, wu, output, normed, states] = widths;
        Ok(Some(Buffers {
            products: [rows(qkv)?, rows(gate)?, rows(alpha)?, rows(beta)?],
            mixed: rows(mixed)?,
            gates: rows(gates)?,
            inverse: rows(inverse)?,
            wu: rows(wu)?,
            states: Rows::new(gpu, "states in a pass", chunk.div_ceil(CHUNK), states)?,
            output: rows(output)?,
            normed: rows(normed)?,
            bounds: gpu.upload("bounds of a pass", &vec![[0u32, chunk as u32]; chunk])?,
        }))
    }

    /// Bytes of [`Buffers::new`].
    pub fn bytes_of(config: &Config, chunk: usize, rank: usize) -> u64 {
        let Some([tokens @ .., states]) = widths(config, rank) else { return 0 };
        let of_tokens: u64 = tokens.into_iter().map(|width| rows(chunk, width)).sum();
        of_tokens + rows(chunk.div_ceil(CHUNK), states) + 8 * chunk as u64
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        let Buffers { products, mixed, gates, inverse, wu, states, output, normed, bounds } = self;
        let rows = [mixed, gates, inverse, wu, states, output, normed];
        products.iter().chain(rows).map(|rows| rows.buffer.size()).sum::<u64>() + bounds.size()
    }
}

impl<'a> Decoder<'a> {
    /// A delta net with its state, the residual sum, and the norm before the feed-forward block.
    pub(super) fn delta_net(&self, rec: &mut Recorder<'a>, layer: usize, net: &DeltaLayer, rows: usize) {
        let (w, config) = (self.w, self.w.model.config());
        let buffers = w.delta.as_ref().expect("the model has delta nets");
        let carried = self.states[layer].as_ref().expect("the layer has a delta net");
        let live = self.live(rows);
        let shape = config.layers[layer].delta.expect("the layer has a delta net");
        let DeltaNet { key_heads, value_heads, head_size } = shape;
        let group = self.adapter.as_ref().and_then(|a| a.group(layer, Input::AttnNormed));
        let matrices = [&net.qkv, &net.gate, &net.alpha, &net.beta];
        let product = |rec: &mut Recorder<'a>, i: usize| {
            self.product(rec, group.map(|g| (g, i)), matrices[i], &buffers.products[i], rows)
        };
        let [qkv, gate, alpha, beta] = [0, 1, 2, 3].map(|i| product(rec, i));
        let each = matches!(self.place, Place::Each(_));
        let bounds = if each { &w.step().bounds } else { &buffers.bounds };
        let (eps, frozen) = (config.rms_eps, &net.frozen);
        let of_net = Delta { key_heads, value_heads, head_size, eps, frozen, bounds, tokens: live };
        let Buffers { mixed, gates, inverse, wu, states, output, normed, .. } = buffers;
        let saved = Saved {
            qkv: &qkv,
            alpha: &alpha,
            beta: &beta,
            mixed,
            gates,
            inverse,
            wu,
            states,
            values: output,
        };
        match self.place {
            Place::Alone => delta::forward_carried(rec, &of_net, carried, &w.tokens, &saved, output),
            Place::One(of) => {
                delta::forward_carried(rec, &of_net, &carried.sequence(of), &w.tokens, &saved, output);
            }
            Place::Each(_) => delta::each(rec, &of_net, carried, &w.step().table, &saved, output),
        }
        let (of_heads, normed_heads) = (output.reshaped(head_size), normed.reshaped(head_size));
        rms_norm::plain::forward(rec, &normed_heads, &of_heads, &net.norm, None, 1.0, rows * value_heads);
        let (gated, normed) = (w.wide.reshaped(shape.values()), normed.reshaped(shape.values()));
        let gate = Unfinished::of(&gate, None);
        cached_gated::forward(rec, &gated, &gate, normed.all(), Activation::Silu, rows, None);
        let y = self.products(rec, layer, Input::Attention, &gated, &[&net.out], rows);
        self.attention_end(rec, layer, &y, rows);
    }

    /// The product of the normed stream with one matrix, with the term of its adapter: member of a group by its index.
    fn product(
        &self,
        rec: &mut Recorder<'a>,
        adapter: Option<(&Group, usize)>,
        matrix: &Weight,
        y: &Rows,
        rows: usize,
    ) -> Rows {
        let w = self.w;
        let z_offset = matrix.rows.next_multiple_of(4);
        let of_member = adapter.map(|(group, i)| (group, i, group.member(i)));
        // Kernels of more tokens read rows without anything between them.
        if rows > 1 || !self.is_short(rows) {
            let y = y.reshaped(z_offset);
            let z = w.z.reshaped(of_member.as_ref().map_or(0, |(group, ..)| group.rank));
            let adapter = of_member.as_ref();
            let adapter = adapter.map(|(group, _, (a, b))| with_adapter::Applied { a, b, rank: group.rank });
            with_adapter::forward(&mut self.long(rec, rows), &y, &w.normed, &[matrix], adapter, &z);
            self.biases(rec, &y, &[matrix], rows);
            return y;
        }
        let y = y.reshaped(z_offset + of_member.as_ref().map_or(0, |(group, ..)| group.rank));
        let down = of_member.as_ref().map(|(_, _, (a, _))| Down { a, z_offset });
        matvec::forward(rec, y.all(), w.normed.all(), 0, &[matrix], down.as_ref(), 1.0, None, rows);
        self.biases(rec, &y, &[matrix], rows);
        if let Some((group, i, _)) = of_member {
            cached::forward(rec, y.all(), &group.up(z_offset), i, z_offset, matrix.rows, rows);
        }
        y
    }

    /// Adds the term to the products of `matrices`, for readers that do not.
    pub(super) fn add_terms(
        &self,
        rec: &mut Recorder<'a>,
        y: Unfinished,
        matrices: &[&Weight],
        rows: usize,
    ) -> Rows {
        let mut column = 0;
        for (i, matrix) in matrices.iter().enumerate() {
            if let Some(up) = &y.term {
                let z_offset = up.z_offset + i * up.rank;
                cached::forward(rec, y.rows.from(column), up, i, z_offset, matrix.rows, rows);
            }
            column += matrix.rows;
        }
        y.rows
    }
}
