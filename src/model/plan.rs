//! A memory plan for a model that is on the device, or before it is.

use super::decode::{self, Lengths};
use super::offload::{HostWeights, Sizes};
use super::{Model, Trainable, offload};
use crate::base::config::Rotary;
use crate::base::{Base, Module};
use crate::data::batch::{Capacity, Together};
use crate::gpu::Gpu;
use crate::memory::{CHUNK, Demand, LEAST_CHUNK};

pub use crate::memory::{Kept, Offloaded, OnHost, Passes, Plan, Recompute, Saves};

/// The share of something that may stay in host memory. The choice changes no bit of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// As much as makes the run fastest under [`Recompute::Within`], or fit.
    Auto,
    /// That of so many layers.
    Layers(usize),
    /// All.
    All,
    /// None.
    Never,
}

/// Everything that may stay in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// The experts of layers.
    pub experts: Share,
    /// The other matrices of layers.
    pub layers: Share,
    /// The inputs of layers between forward and backward; [`Share::Layers`] means all. With [`Share::Auto`] the results of attention and of
    /// feed-forward blocks too.
    pub inputs: Share,
}

impl Offload {
    /// Whatever makes the run fastest, or fit.
    pub const AUTO: Offload = Offload { experts: Share::Auto, layers: Share::Auto, inputs: Share::Auto };
    /// All experts, and nothing else.
    pub const EXPERTS: Offload = Offload { experts: Share::All, ..Offload::NEVER };
    /// Nothing.
    pub const NEVER: Offload = Offload { experts: Share::Never, layers: Share::Never, inputs: Share::Never };

    /// The contents of host memory where no memory limit applies.
    pub fn without_limit(self, base: &Base) -> OnHost {
        let [experts, layers] = [with_experts(base), (0..base.config().layers.len()).collect()];
        let of = |share: Share, all: &[usize]| offload::spread(all, share.counts(all.len(), false)[0]);
        let saves = match self.inputs {
            Share::All | Share::Layers(_) => Saves::Inputs,
            Share::Auto | Share::Never => Saves::None,
        };
        OnHost { experts: of(self.experts, &experts), layers: of(self.layers, &layers), saves }
    }
}

/// Layer counts that are tried.
const TRIES: usize = 24;

impl Share {
    /// The numbers of layers, of `all`, that are tried, in order; `is_limited` where [`Share::Auto`] may choose.
    fn counts(self, all: usize, is_limited: bool) -> Vec<usize> {
        match self {
            Share::Auto if is_limited => {
                let mut counts: Vec<usize> = (0..all).step_by(all.div_ceil(TRIES).max(1)).collect();
                counts.push(all);
                counts
            }
            Share::Auto | Share::Never => vec![0],
            Share::Layers(count) => vec![count.min(all)],
            Share::All => vec![all],
        }
    }
}

/// Layers that have experts.
pub fn with_experts(base: &Base) -> Vec<usize> {
    let layers = base.config().layers.iter().enumerate();
    layers.filter(|(_, layer)| layer.experts.is_some()).map(|(i, _)| i).collect()
}

impl Plan {
    /// A plan for a model that is on the device.
    pub fn new(gpu: &Gpu, model: &Model, adapter: &Trainable, passes: Passes) -> Plan {
        fitting(gpu, model.base, passes, |passes| Plan::loaded(gpu, model, adapter, passes))
    }

    fn loaded(gpu: &Gpu, model: &Model, adapter: &Trainable, passes: Passes) -> Plan {
        let replies = replies(gpu, model.base, adapter, passes);
        let sizes = Sizes::of(gpu, model.base);
        let turns = model.offload.as_ref().map_or(0, HostWeights::device_bytes);
        let bytes = [model.bytes(), turns, replies];
        let demand = demand(model.base, &sizes, adapter, model.on_host().clone(), bytes);
        Plan::of(gpu, &Demand { chunk: model.chunk, least_parts: model.parts, ..demand }, passes)
    }

