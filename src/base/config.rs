//! The shape of a text model: everything that decides which tensors it has, their sizes, and what happens between them.

use super::Module;
pub use super::latent::{Latent, RowOrder};
pub use super::rotary::{Interleaved, LongRope, QueryGrowth, Rotary, Yarn};

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
    /// Factor on the logits, before the softcap.
    pub logit_scale: f32,
    /// `c` of `c·tanh(z/c)` on the logits; `None` without softcap.
    pub softcap: Option<f32>,
    /// Longest sequence that the base was trained on (`context_length`).
    pub context_length: usize,
    /// Divisors of the rotary frequencies (`rope_freqs.weight`, `[K/2]`) in layers with [`LayerConfig::rope_factors`].
    pub rope_freq_factors: Option<Vec<f32>>,
    /// The divisors in the place of [`Config::rope_freq_factors`] for long sequences; `None` where all have the same.
    pub long_rope: Option<LongRope>,
    /// The layers, first to last.
    pub layers: Vec<LayerConfig>,
}

/// A model without layers and optional parts. Descriptions of models start from it.
impl Default for Config {
    fn default() -> Config {
        Config {
            architecture: "",
            width: 0,
            vocab: 0,
            embedding_scale: 1.0,
            per_layer_width: 0,
            per_layer_activation: Activation::default(),
            rms_eps: 1e-6,
            logit_scale: 1.0,
            softcap: None,
            context_length: 0,
            rope_freq_factors: None,
            long_rope: None,
            layers: Vec::new(),
        }
    }
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
    /// Feed-forward width `F`, also of a shared expert; 0 where the layer has routed experts alone.
    pub ffn_width: usize,
    /// Whether rotary embedding turns queries and keys. Without, they know no positions.
    pub turns: bool,
    /// Base of the rotary frequencies.
    pub rope_base: f64,
    /// Whether [`Config::rope_freq_factors`] divide this layer's rotary frequencies.
    pub rope_factors: bool,
    /// Divisor of the positions (`rope.scaling.factor` of linear scaling); 1 without.
    pub rope_divisor: f64,
    /// The way that YaRN stretches the context beyond the length of the first training; `None` without YaRN.
    pub yarn: Option<Yarn>,
    /// The growth of queries with their positions; `None` where they do not grow.
    pub query_growth: Option<QueryGrowth>,
    /// Leading values of each head of queries and keys that rotary embedding turns; `None` where it turns whole heads.
    pub rotated: Option<usize>,
    /// Whether the file stores the rows of each head of queries and keys with the two rows of a rotary pair side by side, as
    /// llama.cpp's `llama` architecture does. Everything in memory has them half a head apart, as transformers has for most families.
    pub interleaved: bool,
    /// Whether transformers and mlx-lm have these rows side by side too.
    pub interleaved_elsewhere: bool,
    /// The matrices that have a frozen bias.
    pub biases: Vec<Module>,
    /// The modules that put matrices of the layer together ([`Module::fused`]), which so have one adapter: transformers has them as one
    /// matrix.
    pub fused: Vec<Module>,
    /// Those of [`LayerConfig::fused`] that are one tensor in the file too: `attn_qkv`, and gate and up in `ffn_up`.
    pub fused_in_file: Vec<Module>,
    /// Factor on the values of queries and keys that rotary embedding turns, beside YaRN's.
    pub turned_scale: f64,
    /// The layer whose keys and values this layer uses; `None` where it computes its own.
    pub kv_donor: Option<usize>,
    /// Whether the values are the raw keys (`attention_k_eq_v`: no `attn_v` tensor).
    pub k_eq_v: bool,
    /// Whether every query and key head has an RMSNorm with weights (`attn_q_norm`, `attn_k_norm`).
    pub qk_norm: bool,
    /// Whether every value head has an RMSNorm without weights.
    pub v_norm: bool,
    /// Whether the RMSNorm of queries and that of keys are of whole rows, with weights `[H·K]` and `[G·K]`, where there are any.
    pub qk_norm_of_rows: bool,
    /// Whether the RMSNorm of heads of queries and keys stands behind the rotary embedding.
    pub qk_norm_behind: bool,
    /// Factor on the attention scores.
    pub score_scale: f64,
    /// `c` of `c·tanh(s/c)` on the scores, behind their factor; `None` without.
    pub score_softcap: Option<f32>,
    /// Whether every query head has a sink (`attn_sinks`): one more score in its softmax, which no value belongs to.
    pub sinks: bool,
    /// Whether `attn_q` has a gate behind every query head, whose sigmoid multiplies the head's output of attention.
    pub output_gate: bool,
    /// The gated delta net in the place of attention; `None` where the layer has attention.
    pub delta: Option<DeltaNet>,
    /// The gated short convolution in the place of attention; `None` where the layer has attention or a delta net.
    pub short_conv: Option<ShortConv>,
    /// Keys and values in a latent vector: then attention has as many heads of keys as of queries; `None` where each head has its own.
    pub latent: Option<Latent>,
    /// Whether an RMSNorm stands before attention and before feed-forward (`attn_norm`, `ffn_norm`).
    pub pre_norms: bool,
    /// Whether the outputs of attention and feed-forward have an RMSNorm before they are added to the stream
    /// (`post_attention_norm`, `post_ffw_norm`).
    pub post_norms: bool,
    /// Function of the gate in the feed-forward block.
    pub activation: Activation,
    /// The experts, beside the feed-forward block or in its place; `None` in dense models.
    pub experts: Option<Experts>,
    /// Factor on each expert's output (`ffn_down_exps.scale`, `[E]`); empty where there is none. llama.cpp adds an adapter's part
    /// after this factor, so its files hold `B` times the factor.
    pub expert_scales: Vec<f32>,
    /// Whether the file stores gate and up of the experts as two tensors, `ffn_gate_exps` and `ffn_up_exps`.
    pub experts_split: bool,
}

