//! The shape of a text model: everything that decides which tensors it has, their sizes, and what happens between them.

/// A text model. `L` is `layers.len()`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `general.architecture`: the name of the model's family.
    pub architecture: &'static str,
    /// Model width `D` (`embedding_length`).
    pub width: usize,
    /// Vocabulary size `V` (rows of `token_embd.weight`).
    pub vocab: usize,
    /// Factor on the token embeddings.
    pub embedding_scale: f32,
    /// Width `P` of the per-layer embeddings (`embedding_length_per_layer_input`); 0 without per-layer embeddings.
    pub per_layer_width: usize,
    /// Function of the gate in the per-layer branch.
    pub per_layer_activation: Activation,
    /// The `ε` of every RMSNorm.
    pub rms_eps: f32,
    /// `c` of `c·tanh(z/c)` on the logits; `None` without softcap.
    pub softcap: Option<f32>,
    /// Longest sequence that the base was trained on (`context_length`).
    pub context_length: usize,
    /// Divisors of the rotary frequencies (`rope_freqs.weight`, `[K/2]`) in layers with [`LayerConfig::rope_factors`].
    pub rope_freq_factors: Option<Vec<f32>>,
    /// The layers, first to last.
    pub layers: Vec<LayerConfig>,
}

/// One layer's shape and its optional parts.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// `Some(w)` on sliding layers: key `j` is visible to query `i` if `i - w < j <= i`.
    pub window: Option<usize>,
    /// Query heads `H`.
    pub heads: usize,
    /// Key/value heads `G`.
    pub kv_heads: usize,
    /// Head size `K`.
    pub head_size: usize,
    /// Feed-forward width `F`.
    pub ffn_width: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f64,
    /// Whether [`Config::rope_freq_factors`] divide this layer's rotary frequencies.
    pub rope_factors: bool,
    /// The layer whose keys and values this layer uses; `None` where it computes its own.
    pub kv_donor: Option<usize>,
    /// Whether the values are the raw keys (`attention_k_eq_v`: no `attn_v` tensor).
    pub k_eq_v: bool,
    /// Whether every query and key head has an RMSNorm with weights (`attn_q_norm`, `attn_k_norm`).
    pub qk_norm: bool,
    /// Whether every value head has an RMSNorm without weights.
    pub v_norm: bool,
    /// Factor on the attention scores.
    pub score_scale: f32,
    /// Whether the outputs of attention and feed-forward have an RMSNorm before they are added to the stream
    /// (`post_attention_norm`, `post_ffw_norm`).
    pub post_norms: bool,
    /// Function of the gate in the feed-forward block.
    pub activation: Activation,
    /// The experts beside the feed-forward block; `None` in dense models.
    pub experts: Option<Experts>,
    /// Factor on each expert's output (`ffn_down_exps.scale`, `[E]`); empty in dense models. llama.cpp adds an adapter's part
    /// after this factor, so its files hold `B` times the factor.
    pub expert_scales: Vec<f32>,
    /// Whether the file stores gate and up of the experts as two tensors, `ffn_gate_exps` and `ffn_up_exps`.
    pub experts_split: bool,
}

/// Function of a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// GELU in its tanh form.
    #[default]
    Gelu,
    /// SiLU, `x·σ(x)`.
    Silu,
}

/// The experts of one layer of a mixture-of-experts model, and the router that chooses among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Number of experts `E` (`expert_count`), at most [`Experts::MOST`].
    pub count: usize,
    /// Experts that are active per token (`expert_used_count`), at most [`Experts::MOST_USED`].
    pub used: usize,
    /// Feed-forward width of one expert (`expert_feed_forward_length`).
    pub width: usize,
}

impl Experts {
    /// Largest number of experts that the router's kernels support.
    pub const MOST: usize = 256;
    /// Largest number of active experts per token that the router's kernels support.
    pub const MOST_USED: usize = 16;
}

impl Config {
    /// Rotary frequencies of layer `layer`, `[K/2]`: `θ_i = base^(−2i/K) / factor_i`.
    ///
    /// Source: llama.cpp `ggml_rope_ext` with `freq_factors`; transformers' "proportional" rotary embedding.
    pub fn rope_frequencies(&self, layer: usize) -> Vec<f64> {
        let l = &self.layers[layer];
        let factors = self.rope_freq_factors.as_ref().filter(|_| l.rope_factors);
        (0..l.head_size / 2)
            .map(|i| {
                let factor = factors.map_or(1.0, |f| f64::from(f[i]));
                l.rope_base.powf(-2.0 * i as f64 / l.head_size as f64) / factor
            })
            .collect()
    }
}