    /// A plan before the model is on the device, where it will have rotary tables for `positions` positions. It decides what stays in host
    /// memory, for [`Model::offloading`]: of the plans that fit the fastest, as far as can be told, or else the smallest.
    pub fn ahead(
        gpu: &Gpu,
        base: &Base,
        positions: usize,
        adapter: &Trainable,
        passes: Passes,
        offload: Offload,
    ) -> Plan {
        let plan = |passes| Plan::not_loaded(gpu, (base, positions), adapter, passes, offload);
        fitting(gpu, base, passes, plan)
    }

    fn not_loaded(
        gpu: &Gpu,
        (base, positions): (&Base, usize),
        adapter: &Trainable,
        passes: Passes,
        offload: Offload,
    ) -> Plan {
        let replies = replies(gpu, base, adapter, passes);
        let sizes = Sizes::of(gpu, base);
        let all = device_bytes(base, positions);
        let plan = |on_host: &OnHost| {
            let bytes = [all - sizes.off_device(on_host), sizes.device_bytes(on_host), replies];
            Plan::of(gpu, &demand(base, &sizes, adapter, on_host.clone(), bytes), passes)
        };
        let limit = match passes.recompute {
            Recompute::Within(limit) => limit,
            _ => u64::MAX,
        };
        let fits = |plan: &Plan| plan.total() <= limit;
        let choices = choices(gpu, base, offload, limit < u64::MAX);
        let first = plan(&choices[0]);
        if choices.len() == 1 || fits(&first) && first.cost == 0 {
            return first;
        }
        // The last choices leave the least on the device.
        let last = choices[choices.len() - MOST_SAVES.min(choices.len())..].iter().map(plan);
        let smallest = last.chain([first]).min_by_key(Plan::total).expect("there are plans");
        if !fits(&smallest) {
            return smallest;
        }
        choices.iter().map(plan).filter(fits).min_by_key(|plan| plan.cost).unwrap_or(smallest)
    }
}

/// The plan of `passes` with as many sequences generated at once as fit, or as cost no time in training unless they come first. Their
/// number changes no bit of the result.
fn fitting(gpu: &Gpu, base: &Base, passes: Passes, plan: impl Fn(Passes) -> Plan) -> Plan {
    let wanted = passes.capacity.sequences;
    let with = |count: usize| {
        let sequences = Together { count, ..wanted };
        plan(Passes { capacity: Capacity { sequences, ..passes.capacity }, ..passes })
    };
    let lengths = Lengths { context: wanted.context, chunk: decode::CHUNK };
    let most = match wanted.count {
        0 => 0,
        count => decode::sequences_that_fit(gpu, base.config(), lengths, count, u64::MAX),
    };
    let Recompute::Within(limit) = passes.recompute else { return with(most) };
    if most <= 1 {
        return with(most);
    }
    let least = with(1);
    let is_good = |found: &Plan| found.total() <= limit && (wanted.comes_first || found.cost <= least.cost);
    let fewer = std::iter::successors(Some(most), |count| (*count > 1).then_some(count / 2));
    fewer.map(with).find(is_good).unwrap_or(least)
}

/// Ways to save activations, which the last choices differ by.
const MOST_SAVES: usize = 3;

/// The contents of host memory that come into question, first the least: experts before other matrices.
fn choices(gpu: &Gpu, base: &Base, offload: Offload, is_limited: bool) -> Vec<OnHost> {
    let with_experts = with_experts(base);
    let layers: Vec<usize> = (0..base.config().layers.len()).collect();
    let experts = offload.experts.counts(with_experts.len(), is_limited);
    let others = offload.layers.counts(layers.len(), is_limited);
    let all_experts = *experts.last().expect("a count");
    let of_experts = experts.iter().map(|&count| (count, others[0]));
    let of_layers = others.iter().skip(1).map(|&count| (all_experts, count));
    let saves: &[Saves] = match offload.inputs {
        Share::Auto if is_limited && gpu.has_host_buffers() => &[Saves::None, Saves::Inputs, Saves::Results],
        Share::Auto | Share::Never => &[Saves::None],
        Share::All | Share::Layers(_) => &[Saves::Inputs],
    };
    let on_host = |(experts, others): (usize, usize), saves: Saves| OnHost {
        experts: offload::spread(&with_experts, experts),
        layers: offload::spread(&layers, others),
        saves,
    };
    of_experts
        .chain(of_layers)
        .flat_map(|counts| saves.iter().map(move |&saves| on_host(counts, saves)))
        .collect()
}

