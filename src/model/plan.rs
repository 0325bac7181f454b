//! A memory plan for a model that is on the device, or before it is.

use super::decode::{self, Lengths};
use super::{Model, Trainable, offload};
use crate::base::config::Rotary;
use crate::base::{Base, Module};
use crate::gpu::Gpu;
use crate::memory::{CHUNK, Demand, LEAST_CHUNK};
use crate::ops::Weight;

pub use crate::memory::{Kept, Offloaded, Passes, Plan, Recompute};

/// Which layers' experts may stay in host memory. The choice changes no bit of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Those of as few layers as [`Recompute::Within`] asks for, where recomputing every layer is not enough.
    Auto,
    /// All layers'.
    All,
    /// None.
    Never,
}

/// Layers that have experts.
pub fn with_experts(base: &Base) -> Vec<usize> {
    let layers = base.config().layers.iter().enumerate();
    layers.filter(|(_, layer)| layer.experts.is_some()).map(|(i, _)| i).collect()
}

impl Plan {
    /// A plan for a model that is on the device.
    pub fn new(gpu: &Gpu, model: &Model, adapter: &Trainable, passes: Passes) -> Plan {
        let replies = replies(gpu, model.base, adapter, passes);
        let demand = demand(gpu, model.base, adapter, model.offloaded(), model.bytes(), replies);
        Plan::of(gpu, &Demand { chunk: model.chunk, ..demand }, passes)
    }

    /// A plan before the model is on the device, where it will have rotary tables for `positions` positions. It decides which
    /// experts stay in host memory, for [`Model::offloading`].
    pub fn ahead(
        gpu: &Gpu,
        base: &Base,
        positions: usize,
        adapter: &Trainable,
        passes: Passes,
        offload: Offload,
    ) -> Plan {
        let (experts, replies) = (with_experts(base), replies(gpu, base, adapter, passes));
        let plan = |offloaded: Vec<usize>, least_chunk: usize| {
            let bytes = device_bytes(base, positions, &offloaded);
            let demand = demand(gpu, base, adapter, offloaded, bytes, replies);
            Plan::of(gpu, &Demand { least_chunk, ..demand }, passes)
        };
        match (offload, passes.recompute) {
            (Offload::All, _) => plan(experts, LEAST_CHUNK),
            (Offload::Auto, Recompute::Within(limit)) => {
                // Experts that are copied cost less time than small chunks.
                let counts = [CHUNK / 2, LEAST_CHUNK]
                    .into_iter()
                    .flat_map(|least| (0..=experts.len()).map(move |count| (count, least)));
                let mut plans = counts.map(|(count, least)| plan(offload::spread(&experts, count), least));
                let fits = plans.find(|plan| plan.total() <= limit);
                fits.unwrap_or_else(|| plan(experts.clone(), LEAST_CHUNK))
            }
            _ => plan(Vec::new(), LEAST_CHUNK),
        }
    }
}

/// The demand of `base` with the experts of the layers `offloaded` in host memory and `weights` bytes of other weights,
/// and `replies` bytes for generating replies.
fn demand<'a>(
    gpu: &Gpu,
    base: &'a Base,
    adapter: &Trainable,
    offloaded: Vec<usize>,
    weights: u64,
    replies: u64,
) -> Demand<'a> {
    let config = base.config();
    Demand {
        config,
        z: (0..config.layers.len()).map(|layer| adapter.z_widths(layer)).collect(),
        u_width: adapter.max_z_width(),
        adapter: adapter.bytes(),
        weights,
        turns: offload::device_bytes(gpu, base, &offloaded),
        replies,
        offloaded: copies(gpu, base, offloaded, adapter.lowest_layer()),
        per_layer_row: base.tensor("per_layer_token_embd").map_or(0, |table| table.row_bytes()),
        chunk: CHUNK,
        least_chunk: LEAST_CHUNK,
    }
}