/// A layer of no size, without optional parts. Descriptions of layers start from it.
impl Default for LayerConfig {
    fn default() -> LayerConfig {
        LayerConfig {
            window: None,
            heads: 0,
            kv_heads: 0,
            head_size: 0,
            ffn_width: 0,
            turns: true,
            rope_base: 10_000.0,
            rope_factors: false,
            rope_divisor: 1.0,
            yarn: None,
            query_growth: None,
            rotated: None,
            interleaved: false,
            interleaved_elsewhere: false,
            biases: Vec::new(),
            fused: Vec::new(),
            fused_in_file: Vec::new(),
            turned_scale: 1.0,
            kv_donor: None,
            k_eq_v: false,
            qk_norm: false,
            v_norm: false,
            qk_norm_of_rows: false,
            qk_norm_behind: false,
            score_scale: 1.0,
            score_softcap: None,
            sinks: false,
            output_gate: false,
            delta: None,
            short_conv: None,
            latent: None,
            pre_norms: true,
            post_norms: false,
            activation: Activation::default(),
            experts: None,
            expert_scales: Vec::new(),
            experts_split: false,
        }
    }
}

impl LayerConfig {
    /// Whether the layer has attention; else a delta net or a short convolution stands in its place.
    pub fn has_attention(&self) -> bool {
        self.delta.is_none() && self.short_conv.is_none()
    }

    /// Whether the feed-forward block is a shared expert.
    pub fn has_shared_expert(&self) -> bool {
        self.experts.is_some_and(|experts| experts.shared)
    }

    /// The modules of the dense feed-forward block: gate, up and down.
    pub fn dense_modules(&self) -> [Module; 3] {
        match self.has_shared_expert() {
            true => [Module::FfnGateShexp, Module::FfnUpShexp, Module::FfnDownShexp],
            false => [Module::FfnGate, Module::FfnUp, Module::FfnDown],
        }
    }

    /// The module of [`LayerConfig::fused`] that has the matrix of `module` among others.
    pub fn fused_with(&self, module: Module) -> Option<Module> {
        self.fused.iter().copied().find(|fused| fused.fused().contains(&module))
    }

