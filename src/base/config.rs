//! The shape of a Gemma 4 text model: everything that decides which tensor has which size.

/// A Gemma 4 text model. `L` is `layers.len()`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `general.architecture`: the name of the model's family.
    pub architecture: &'static str,
    /// Model width `D` (`gemma4.embedding_length`).
    pub width: usize,
    /// Vocabulary size `V` (rows of `token_embd.weight`).
    pub vocab: usize,
    /// Width `P` of the per-layer embeddings (`gemma4.embedding_length_per_layer_input`); 0 where the model has none.
    pub per_layer_width: usize,
    /// The `ε` of every RMSNorm.
    pub rms_eps: f32,
    /// `c` of `c·tanh(z/c)` on the logits; `None` where the file sets none.
    pub softcap: Option<f32>,
    /// Longest sequence that the base was trained for (`gemma4.context_length`).
    pub context_length: usize,
    /// Divisors of the rotary frequencies on full-attention layers (`rope_freqs.weight`, `[K/2]`).
    pub rope_freq_factors: Option<Vec<f32>>,
    /// The layers, first to last.
    pub layers: Vec<LayerConfig>,
}

/// One layer's shape.
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
    /// The layer whose keys and values this layer uses; `None` where it makes its own.
    pub kv_donor: Option<usize>,
    /// Whether the values are the raw keys (`attention_k_eq_v`: no `attn_v` tensor).
    pub k_eq_v: bool,
    /// The experts beside the feed-forward block; `None` in dense models.
    pub experts: Option<Experts>,
    /// What every expert's output is multiplied by (`ffn_down_exps.scale`, `[E]`): llama.cpp adds an adapter's part behind it, so
    /// that its files hold `B` times it. Empty in dense models.
    pub expert_scales: Vec<f32>,
    /// Whether the file has the experts' gate and up apart, as `ffn_gate_exps` and `ffn_up_exps`.
    pub experts_split: bool,
}

/// The experts of one layer of a mixture-of-experts model, and the router that chooses among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts `E` (`gemma4.expert_count`), at most [`Experts::MOST`].
    pub count: usize,
    /// Experts that work on one token (`gemma4.expert_used_count`), at most [`Experts::MOST_USED`].
    pub used: usize,
    /// Feed-forward width of one expert (`gemma4.expert_feed_forward_length`).
    pub width: usize,
}

impl Experts {
    /// Most experts that the router's kernels take.
    pub const MOST: usize = 256;
    /// Most experts a token that they take.
    pub const MOST_USED: usize = 16;
}

impl Config {
    /// Rotary frequencies of layer `layer`, `[K/2]`: `θ_i = base^(−2i/K) / factor_i`, factors on full layers only.
    ///
    /// Source: llama.cpp `ggml_rope_ext` with `freq_factors`; transformers' "proportional" rotary embedding.
    pub fn rope_frequencies(&self, layer: usize) -> Vec<f64> {
        let l = &self.layers[layer];
        let factors = self.rope_freq_factors.as_ref().filter(|_| l.window.is_none());
        (0..l.head_size / 2)
            .map(|i| {
                let factor = factors.map_or(1.0, |f| f64::from(f[i]));
                l.rope_base.powf(-2.0 * i as f64 / l.head_size as f64) / factor
            })
            .collect()
    }
}