/// The demand of `base` with bytes of weights beside those in host memory, of the buffers in which these take turns, and for generating
/// replies.
fn demand<'a>(
    base: &'a Base,
    sizes: &Sizes,
    adapter: &Trainable,
    on_host: OnHost,
    [weights, turns, replies]: [u64; 3],
) -> Demand<'a> {
    let config = base.config();
    Demand {
        config,
        z: (0..config.layers.len()).map(|layer| adapter.z_widths(layer)).collect(),
        u_width: adapter.max_u_width(),
        adapter: adapter.bytes(),
        weights,
        turns,
        replies,
        offloaded: copies(base, sizes, on_host, adapter.lowest_layer()),
        per_layer_row: base.tensor("per_layer_token_embd").map_or(0, |table| table.row_bytes()),
        chunk: CHUNK,
        least_chunk: LEAST_CHUNK,
        least_parts: 1,
    }
}

/// Bytes of the longest reply that the passes' evaluations generate, or of the sequences that are drawn.
fn replies(gpu: &Gpu, base: &Base, adapter: &Trainable, passes: Passes) -> u64 {
    let (slots, rank) = adapter.adapted();
    let lengths = |context: usize| Lengths { context, chunk: decode::CHUNK };
    let of_reply = match passes.capacity.reply {
        0 => 0,
        context => decode::bytes(gpu, base, lengths(context), slots, rank),
    };
    let of_sequences = match passes.capacity.sequences {
        Together { count: 0, .. } => 0,
        Together { count, context, .. } => {
            decode::bytes_of_sequences(gpu, base, lengths(context), count, slots, rank)
        }
    };
    of_reply.max(of_sequences)
}

/// Counts the bytes that passes copy where backward ends at layer `lowest`.
fn copies(base: &Base, sizes: &Sizes, on_host: OnHost, lowest: usize) -> Offloaded {
    let layers = on_host.of_layers();
    let each: Vec<u64> = layers.iter().map(|&layer| sizes.layer_bytes(&on_host, layer)).collect();
    let all: u64 = each.iter().sum();
    let is_trained = |i: &usize| layers[*i] >= lowest;
    let of = |range: std::ops::Range<usize>| -> u64 { range.filter(is_trained).map(|i| each[i]).sum() };
    let count = layers.len();
    // After forward the last two layers are resident; after backward the first two, if it got there.
    let (last, first) = (of(count.saturating_sub(2)..count), of(0..count.min(2)));
    let (forward, training) = match count {
        0..=2 => (0, 0), // each has its place for itself
        _ => (all, all + of(0..count) - last - first),
    };
    let of_layers = base.config().layers.len();
    Offloaded { of: with_experts(base).len(), of_layers, bytes: all, forward, training, saves: 0, on_host }
}

/// Bytes of all of `base` on the device: every matrix but the per-layer embeddings, each in whole vec4s, and the rotary tables.
fn device_bytes(base: &Base, positions: usize) -> u64 {
    let stays = |name: &str| name == "per_layer_token_embd";
    let scores_shared = |name: &str| name.ends_with(Module::FfnGateInpShexp.gguf_name());
    let matrices = base.tensors().filter(|m| (m.rows > 1 || scores_shared(m.name)) && !stays(m.name));
    let mut tables: Vec<Rotary> = Vec::new();
    for rotary in (0..base.config().layers.len()).flat_map(|layer| base.config().rotary(layer, positions)) {
        if !tables.contains(&rotary) {
            tables.push(rotary);
        }
    }
    let tables = tables.iter().map(|t| (positions * t.frequencies.len() * 8).next_multiple_of(16) as u64);
    matrices.map(|m| m.planes_bytes(m.rows) as u64).chain(tables).sum()
}

impl Model<'_> {
    /// Bytes on the device, without the buffers in which matrices from host memory take turns.
    pub fn bytes(&self) -> u64 {
        let off_device = self.offload.as_ref().map_or(0, HostWeights::off_device);
        device_bytes(self.base, self.positions) - off_device
    }
}
