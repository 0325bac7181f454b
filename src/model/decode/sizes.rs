//! Sizes of the buffers of replies, so that a plan can count them before there are any.

use super::lengths::{Lengths, buffer, rows};
use super::step::{STEP, Step};
use super::{adapter, delta, latent, state_shape};
use crate::adapter::lora::Slot;
use crate::base::config::{Config, Experts, LayerConfig};
use crate::base::{Base, Tensor};
use crate::gpu::Gpu;
use crate::memory::{ExpertActs, ExpertScratch, LayerWidths, Storages};
use crate::model::Model;
use crate::ops::cached_attention::Parts;
use crate::ops::delta::Carried;
use crate::ops::lora::{Input, PerInput};
use crate::ops::matvec;
use crate::ops::matvec::integers::Integers;
use crate::ops::pass::Operands;

/// Bytes of sequences on a device that does not tell how much memory it has.
const UNTOLD: u64 = 4 << 30;

/// Widths and numbers of rows of the buffers of one pass.
pub(super) struct Sizes {
    pub lengths: Lengths,
    /// Rank on the device.
    pub rank: usize,
    /// Products of one input.
    pub products: usize,
    /// Outputs of attention and short convolutions, gates, and values of delta nets.
    pub wide: usize,
    /// Query heads, and their columns.
    pub queries: [usize; 2],
    pub storages: Storages,
    /// Whether products of long passes read packed operands.
    pub packs: bool,
    /// Rows of the per-layer branch, which only short passes use.
    pub branch_rows: usize,
    pub experts: Option<(Experts, LayerWidths)>,
}

impl Sizes {
    /// `least` is the number of rows of the shortest pass.
    pub fn new(gpu: &Gpu, config: &Config, lengths: Lengths, rank: usize, least: usize) -> Sizes {
        let chunk = lengths.chunk.clamp(1, lengths.context).max(least);
        let rank = adapter::padded(gpu, rank);
        let (d, p) = (config.width, config.per_layer_width);
        let widest = |of: &dyn Fn(&LayerConfig) -> usize| {
            config.layers.iter().map(of).max().expect("a model has layers")
        };
        let products = widest(&|l| {
            let queries = if l.output_gate { 2 * l.heads } else { l.heads };
            let heads = (queries + if l.kv_donor.is_none() { 2 * l.kv_heads } else { 0 }) * l.head_size;
            let of_latent = l.latent.map_or(0, |latent| latent.query_rank.unwrap_or(0) + latent.both());
            let of_conv = 3 * l.short_conv.map_or(0, |conv| conv.channels);
            heads.max(2 * l.ffn_width).max(d).max(p).max(of_conv).max(l.heads * l.head_size + of_latent)
        });
        let wide = widest(&|l| {
            let of_state = l.delta.map(|net| net.values()).or(l.short_conv.map(|conv| conv.channels));
            let of_latent = l.latent.map_or(0, |latent| latent.query_rank.unwrap_or(0).max(latent.rank));
            (l.heads * l.head_size).max(l.ffn_width).max(p).max(of_state.unwrap_or(0)).max(of_latent)
        });
        let of_experts = |shape: Experts| {
            // The router and a shared expert's score read the same input.
            let members = |input| if shape.scores_shared() && input == Input::RouterNormed { 2 } else { 1 };
            let z = PerInput::new(|input| members(input) * rank);
            (shape, LayerWidths { width: d, z, ..LayerWidths::default() })
        };
        let tiles = gpu.kernels().reads_tiles();
        Sizes {
            lengths: Lengths { chunk, ..lengths },
            rank,
            products,
            wide,
            queries: [widest(&|l| l.heads), widest(&|l| l.heads * l.head_size)],
            storages: Storages {
                blocks: false,
                tiles,
                masked: false,
                heads: false,
                raw_heads: false,
                parted: false,
            },
            packs: tiles && chunk > matvec::MAX_ROWS,
            branch_rows: if p > 0 { matvec::MAX_ROWS } else { 0 },
            experts: config.layers.iter().find_map(|l| l.experts).map(of_experts),
        }
    }

    /// Columns of `z` of one input: queries, keys and values have the most matrices.
    pub fn z(&self) -> usize {
        3 * self.rank
    }

    /// Columns of the rows that products read as integers: the stream's, and those of gates. `None` where none does.
    pub fn integers(&self, gpu: &Gpu, config: &Config) -> Option<[usize; 2]> {
        let whole = |width: usize| width.next_multiple_of(32);
        gpu.kernels().bytes().then(|| [whole(config.width), whole(self.wide)])
    }

    /// Bytes of packed operands.
    pub fn operands(&self, width: usize) -> u64 {
        match self.packs {
            true => Operands::bytes(self.lengths.chunk, self.wide.max(width), 0, self.z()),
            false => 0,
        }
    }

