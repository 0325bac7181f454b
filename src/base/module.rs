//! [`Module`]: the kinds of matrix that can carry an adapter.

use super::config::Config;

/// A kind of matrix that can carry an adapter, named as GGUF names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Module {
    /// Query projection, `[H·K, D]`.
    AttnQ,
    /// Key projection, `[G·K, D]`.
    AttnK,
    /// Value projection, `[G·K, D]`.
    AttnV,
    /// Attention output, `[D, H·K]`.
    AttnOutput,
    /// Feed-forward gate, `[F, D]`.
    FfnGate,
    /// Feed-forward up, `[F, D]`.
    FfnUp,
    /// Feed-forward down, `[D, F]`.
    FfnDown,
    /// Per-layer embedding gate, `[P, D]`.
    InpGate,
    /// Per-layer embedding projection, `[D, P]`.
    Proj,
    /// Queries, keys and values of a delta net, `[C, D]`.
    AttnQkv,
    /// Gate of a delta net's output, `[Hv·K, D]`.
    AttnGate,
    /// Decays of a delta net, `[Hv, D]`.
    SsmAlpha,
    /// Rates of a delta net, `[Hv, D]`.
    SsmBeta,
    /// Output of a delta net, `[D, Hv·K]`.
    SsmOut,
    /// Gate of a shared expert, `[F, D]`.
    FfnGateShexp,
    /// Up of a shared expert, `[F, D]`.
    FfnUpShexp,
    /// Down of a shared expert, `[D, F]`.
    FfnDownShexp,
    /// Score of a shared expert, whose sigmoid multiplies the expert's output, `[1, D]`.
    FfnGateInpShexp,
    /// Router of a mixture of experts, `[E, D]`.
    FfnGateInp,
    /// Gate and up of every expert, `[E, 2·F, D]`: an expert's gate above its up.
    FfnGateUpExps,
    /// Down of every expert, `[E, D, F]`.
    FfnDownExps,
}

impl Module {
    /// Every module, in the order in which a layer uses them. Those of delta nets stand in the place of attention's.
    pub const ALL: [Module; 21] = [
        Module::AttnQ,
        Module::AttnK,
        Module::AttnV,
        Module::AttnOutput,
        Module::FfnGate,
        Module::FfnUp,
        Module::FfnDown,
        Module::InpGate,
        Module::Proj,
        Module::AttnQkv,
        Module::AttnGate,
        Module::SsmAlpha,
        Module::SsmBeta,
        Module::SsmOut,
        Module::FfnGateShexp,
        Module::FfnUpShexp,
        Module::FfnDownShexp,
        Module::FfnGateInpShexp,
        Module::FfnGateInp,
        Module::FfnGateUpExps,
        Module::FfnDownExps,
    ];

    /// The modules of `all-linear`: all but the router, whose choices would become unstable, and the routed experts, which would
    /// need an adapter each.
    pub const ALL_LINEAR: &[Module] = Module::ALL.split_at(18).0;

    /// The name in GGUF: `attn_q` in `blk.N.attn_q.weight`.
    pub fn gguf_name(self) -> &'static str {
        match self {
            Module::AttnQ => "attn_q",
            Module::AttnK => "attn_k",
            Module::AttnV => "attn_v",
            Module::AttnOutput => "attn_output",
            Module::FfnGate => "ffn_gate",
            Module::FfnUp => "ffn_up",
            Module::FfnDown => "ffn_down",
            Module::InpGate => "inp_gate",
            Module::Proj => "proj",
            Module::AttnQkv => "attn_qkv",
            Module::AttnGate => "attn_gate",
            Module::SsmAlpha => "ssm_alpha",
            Module::SsmBeta => "ssm_beta",
            Module::SsmOut => "ssm_out",
            Module::FfnGateShexp => "ffn_gate_shexp",
            Module::FfnUpShexp => "ffn_up_shexp",
            Module::FfnDownShexp => "ffn_down_shexp",
            Module::FfnGateInpShexp => "ffn_gate_inp_shexp",
            Module::FfnGateInp => "ffn_gate_inp",
            Module::FfnGateUpExps => "ffn_gate_up_exps",
            Module::FfnDownExps => "ffn_down_exps",
        }
    }

    /// Whether the module has one matrix per expert.
    pub fn of_experts(self) -> bool {
        matches!(self, Module::FfnGateUpExps | Module::FfnDownExps)
    }

    /// Values of a bias of the matrix (of the biases of all experts) in layer `layer`; `None` where [`Module::shape`] is.
    pub fn bias_len(self, config: &Config, layer: usize) -> Option<usize> {
        let (rows, _) = self.shape(config, layer)?;
        let experts = config.layers[layer].experts.filter(|_| self.of_experts());
        Some(rows * experts.map_or(1, |experts| experts.count))
    }

    /// `(out, in)` of the matrix (of each expert's matrix) in layer `layer`; `None` where the layer has no such matrix or never
    /// uses it.
    pub fn shape(self, config: &Config, layer: usize) -> Option<(usize, usize)> {
        let (l, d, p) = (&config.layers[layer], config.width, config.per_layer_width);
        let (queries, keys) = (l.heads * l.head_size, l.kv_heads * l.head_size);
        let has_attention = l.delta.is_none();
        let makes_keys = has_attention && l.kv_donor.is_none();
        let (has_dense, is_shared) = (l.ffn_width > 0, l.has_shared_expert());
        match self {
            Module::AttnQ if l.output_gate => has_attention.then_some((2 * queries, d)),
            Module::AttnQ => has_attention.then_some((queries, d)),
            Module::AttnK => makes_keys.then_some((keys, d)),
            Module::AttnV => (makes_keys && !l.k_eq_v).then_some((keys, d)),
            Module::AttnOutput => has_attention.then_some((d, queries)),
            Module::AttnQkv => l.delta.map(|delta| (delta.channels(), d)),
            Module::AttnGate => l.delta.map(|delta| (delta.values(), d)),
            Module::SsmAlpha | Module::SsmBeta => l.delta.map(|delta| (delta.value_heads, d)),
            Module::SsmOut => l.delta.map(|delta| (d, delta.values())),
            Module::FfnGate | Module::FfnUp => (has_dense && !is_shared).then_some((l.ffn_width, d)),
            Module::FfnDown => (has_dense && !is_shared).then_some((d, l.ffn_width)),
            Module::FfnGateShexp | Module::FfnUpShexp => is_shared.then_some((l.ffn_width, d)),
            Module::FfnDownShexp => is_shared.then_some((d, l.ffn_width)),
            Module::FfnGateInpShexp => is_shared.then_some((1, d)),
            Module::InpGate => (p > 0).then_some((p, d)),
            Module::Proj => (p > 0).then_some((d, p)),
            Module::FfnGateInp => l.experts.map(|experts| (experts.count, d)),
            Module::FfnGateUpExps => l.experts.map(|experts| (2 * experts.width, d)),
            Module::FfnDownExps => l.experts.map(|experts| (d, experts.width)),
        }
    }
}
