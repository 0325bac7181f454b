//! The widths that buffers of a layer have.

use crate::base::config::{Config, DeltaNet, Experts, LayerConfig};
use crate::gpu::Gpu;
use crate::ops::delta;
use crate::ops::lora::{Input, PerInput};

/// Widths of one layer's activations, in values per token; 0 where the layer has no such activation.
#[derive(Clone, Debug, Default)]
pub struct LayerWidths {
    /// Model width `D`.
    pub width: usize,
    /// Query heads `H`, rounded up to a multiple of 4.
    pub heads: usize,
    /// `H·K`.
    pub queries: usize,
    /// `H·K` where attention's output has gates.
    pub output_gates: usize,
    /// The delta net in the place of attention.
    pub delta: Option<DeltaNet>,
    /// Columns of the delta net's own buffers.
    pub of_delta: delta::Widths,
    /// Channels of the short convolution in the place of attention.
    pub short_conv: usize,
    /// Columns of latent vectors and of what is made of them.
    pub latent: LatentWidths,
    /// `G·K` where the layer makes its own keys.
    pub own_keys: usize,
    /// `G·K` where later layers read this layer's keys and values too.
    pub shared_keys: usize,
    /// `G·K` where the layer has a matrix for its values, of its normed input.
    pub own_values: usize,
    /// `G·K` where the keys are the values too.
    pub joint_keys: usize,
    /// Feed-forward width `F`.
    pub ffn: usize,
    /// The experts beside the feed-forward block.
    pub experts: Option<Experts>,
    /// Width `P` of the per-layer branch.
    pub per_layer: usize,
    /// Columns of `z = A·x` by input.
    pub z: PerInput<usize>,
    /// Parts that the heads of attention or of the delta net, or the channels of the short convolution, are divided into. Widths of theirs are
    /// those of a part, apart from keys' and values'.
    pub parts: usize,
    /// Columns of the results of all heads, where there are several parts.
    pub staged: Staged,
}

/// Columns of latent vectors and of what is made of them; 0 where each head has keys and values of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct LatentWidths {
    /// Latent vector of queries `Rq`.
    pub query_rank: usize,
    /// Latent vector of keys and values `Rk`.
    pub rank: usize,
    /// That, and the turned part of keys `n + Rk`.
    pub both: usize,
    /// Keys without their turned part `H·(K − n)`.
    pub keys: usize,
    /// Values `H·V`, where these are narrower than keys.
    pub narrow_values: usize,
}

impl LatentWidths {
    fn of(l: &LayerConfig) -> LatentWidths {
        let Some(latent) = &l.latent else { return LatentWidths::default() };
        let values = l.attention_width();
        LatentWidths {
            query_rank: latent.query_rank.unwrap_or(0),
            rank: latent.rank,
            both: latent.both(),
            keys: l.heads * latent.key_size,
            narrow_values: if values < l.heads * l.head_size { values } else { 0 },
        }
    }

    /// The widest.
    pub fn widest(&self) -> usize {
        self.query_rank.max(self.both).max(self.keys).max(self.narrow_values)
    }

    /// The larger of each.
    fn max(&self, other: &LatentWidths) -> LatentWidths {
        LatentWidths {
            query_rank: self.query_rank.max(other.query_rank),
            rank: self.rank.max(other.rank),
            both: self.both.max(other.both),
            keys: self.keys.max(other.keys),
            narrow_values: self.narrow_values.max(other.narrow_values),
        }
    }
}

/// Columns over all heads of what products read and write in attention or a delta net; 0 where its heads are in one part.
#[derive(Clone, Copy, Debug, Default)]
pub struct Staged {
    /// Queries, with the gates of attention's output where it has any, queries, keys and values of a delta net, or input and gates of a short
    /// convolution.
    pub input: usize,
    /// Gates of a delta net's output.
    pub gate: usize,
    /// Decays of a delta net, and its rates.
    pub rates: usize,
    /// Input of the output projection.
    pub output: usize,
    /// Keys of a part `G·K`, of attention.
    pub part_keys: usize,
}

impl LayerWidths {
    /// The widths of layer `layer` with adapters whose `z` are as wide as `z` says.
    pub fn of(gpu: &Gpu, config: &Config, layer: usize, z: PerInput<usize>) -> LayerWidths {
        let l = &config.layers[layer];
        let own_keys = if l.kv_donor.is_none() { l.kv_heads * l.head_size } else { 0 };
        let is_donor = config.layers.iter().any(|other| other.kv_donor == Some(layer));
        LayerWidths {
            width: config.width,
            heads: l.heads.next_multiple_of(4),
            queries: l.heads * l.head_size,
            output_gates: if l.output_gate { l.heads * l.head_size } else { 0 },
            delta: l.delta,
            of_delta: l.delta.map(|net| delta::Widths::of(gpu, &net)).unwrap_or_default(),
            short_conv: l.short_conv.map_or(0, |conv| conv.channels),
            latent: LatentWidths::of(l),
            own_keys,
            shared_keys: if is_donor { own_keys } else { 0 },
            own_values: if l.k_eq_v || l.latent.is_some() { 0 } else { own_keys },
            joint_keys: if l.k_eq_v { own_keys } else { 0 },
            ffn: l.ffn_width,
            experts: l.experts,
            per_layer: config.per_layer_width,
            z,
            parts: 1,
            staged: Staged::default(),
        }
    }