    /// Bytes of the buffers of experts, with their input of `width` columns.
    pub fn experts(&self, gpu: &Gpu, width: usize) -> u64 {
        let chunk = self.lengths.chunk;
        self.experts.as_ref().map_or(0, |(shape, widths)| {
            ExpertActs::bytes(gpu, shape, widths, chunk)
                + ExpertScratch::bytes(gpu, self.storages, shape, width, chunk, self.rank)
                + rows(chunk, width)
        })
    }

    /// Bytes of a pass over `base`.
    fn bytes(&self, gpu: &Gpu, base: &Base) -> u64 {
        let config = base.config();
        let (chunk, d, z) = (self.lengths.chunk, config.width, self.z());
        let table = base.tensor("per_layer_token_embd").map_or(0, |m: Tensor| m.planes_bytes(chunk));
        let per_layer = config.layers.len() * config.per_layer_width;
        let widths = [d, d, per_layer, self.products + z, self.wide, z];
        let model_proj = base.tensor("per_layer_model_proj").map_or(0, |m| m.planes_bytes(m.rows));
        let [heads, queries] = self.queries;
        widths.into_iter().map(|width| rows(chunk, width)).sum::<u64>()
            + rows(self.branch_rows, d + z)
            + rows(1, config.vocab)
            + buffer(table + 16)
            + if model_proj > 0 { buffer(model_proj) } else { 0 }
            + self.integers(gpu, config).map_or(0, |widths| widths.map(Integers::bytes_of).iter().sum())
            + self.operands(d)
            + self.experts(gpu, d)
            + delta::Buffers::bytes_of(config, chunk, self.rank)
            + latent::Buffers::bytes_of(config, chunk)
            + Parts::bytes_of(gpu, heads, queries)
    }
}

/// Bytes of replies over `base` with an adapter of the sorted `slots` and of rank `rank`: the buffers of a pass, and one sequence.
pub fn bytes(gpu: &Gpu, base: &Base, lengths: Lengths, slots: &[Slot], rank: usize) -> u64 {
    let config = base.config();
    let sizes = Sizes::new(gpu, config, lengths, rank, 1);
    let caches = (0..config.layers.len()).map(|layer| sizes.lengths.cache_bytes(config, layer));
    let states = config.layers.iter().filter_map(state_shape);
    let states = states.map(|[channels, values, size]| Carried::bytes(channels, values, size));
    sizes.bytes(gpu, base)
        + caches.sum::<u64>()
        + states.sum::<u64>()
        + adapter::bytes(config, slots, sizes.rank)
}

/// [`bytes()`] for `sequences` sequences at once.
pub fn bytes_of_sequences(
    gpu: &Gpu,
    base: &Base,
    lengths: Lengths,
    sequences: usize,
    slots: &[Slot],
    rank: usize,
) -> u64 {
    let config = base.config();
    let sizes = Sizes::new(gpu, config, lengths, rank, STEP);
    sizes.bytes(gpu, base)
        + Step::bytes_of(config)
        + sequences as u64 * bytes_of_one(config, sizes.lengths)
        + adapter::bytes(config, slots, sizes.rank)
}

/// Bytes of one of several sequences.
fn bytes_of_one(config: &Config, lengths: Lengths) -> u64 {
    let caches = (0..config.layers.len()).map(|layer| lengths.cache_bytes_of_each(config, layer));
    let states = config.layers.iter().filter_map(state_shape);
    let states = states.map(|shape| Carried::bytes_of_each(shape).iter().sum::<u64>());
    caches.sum::<u64>() + states.sum::<u64>()
}

/// Sequences, at least one and at most `wanted` and [`STEP`], whose caches and states fit the device's bindings, and `room` bytes in all.
pub(in crate::model) fn sequences_that_fit(
    gpu: &Gpu,
    config: &Config,
    lengths: Lengths,
    wanted: usize,
    room: u64,
) -> usize {
    let lengths = Sizes::new(gpu, config, lengths, 0, STEP).lengths;
    let caches = (0..config.layers.len()).map(|layer| lengths.cache_bytes_of_each(config, layer));
    let states = config.layers.iter().filter_map(state_shape).flat_map(Carried::bytes_of_each);
    let largest = caches.chain(states).max().unwrap_or(1).max(1);
    let fit = (gpu.max_binding_bytes() / largest).min(room / bytes_of_one(config, lengths).max(1));
    wanted.min(STEP).min(fit as usize).max(1)
}

/// Sequences, at least one and at most `wanted`, that fit beside `model` into nine tenths of the device's memory, `times` over.
pub fn sequences_beside(
    gpu: &Gpu,
    model: &Model,
    lengths: Lengths,
    rank: usize,
    [wanted, times]: [usize; 2],
) -> usize {
    let others = model.bytes() + bytes_of_sequences(gpu, model.base, lengths, 0, &[], rank);
    let room = match gpu.memory() {
        Some(memory) => (memory / 10 * 9).saturating_sub(others),
        None => UNTOLD,
    };
    sequences_that_fit(gpu, model.config(), lengths, wanted, room / times as u64)
}
