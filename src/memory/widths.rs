//! The widths that buffers of a layer have.

use crate::base::config::{Config, DeltaNet, Experts};
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
    /// `G·K` where the layer makes its own keys.
    pub own_keys: usize,
    /// `G·K` where later layers read this layer's keys and values too.
    pub shared_keys: usize,
    /// `G·K` where the layer has a matrix for its values.
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
            own_keys,
            shared_keys: if is_donor { own_keys } else { 0 },
            own_values: if l.k_eq_v { 0 } else { own_keys },
            joint_keys: if l.k_eq_v { own_keys } else { 0 },
            ffn: l.ffn_width,
            experts: l.experts,
            per_layer: config.per_layer_width,
            z,
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
            own_keys: self.own_keys.max(other.own_keys),
            shared_keys: self.shared_keys.max(other.shared_keys),
            own_values: self.own_values.max(other.own_values),
            joint_keys: self.joint_keys.max(other.joint_keys),
            ffn: self.ffn.max(other.ffn),
            experts: self.experts.or(other.experts), // all layers that have experts have the same
            per_layer: self.per_layer.max(other.per_layer),
            z: PerInput::new(|input| self.z[input].max(other.z[input])),
        }
    }

    /// The width that `of` gives for the delta net; 0 without.
    pub fn delta_width(&self, of: fn(&DeltaNet) -> usize) -> usize {
        self.delta.as_ref().map_or(0, of)
    }

    /// Columns of the input of the output projection, where that is not attention's output itself.
    pub fn gated(&self) -> usize {
        self.output_gates.max(self.delta_width(DeltaNet::values))
    }

    /// Padded rank of the experts' adapters; 0 where they have none.
    pub fn experts_rank(&self) -> usize {
        self.z[Input::ExpertsNormed].max(self.z[Input::ExpertsGated])
    }
}