    /// The widths where the heads of `layer` are divided into `parts` parts.
    pub fn in_parts(&self, gpu: &Gpu, layer: &LayerConfig, parts: usize) -> LayerWidths {
        if parts <= 1 {
            return self.clone();
        }
        let part = |net: DeltaNet| DeltaNet {
            key_heads: net.key_heads / parts,
            value_heads: net.value_heads / parts,
            ..net
        };
        let delta = self.delta.map(part);
        LayerWidths {
            heads: (layer.heads / parts).next_multiple_of(4),
            queries: self.queries / parts,
            output_gates: self.output_gates / parts,
            delta,
            of_delta: delta.map(|net| delta::Widths::of(gpu, &net)).unwrap_or_default(),
            short_conv: self.short_conv / parts,
            parts,
            staged: Staged {
                input: self.mixer_input().max(self.queries),
                gate: self.delta_width(DeltaNet::values),
                rates: self.delta_width(|delta| delta.value_heads),
                output: self.gated().max(self.queries),
                part_keys: layer.kv_heads.div_ceil(parts) * layer.head_size,
            },
            ..self.clone()
        }
    }

    /// The largest of each width of `layers`.
    pub fn widest(layers: &[LayerWidths]) -> LayerWidths {
        layers.iter().fold(LayerWidths::default(), |widest, layer| widest.max(layer))
    }

    /// The larger of each width.
    fn max(&self, other: &LayerWidths) -> LayerWidths {
        LayerWidths {
            width: self.width.max(other.width),
            heads: self.heads.max(other.heads),
            queries: self.queries.max(other.queries),
            output_gates: self.output_gates.max(other.output_gates),
            delta: self.delta.or(other.delta), // all layers that have one have the same
            of_delta: if self.delta.is_some() { self.of_delta } else { other.of_delta },
            short_conv: self.short_conv.max(other.short_conv),
            latent: self.latent.max(&other.latent),
            own_keys: self.own_keys.max(other.own_keys),
            shared_keys: self.shared_keys.max(other.shared_keys),
            own_values: self.own_values.max(other.own_values),
            joint_keys: self.joint_keys.max(other.joint_keys),
            ffn: self.ffn.max(other.ffn),
            experts: self.experts.or(other.experts), // all layers that have experts have the same
            per_layer: self.per_layer.max(other.per_layer),
            z: PerInput::new(|input| self.z[input].max(other.z[input])),
            parts: self.parts.max(other.parts),
            staged: self.staged.max(&other.staged),
        }
    }

    /// The width that `of` gives for the delta net; 0 without.
    pub fn delta_width(&self, of: fn(&DeltaNet) -> usize) -> usize {
        self.delta.as_ref().map_or(0, of)
    }

    /// Columns of the input of the output projection, where that is not attention's output itself.
    pub fn gated(&self) -> usize {
        let of_states = self.delta_width(DeltaNet::values).max(self.short_conv);
        self.output_gates.max(of_states).max(self.latent.narrow_values)
    }

    /// Columns of queries and gates, of a delta net's queries, keys and values, or of a short convolution's input and gates: a layer has
    /// one of them.
    pub fn mixer_input(&self) -> usize {
        self.delta_width(DeltaNet::channels).max(2 * self.output_gates).max(3 * self.short_conv)
    }

    /// Columns of the gradients of raw queries, beside those of [`LayerWidths::mixer_input`]: of attention in parts they outlive a part.
    pub fn kept_queries(&self) -> usize {
        if self.parts > 1 { self.queries } else { 0 }
    }

    /// Columns of raw keys, which those of latent vectors do not have.
    pub fn raw_keys(&self) -> usize {
        if self.latent.rank > 0 { 0 } else { self.own_keys }
    }

    /// Columns of whole keys of latent vectors.
    pub fn whole_keys(&self) -> usize {
        if self.latent.rank > 0 { self.own_keys } else { 0 }
    }

    /// Padded rank of the experts' adapters; 0 where they have none.
    pub fn experts_rank(&self) -> usize {
        self.z[Input::ExpertsNormed].max(self.z[Input::ExpertsGated])
    }
}

impl Staged {
    /// The larger of each.
    fn max(&self, other: &Staged) -> Staged {
        Staged {
            input: self.input.max(other.input),
            gate: self.gate.max(other.gate),
            rates: self.rates.max(other.rates),
            output: self.output.max(other.output),
            part_keys: self.part_keys.max(other.part_keys),
        }
    }
}
