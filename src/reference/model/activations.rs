//! The activations of a pass, which the model's backward reads.

use std::collections::BTreeMap;

use crate::adapter::lora::Slot;
use crate::reference::delta::net::Projected;
use crate::reference::{Routing, experts};

/// The activations that backward needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activations {
    /// The residual stream, `L + 1` times `[T, D]`: the scaled embeddings, then the output of every layer.
    pub hidden: Vec<Vec<f64>>,
    /// Per-layer inputs, `L` times `[T, P]`; empty if `P` is 0.
    pub per_layer_inputs: Vec<Vec<f64>>,
    /// Activations within the layers, `L`.
    pub layers: Vec<LayerActivations>,
    /// `x·Aᵀ` of every adapted slot, `[T, R]`.
    pub z: BTreeMap<Slot, Vec<f64>>,
    /// The final residual stream in the loss rows, `[N, D]`.
    pub head: Vec<f64>,
    /// Logits of the loss rows before the softcap, `[N, V]`.
    pub logits: Vec<f64>,
}

/// Activations within one layer. A projection is named after its matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerActivations {
    /// Input of the query, key and value projections, `[T, D]`.
    pub attn_normed: Vec<f64>,
    /// Queries before `attn_q_norm`, `[T, H, K]`.
    pub attn_q: Vec<f64>,
    /// Keys before `attn_k_norm`, `[T, G, K]`; empty on layers with a donor.
    pub attn_k: Vec<f64>,
    /// Values before the weightless norm, `[T, G, K]`; empty on layers with a donor.
    pub attn_v: Vec<f64>,
    /// Queries after norm and rotation, `[T, H, K]`.
    pub q: Vec<f64>,
    /// Keys after norm and rotation, `[T, G, K]`; empty on layers with a donor.
    pub k: Vec<f64>,
    /// Values after the norm, `[T, G, K]`; empty on layers with a donor.
    pub v: Vec<f64>,
    /// Gates of attention's output before their sigmoid, `[T, H, K]`; empty without.
    pub attn_gate: Vec<f64>,
    /// Output of attention, `[T, H, K]`.
    pub attention: Vec<f64>,
    /// Input of the output projection, `[T, H, K]`.
    pub gated_attention: Vec<f64>,
    /// Log-sum-exp of the scores, `[T, H]`.
    pub lse: Vec<f64>,
    /// Activations within the delta net; `None` in layers with attention.
    pub delta: Option<DeltaActivations>,
    /// Latent vectors; `None` in layers without.
    pub latent: Option<LatentActivations>,
    /// Activations within the short convolution; `None` in other layers.
    pub short_conv: Option<ShortConvActivations>,
    /// Output projection before `post_attention_norm`, `[T, D]`.
    pub attn_output: Vec<f64>,
    /// Residual stream after attention, `[T, D]`.
    pub after_attention: Vec<f64>,
    /// Input of the gate and up projections, `[T, D]`.
    pub ffn_normed: Vec<f64>,
    /// Gate projection, `[T, F]`.
    pub ffn_gate: Vec<f64>,
    /// Up projection, `[T, F]`.
    pub ffn_up: Vec<f64>,
    /// Input of the down projection, `[T, F]`.
    pub gated: Vec<f64>,
    /// Down projection before `post_ffw_norm`, `[T, D]`.
    pub ffn_down: Vec<f64>,
    /// Activations around the experts; `None` in dense models.
    pub experts: Option<ExpertActivations>,
    /// Residual stream after the feed-forward block, `[T, D]`.
    pub after_ffn: Vec<f64>,
    /// Gate of the per-layer input before the activation, `[T, P]`; empty if `P` is 0.
    pub inp_gate: Vec<f64>,
    /// Input of `proj`, `[T, P]`; empty if `P` is 0.
    pub gated_input: Vec<f64>,
    /// Output of `proj` before `post_norm`, `[T, D]`; empty if `P` is 0.
    pub proj: Vec<f64>,
}

/// Activations around the experts of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpertActivations {
    /// Input of the router's matrix, `[T, D]`.
    pub router_normed: Vec<f64>,
    /// The active experts and their weights.
    pub routing: Routing,
    /// Input of the experts, `[T, D]`.
    pub normed: Vec<f64>,
    /// Activations within the experts.
    pub inner: experts::Saved,
    /// Output of the experts, `[T, D]`.
    pub output: Vec<f64>,
    /// Scores of the shared expert, `[T]`; empty without one.
    pub shared_score: Vec<f64>,
    /// Sum of the normed outputs of the feed-forward block and of the experts, before `post_ffw_norm`, `[T, D]`, or of the gated
    /// output of the shared expert and that of the routed ones; the experts' output where there is no such block.
    pub sum: Vec<f64>,
}

/// Activations within a delta net.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeltaActivations {
    /// Outputs of the projections that the recurrence reads.
    pub projected: Projected,
    /// Gate of the output, `[T, Hv, K]`.
    pub gate: Vec<f64>,
    /// Output of the recurrence, `[T, Hv, K]`.
    pub output: Vec<f64>,
    /// Input of the output projection, `[T, Hv, K]`.
    pub gated: Vec<f64>,
}

/// Latent vectors of queries, and of keys and values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatentActivations {
    /// Those of queries, `[T, Rq]`; empty without.
    pub queries: Vec<f64>,
    /// Their norm, `[T, Rq]`.
    pub queries_normed: Vec<f64>,
    /// Those of keys and values, `[T, Rk]`.
    pub vectors: Vec<f64>,
    /// Their norm, `[T, Rk]`.
    pub normed: Vec<f64>,
}

/// Activations within a short convolution of `C` channels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShortConvActivations {
    /// Output of the first matrix, `[T, 3, C]`.
    pub bcx: Vec<f64>,
    /// Input of the output matrix, `[T, C]`.
    pub gated: Vec<f64>,
}