    /// The order in which the file has the rows of the matrix of `module`; `None` where it is that of memory.
    pub fn row_order(&self, module: Module) -> Option<RowOrder> {
        let turned = self.rotated.unwrap_or(self.head_size);
        let pairs = Interleaved { head_size: self.head_size, turned, behind: false };
        match (module, &self.latent) {
            (Module::AttnQ | Module::AttnQB, Some(latent)) => Some(latent.queries()),
            (Module::AttnKvAMqa, Some(latent)) => Some(latent.vectors()),
            (Module::AttnKvB, Some(latent)) => Some(latent.keys_values(self.heads)),
            (Module::AttnKB | Module::AttnVB, Some(latent)) if !latent.apart => {
                Some(latent.part(module == Module::AttnVB))
            }
            (Module::AttnQ | Module::AttnK, None) => self.interleaved.then_some(RowOrder::Pairs(pairs)),
            _ => None,
        }
    }

    /// Values of the input of attention's output projection.
    pub fn attention_width(&self) -> usize {
        self.heads * self.latent.map_or(self.head_size, |latent| latent.value_size)
    }

    /// Whether heads of values are narrower than those of keys.
    pub fn has_narrow_values(&self) -> bool {
        self.attention_width() < self.heads * self.head_size
    }

    /// Values that the norms of queries and of keys norm together.
    pub fn qk_norm_sizes(&self) -> [usize; 2] {
        match self.qk_norm_of_rows {
            true => [self.heads * self.head_size, self.kv_heads * self.head_size],
            false => [self.head_size; 2],
        }
    }

    /// Whether norms surround a dense feed-forward block and the experts beside it.
    pub fn has_expert_norms(&self) -> bool {
        self.experts.is_some() && self.ffn_width > 0 && !self.has_shared_expert()
    }
}

/// Function of a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// GELU in its tanh form.
    #[default]
    Gelu,
    /// SiLU, `x·σ(x)`.
    Silu,
    /// SwiGLU of gpt-oss, called `swiglu_oai` in llama.cpp: `g·σ(1.702·g)·(u + 1)`, where the gate `g` is at most 7, and up `u`
    /// lies within ±7.
    SwigluOai,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Activation; 3] = [Activation::Gelu, Activation::Silu, Activation::SwigluOai];
}

/// A gated delta net: linear attention with a state per value head, behind a convolution over four tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNet {
    /// Heads of queries and of keys (`ssm.group_count`).
    pub key_heads: usize,
    /// Heads of values (`ssm.time_step_rank`), a multiple of the others. Head `h` reads the query and the key `h mod key_heads`.
    pub value_heads: usize,
    /// Size of every head (`ssm.state_size`).
    pub head_size: usize,
}

impl DeltaNet {
    /// Largest head size that the kernels support.
    pub const LARGEST_HEAD: usize = 128;

    /// Values of all queries, and of all keys.
    pub fn keys(&self) -> usize {
        self.key_heads * self.head_size
    }

    /// Values of all values, and of the output.
    pub fn values(&self) -> usize {
        self.value_heads * self.head_size
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }
}

/// A gated short convolution: one matrix gives each token `b`, `c` and `x`, of `channels` values each, and the output matrix reads `c` times the
/// causal convolution of `b·x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConv {
    /// Channels.
    pub channels: usize,
    /// Weights per channel (`shortconv.l_cache`), the last of which is that of the token itself; at most [`ShortConv::MOST_TAPS`].
    pub taps: usize,
}

impl ShortConv {
    /// Most weights per channel that the kernels support.
    pub const MOST_TAPS: usize = 4;
}

/// The way from the scores of a router to the weights of the experts with the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over the chosen experts, which equals that over all, divided by its sum over the chosen.
    #[default]
    Chosen,
    /// Softmax over all experts: the weights of the chosen add up to less than 1.
    All,
    /// Sigmoids, divided by their sum over the chosen. A bias of each expert (`exp_probs_b.bias`) is added to its sigmoid for the choice alone.
    Sigmoid,
}

/// The experts of one layer of a mixture-of-experts model, and the router that chooses among them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts `E` (`expert_count`), at most [`Experts::MOST`].
    pub count: usize,
    /// Experts that are active per token (`expert_used_count`), at most [`Experts::MOST_USED`].
    pub used: usize,
    /// Feed-forward width of one expert (`expert_feed_forward_length`).
    pub width: usize,
    /// Whether the feed-forward block beside them is a shared expert: its output for a token is multiplied by the sigmoid of a
    /// score of the token, and added to that of the routed experts.
    pub shared: bool,
    /// Whether that sigmoid is left out, so that the model has no scores of a shared expert.
    pub ungated: bool,
    /// The weights of the active experts.
    pub gating: Gating,
    /// Factor on these weights (`expert_weights_scale`).
    pub scale: f32,
}

