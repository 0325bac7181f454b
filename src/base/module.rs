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
    /// Router of a mixture of experts, `[E, D]`.
    FfnGateInp,
    /// Gate and up of every expert, `[E, 2·F, D]`: an expert's gate above its up.
    FfnGateUpExps,
    /// Down of every expert, `[E, D, F]`.
    FfnDownExps,
}

impl Module {
    /// Every module, in the order in which a layer uses them.
    pub const ALL: [Module; 12] = [
        Module::AttnQ,
        Module::AttnK,
        Module::AttnV,
        Module::AttnOutput,
        Module::FfnGate,
        Module::FfnUp,
        Module::FfnDown,
        Module::InpGate,
        Module::Proj,
        Module::FfnGateInp,
        Module::FfnGateUpExps,
        Module::FfnDownExps,
    ];

    /// The modules of `all-linear`: all but the router, whose choices would become unstable, and the experts, which would need
    /// an adapter each.
    pub const ALL_LINEAR: &[Module] = Module::ALL.split_at(9).0;

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
            Module::FfnGateInp => "ffn_gate_inp",
            Module::FfnGateUpExps => "ffn_gate_up_exps",
            Module::FfnDownExps => "ffn_down_exps",
        }
    }

    /// Whether the module has one matrix per expert.
    pub fn of_experts(self) -> bool {
        matches!(self, Module::FfnGateUpExps | Module::FfnDownExps)
    }

    /// `(out, in)` of the matrix (of each expert's matrix) in layer `layer`; `None` where the layer has no such matrix or never
    /// uses it.
    pub fn shape(self, config: &Config, layer: usize) -> Option<(usize, usize)> {
        let (l, d, p) = (&config.layers[layer], config.width, config.per_layer_width);
        let (queries, keys) = (l.heads * l.head_size, l.kv_heads * l.head_size);
        match self {
            Module::AttnQ => Some((queries, d)),
            Module::AttnK => l.kv_donor.is_none().then_some((keys, d)),
            Module::AttnV => (l.kv_donor.is_none() && !l.k_eq_v).then_some((keys, d)),
            Module::AttnOutput => Some((d, queries)),
            Module::FfnGate | Module::FfnUp => Some((l.ffn_width, d)),
            Module::FfnDown => Some((d, l.ffn_width)),
            Module::InpGate => (p > 0).then_some((p, d)),
            Module::Proj => (p > 0).then_some((d, p)),
            Module::FfnGateInp => l.experts.map(|experts| (experts.count, d)),
            Module::FfnGateUpExps => l.experts.map(|experts| (2 * experts.width, d)),
            Module::FfnDownExps => l.experts.map(|experts| (d, experts.width)),
        }
    }
}
