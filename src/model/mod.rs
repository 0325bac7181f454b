//! The frozen model on the device, and its straight-line forward and backward.

mod backward;
mod batch;
pub mod decode;
mod delta;
mod experts;
mod forward;
mod head;
mod inputs;
mod latent;
mod load;
mod offload;
mod parts;
pub mod plan;
mod short_conv;
mod stream;
mod trainable;
mod upload;

use crate::base::config::Config;
use crate::base::{Base, Module};
use crate::memory::OnHost;
use crate::ops::Weight;
use crate::ops::delta::Frozen;
use crate::ops::rms_norm::Norm;
use crate::ops::rope::Table;
use crate::ops::short_conv::Taps;

pub use crate::memory::{Activations, Plan};
pub use experts::Loads;
pub use head::{Head, Likeliest, Losses};
pub use inputs::Inputs;
pub use trainable::Trainable;

/// The frozen weights on the device. The per-layer embedding table stays in the file.
pub struct Model<'b> {
    base: &'b Base,
    token_embd: Weight,
    output: Option<Weight>,
    output_norm: Norm,
    per_layer: Option<PerLayerInput>,
    layers: Vec<Layer>,
    offload: Option<offload::HostWeights<'b>>,
    on_host: OnHost,
    positions: usize, // in the rotary tables
    chunk: usize,     // tokens that pass through a feed-forward at a time
    parts: usize, // of the heads of attention and delta nets, and of the channels of short convolutions, at least
}

struct PerLayerInput {
    model_proj: Vec<Weight>, // by layer, [P, D]
    proj_norm: Norm,
}

struct Layer {
    attn_norm: Norm,
    attn_q: Option<Weight>, // of attention, as the next six
    attn_k: Option<Weight>,
    attn_v: Option<Weight>,
    attn_q_norm: Norm,
    attn_k_norm: Option<Norm>,
    attn_v_norm: Norm,
    attn_output: Option<Weight>,
    delta: Option<DeltaLayer>,          // in the place of attention
    short_conv: Option<ShortConvLayer>, // likewise
    latent: Option<LatentLayer>,        // in the place of the matrices of queries, keys and values
    sinks: Option<wgpu::Buffer>,        // [H]
    post_attention_norm: Norm,
    ffn_norm: Norm,
    dense: Option<Dense>, // `None` where experts stand in its place
    post_ffw_norm: Norm,
    experts: Option<experts::Experts>,
    per_layer: Option<PerLayerBranch>,
    output_scale: f32,
    rope: Option<[Table; 2]>, // of queries and of keys
}

/// A gated delta net.
struct DeltaLayer {
    qkv: Weight,
    gate: Weight,
    alpha: Weight,
    beta: Weight,
    frozen: Frozen,
    norm: Norm,
    out: Weight,
}

/// A gated short convolution.
struct ShortConvLayer {
    in_proj: Weight,
    taps: Taps,
    out_proj: Weight,
}

/// The matrices of attention whose keys and values come from a latent vector.
struct LatentLayer {
    q_a: Option<(Weight, Norm)>, // of the latent vector of queries, and its norm
    q: Weight,                   // [H·K, Rq or D]
    kv_a: Weight,                // [n + Rk, D]
    kv_norm: Norm,
    k_b: Weight, // [H·(K − n), Rk], or its transpose where the file has keys and values apart
    v_b: Weight, // [H·V, Rk]
}

/// The dense feed-forward block, which may be a shared expert.
struct Dense {
    modules: [Module; 3], // gate, up and down
    gate: Weight,
    up: Weight,
    down: Weight,
}

struct PerLayerBranch {
    inp_gate: Weight,
    proj: Weight,
    post_norm: Norm,
}

impl<'b> Model<'b> {
    /// Lets at most `tokens` tokens, a multiple of 64, pass through a feed-forward at a time: fewer need less memory, as its
    /// rows are the widest, and take longer.
    pub fn set_chunk(&mut self, tokens: usize) {
        assert!(tokens > 0 && tokens.is_multiple_of(64), "{tokens} tokens, expected a multiple of 64");
        self.chunk = tokens;
    }

    /// Divides the heads of attention and of delta nets, and the channels of short convolutions, into at least `parts` parts, which are
    /// computed one after the other, where they divide: as long samples need on devices with short buffers.
    pub fn set_parts(&mut self, parts: usize) {
        assert!(parts > 0, "there is at least one part");
        self.parts = parts;
    }

    /// The model's shape.
    pub fn config(&self) -> &'b Config {
        self.base.config()
    }

    /// Positions that its rotary tables cover: the longest row or conversation.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// The output projection `[V, D]`.
    fn head_matrix(&self) -> &Weight {
        self.output.as_ref().unwrap_or(&self.token_embd)
    }
}