impl Default for Experts {
    fn default() -> Experts {
        Experts {
            count: 0,
            used: 0,
            width: 0,
            shared: false,
            ungated: false,
            gating: Gating::default(),
            scale: 1.0,
        }
    }
}

impl Experts {
    /// Largest number of experts that the router's kernels support.
    pub const MOST: usize = 256;
    /// Largest number of active experts per token that the router's kernels support.
    pub const MOST_USED: usize = 16;

    /// Whether every token has a score of a shared expert.
    pub fn scores_shared(&self) -> bool {
        self.shared && !self.ungated
    }

    /// Whether the backward pass of the router reads the scores of all experts.
    pub fn keeps_scores(&self) -> bool {
        self.gating != Gating::Chosen
    }
}

impl Config {
    /// Rotary frequencies of layer `layer`, `[K/2]`: `θ_i = base^(−2i/K) / factor_i / divisor`, with YaRN divided once more.
    /// `K` is the size of the part of each head that is turned. All frequencies are 0 where nothing turns. `positions`: the number of
    /// tokens of the longest sequence, on which the factors of some models depend ([`LongRope`]).
    ///
    /// Source: llama.cpp `ggml_rope_ext` with `freq_factors`; transformers' "proportional" rotary embedding.
    pub fn rope_frequencies(&self, layer: usize, positions: usize) -> Vec<f64> {
        let l = &self.layers[layer];
        let long = self.long_rope.as_ref().filter(|long| positions > long.original_context);
        let factors = long.map(|long| &long.factors).or(self.rope_freq_factors.as_ref());
        let factors = factors.filter(|_| l.rope_factors);
        let size = l.rotated.unwrap_or(l.head_size);
        if !l.turns {
            return vec![0.0; size / 2];
        }
        (0..size / 2)
            .map(|i| {
                let factor = factors.map_or(1.0, |f| f64::from(f[i]));
                let yarn = l.yarn.map_or(1.0, |yarn| yarn.divisor(i, size, l.rope_base));
                l.rope_base.powf(-2.0 * i as f64 / size as f64) / factor / l.rope_divisor / yarn
            })
            .collect()
    }

    /// The order of the rows of the matrix `name` (`blk.3.attn_q`), where the file has another than memory.
    pub fn row_order(&self, name: &str) -> Option<RowOrder> {
        let (layer, module) = self.place(name)?;
        self.layers[layer].row_order(module)
    }

    /// Matrices of the file whose rows lie side by side in a row of the matrix `name`: one for each head in the transposed matrix of keys of a
    /// latent vector, else 1.
    pub fn side_by_side(&self, name: &str) -> usize {
        let heads = |(layer, module): (usize, Module)| {
            let l = &self.layers[layer];
            (module == Module::AttnKB && l.latent.is_some_and(|latent| latent.apart)).then_some(l.heads)
        };
        self.place(name).and_then(heads).unwrap_or(1)
    }

    /// The layer and the module of the matrix `name`.
    fn place(&self, name: &str) -> Option<(usize, Module)> {
        let (layer, last) = name.strip_prefix("blk.")?.split_once('.')?;
        let layer = layer.parse::<usize>().ok().filter(|layer| *layer < self.layers.len())?;
        Some((layer, Module::ALL.into_iter().find(|module| module.gguf_name() == last)?))
    }

    /// The rotary embeddings of queries and of keys in layer `layer`, for sequences of at most `positions` tokens. That of the queries has
    /// the factor on the scores, where it turns whole heads; else their norm has it. Both have the other factors.
    pub fn rotary(&self, layer: usize, positions: usize) -> [Rotary; 2] {
        let frequencies = self.rope_frequencies(layer, positions);
        let l = &self.layers[layer];
        let scale = l.turned_scale * l.yarn.map_or(1.0, |yarn| yarn.scale);
        let of_scores = if l.rotated.is_none() { l.score_scale } else { 1.0 };
        let growth = l.query_growth;
        let queries = Rotary { frequencies: frequencies.clone(), scale: of_scores * scale, growth };
        [queries, Rotary { frequencies, scale, growth: None }]
    }
}

