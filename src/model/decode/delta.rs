//! A gated delta net in a pass: one token continues the state token by token, more tokens continue it in chunks.

use super::Place;
use super::lengths::rows;
use super::tokens::Walk;
use crate::base::config::{Config, DeltaNet};
use crate::gpu::{Gpu, GpuError};
use crate::memory::{LayerActs, Saved};
use crate::model::DeltaLayer;
use crate::model::delta::{gate, saved};
use crate::ops::delta::{self, CHUNK, Delta};
use crate::ops::lora::Input;
use crate::ops::pass::Pass;
use crate::ops::{Rows, Weight};

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

impl Walk<'_, '_> {
    /// A delta net with its state, from the results of its products to its gated output.
    pub(super) fn delta_net(&self, p: &mut Pass, layer: usize, net: &DeltaLayer, a: &LayerActs) {
        let (d, w) = (self.decoder, self.decoder.w);
        let buffers = w.delta.as_ref().expect("the model has delta nets");
        let config = w.model.config();
        let shape = config.layers[layer].delta.expect("the layer has a delta net");
        let DeltaNet { key_heads, value_heads, head_size } = shape;
        let each = matches!(d.place, Place::Each(_));
        let bounds = if each { &w.step().bounds } else { &buffers.bounds };
        let (eps, frozen, tokens) = (config.rms_eps, &net.frozen, d.live(self.rows));
        let of_net = Delta { key_heads, value_heads, head_size, eps, frozen, bounds, tokens };
        let (state, output) = (&self.state(layer), a[Saved::DeltaOutput].rows());
        match each {
            false => delta::forward_carried(p.rec.now(), &of_net, state, &w.tokens, &saved(a), output),
            true => delta::each(p.rec.now(), &of_net, state, &w.step().table, &saved(a), output),
        }
        gate(p, net, a, value_heads);
    }

    /// The activation `name` where only delta nets have it.
    pub(super) fn of_delta_net(&self, layer: usize, name: Saved) -> Option<Rows> {
        let w = self.decoder.w;
        let (net, b) = (w.model.layers[layer].delta.as_ref()?, w.delta.as_ref()?);
        let values = net.out.cols;
        let product = |i: usize, matrix: &Weight| {
            // Kernels of more tokens read rows without anything between them.
            let alone = self.rows == 1 && self.decoder.is_short(1);
            let adapter = self.adapter(layer, Input::AttnNormed).filter(|_| alone);
            let rank = adapter.map_or(0, |adapter| adapter.rank);
            b.products[i].reshaped(matrix.rows.next_multiple_of(4) + rank)
        };
        Some(match name {
            Saved::MixerInput => product(0, &net.qkv),
            Saved::DeltaGate => product(1, &net.gate),
            Saved::Alpha => product(2, &net.alpha),
            Saved::Beta => product(3, &net.beta),
            Saved::Mixed => b.mixed.clone(),
            Saved::Decays => b.gates.clone(),
            Saved::Inverse => b.inverse.clone(),
            Saved::WU => b.wu.clone(),
            Saved::States => b.states.clone(),
            Saved::DeltaOutput => b.output.reshaped(values),
            Saved::DeltaNormed => b.normed.reshaped(values),
            _ => return None,
        })
    }
}