/// Bytes of the longest reply that the passes' evaluations generate.
fn replies(gpu: &Gpu, base: &Base, adapter: &Trainable, passes: Passes) -> u64 {
    let context = passes.capacity.reply;
    if context == 0 {
        return 0;
    }
    let (slots, rank) = adapter.adapted();
    decode::bytes(gpu, base, Lengths { context, chunk: decode::CHUNK }, slots, rank)
}

/// Counts the bytes that passes copy where the experts of `layers` stay in host memory and backward ends at layer `lowest`.
fn copies(gpu: &Gpu, base: &Base, layers: Vec<usize>, lowest: usize) -> Offloaded {
    let bytes = |layers: &mut dyn Iterator<Item = &usize>| -> u64 {
        layers.map(|&layer| offload::layer_bytes(gpu, base, layer)).sum()
    };
    let all = bytes(&mut layers.iter());
    let backward = bytes(&mut layers.iter().filter(|layer| **layer >= lowest));
    // After forward the last layer is resident; after backward the first, if it got there.
    let last = bytes(&mut layers.last().into_iter().filter(|layer| **layer >= lowest));
    let first = bytes(&mut layers.first().into_iter().filter(|layer| **layer >= lowest));
    let (forward, training) = match layers.len() {
        1 => (0, 0), // it has its place for itself
        _ => (all, all + backward - last - first),
    };
    Offloaded { of: with_experts(base).len(), bytes: all, forward, training, layers }
}

/// Bytes that [`Model::bytes`] will return: every matrix but the per-layer embeddings and the experts of the layers `offloaded`, which
/// stay on the host, each in whole vec4s, and the rotary tables.
fn device_bytes(base: &Base, positions: usize, offloaded: &[usize]) -> u64 {
    let on_host: Vec<&str> =
        offloaded.iter().flat_map(|&layer| offload::matrices(base, layer)).map(|m| m.name).collect();
    let stays = |name: &str| name == "per_layer_token_embd" || on_host.contains(&name);
    let scores_shared = |name: &str| name.ends_with(Module::FfnGateInpShexp.gguf_name());
    let matrices = base.tensors().filter(|m| (m.rows > 1 || scores_shared(m.name)) && !stays(m.name));
    let mut tables: Vec<Rotary> = Vec::new();
    for rotary in (0..base.config().layers.len()).flat_map(|layer| base.config().rotary(layer)) {
        if !tables.contains(&rotary) {
            tables.push(rotary);
        }
    }
    let tables = tables.iter().map(|t| (positions * t.frequencies.len() * 8).next_multiple_of(16) as u64);
    matrices.map(|m| ((m.rows * m.row_bytes()) as u64).next_multiple_of(16)).chain(tables).sum()
}

impl Model<'_> {
    /// Bytes on the device, without the buffers in which offloaded experts take turns.
    pub fn bytes(&self) -> u64 {
        let mut matrices: Vec<&Weight> = vec![&self.token_embd];
        matrices.extend(&self.output);
        matrices.extend(self.per_layer.iter().flat_map(|p| &p.model_proj));
        let offloaded = self.offloaded();
        for (i, l) in self.layers.iter().enumerate() {
            matrices.extend(l.attn_q.iter().chain(&l.attn_output));
            matrices.extend(l.delta.iter().flat_map(|d| [&d.qkv, &d.gate, &d.alpha, &d.beta, &d.out]));
            matrices.extend(l.dense.iter().flat_map(|dense| [&dense.gate, &dense.up, &dense.down]));
            matrices.extend(l.attn_k.iter().chain(&l.attn_v));
            matrices.extend(l.experts.iter().flat_map(|e| e.scoring()));
            if !offloaded.contains(&i) {
                matrices.extend(l.experts.iter().flat_map(|e| e.matrices()));
            }
            matrices.extend(l.per_layer.iter().flat_map(|p| [&p.inp_gate, &p.proj]));
        }
        matrices.iter().map(|m| m.bytes()).sum::<u64>() + self.tables
    }
}