impl Module {
    /// Values of a bias of the matrix (of the biases of all experts) in layer `layer`; `None` where [`Module::shape`] is.
    pub fn bias_len(self, config: &Config, layer: usize) -> Option<usize> {
        let (rows, _) = self.shape(config, layer)?;
        let experts = config.layers[layer].experts.filter(|_| self.of_experts());
        Some(rows * experts.map_or(1, |experts| experts.count))
    }

    /// `(out, in)` of what an adapter of the module adapts in layer `layer`: of matrices that are one in transformers, all together.
    /// `None` where the layer has no such matrix, never uses it, or has it as a part of another.
    pub fn adapted_shape(self, config: &Config, layer: usize) -> Option<(usize, usize)> {
        let l = &config.layers[layer];
        if l.fused_with(self).is_some() {
            return None;
        }
        if !l.fused.contains(&self) {
            return self.shape(config, layer);
        }
        let parts: Option<Vec<_>> = self.fused().iter().map(|part| part.shape(config, layer)).collect();
        let parts = parts?;
        Some((parts.iter().map(|(rows, _)| rows).sum(), parts.first()?.1))
    }

    /// `(out, in)` of the matrix (of each expert's matrix) in layer `layer`; `None` where the layer has no such matrix or never
    /// uses it.
    pub fn shape(self, config: &Config, layer: usize) -> Option<(usize, usize)> {
        let (l, d, p) = (&config.layers[layer], config.width, config.per_layer_width);
        let (queries, keys) = (l.heads * l.head_size, l.kv_heads * l.head_size);
        let has_attention = l.has_attention();
        let makes_keys = has_attention && l.kv_donor.is_none() && l.latent.is_none();
        let query_rank = l.latent.and_then(|latent| latent.query_rank);
        let (has_dense, is_shared) = (l.ffn_width > 0, l.has_shared_expert());
        match self {
            Module::AttnQ if l.output_gate => has_attention.then_some((2 * queries, d)),
            Module::AttnQ => (has_attention && query_rank.is_none()).then_some((queries, d)),
            Module::AttnK => makes_keys.then_some((keys, d)),
            Module::AttnV => (makes_keys && !l.k_eq_v).then_some((keys, d)),
            Module::AttnOutput => has_attention.then_some((d, l.attention_width())),
            Module::AttnQA => query_rank.map(|rank| (rank, d)),
            Module::AttnQB => query_rank.map(|rank| (queries, rank)),
            Module::AttnKvAMqa => l.latent.map(|latent| (latent.both(), d)),
            Module::AttnKB => l.latent.map(|latent| (l.heads * latent.key_size, latent.rank)),
            Module::AttnVB => l.latent.map(|latent| (l.heads * latent.value_size, latent.rank)),
            Module::AttnKvB => None,
            Module::AttnQkv => l.delta.map(|delta| (delta.channels(), d)),
            Module::AttnGate => l.delta.map(|delta| (delta.values(), d)),
            Module::SsmAlpha | Module::SsmBeta => l.delta.map(|delta| (delta.value_heads, d)),
            Module::SsmOut => l.delta.map(|delta| (d, delta.values())),
            Module::ShortconvInProj => l.short_conv.map(|conv| (3 * conv.channels, d)),
            Module::ShortconvOutProj => l.short_conv.map(|conv| (d, conv.channels)),
            Module::FfnGate | Module::FfnUp => (has_dense && !is_shared).then_some((l.ffn_width, d)),
            Module::FfnDown => (has_dense && !is_shared).then_some((d, l.ffn_width)),
            Module::FfnGateShexp | Module::FfnUpShexp => is_shared.then_some((l.ffn_width, d)),
            Module::FfnDownShexp => is_shared.then_some((d, l.ffn_width)),
            Module::FfnGateInpShexp => l.experts.is_some_and(|e| e.scores_shared()).then_some((1, d)),
            Module::InpGate => (p > 0).then_some((p, d)),
            Module::Proj => (p > 0).then_some((d, p)),
            Module::FfnGateUp => None,
            Module::FfnGateInp => l.experts.map(|experts| (experts.count, d)),
            Module::FfnGateUpExps => l.experts.map(|experts| (2 * experts.width, d)),
            Module::FfnDownExps => l.experts.map(|experts| (d, experts.width)),
        }
    }
}
