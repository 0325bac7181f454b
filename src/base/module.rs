//! [`Module`]: the kinds of matrix that can carry an adapter.

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
    /// Queries, keys and values of a delta net, `[C, D]`, or of attention, `[(H + 2·G)·K, D]`, in models that have them as one matrix.
    AttnQkv,
    /// Gate of a delta net's output, `[Hv·K, D]`.
    AttnGate,
    /// Decays of a delta net, `[Hv, D]`.
    SsmAlpha,
    /// Rates of a delta net, `[Hv, D]`.
    SsmBeta,
    /// Output of a delta net, `[D, Hv·K]`.
    SsmOut,
    /// Input of a short convolution and its gates, `[3·C, D]`.
    ShortconvInProj,
    /// Output of a short convolution, `[D, C]`.
    ShortconvOutProj,
    /// Latent vectors of queries, `[Rq, D]`.
    AttnQA,
    /// Queries from their latent vectors, `[H·K, Rq]`.
    AttnQB,
    /// Latent vectors of keys and values, and the turned part of keys, `[n + Rk, D]`.
    AttnKvAMqa,
    /// Keys without their turned part, and values, from latent vectors, `[H·(K − n) + H·V, Rk]`, which are one matrix in transformers.
    AttnKvB,
    /// The keys of [`Module::AttnKvB`], `[H·(K − n), Rk]`.
    AttnKB,
    /// The values of [`Module::AttnKvB`], `[H·V, Rk]`.
    AttnVB,
    /// Gate of a shared expert, `[F, D]`.
    FfnGateShexp,
    /// Up of a shared expert, `[F, D]`.
    FfnUpShexp,
    /// Down of a shared expert, `[D, F]`.
    FfnDownShexp,
    /// Score of a shared expert, whose sigmoid multiplies the expert's output, `[1, D]`.
    FfnGateInpShexp,
    /// Feed-forward gate above up, `[2·F, D]`, in models that have both as one matrix.
    FfnGateUp,
    /// Router of a mixture of experts, `[E, D]`.
    FfnGateInp,
    /// Gate and up of every expert, `[E, 2·F, D]`: an expert's gate above its up.
    FfnGateUpExps,
    /// Down of every expert, `[E, D, F]`.
    FfnDownExps,
}

impl Module {
    /// Every module, in the order in which a layer uses them. Those of delta nets, of short
    /// convolutions and of latent vectors stand in the place of attention's.
    pub const ALL: [Module; 30] = [
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
        Module::ShortconvInProj,
        Module::ShortconvOutProj,
        Module::AttnQA,
        Module::AttnQB,
        Module::AttnKvAMqa,
        Module::AttnKvB,
        Module::AttnKB,
        Module::AttnVB,
        Module::FfnGateShexp,
        Module::FfnUpShexp,
        Module::FfnDownShexp,
        Module::FfnGateInpShexp,
        Module::FfnGateUp,
        Module::FfnGateInp,
        Module::FfnGateUpExps,
        Module::FfnDownExps,
    ];

    /// The modules of `all-linear`: all but the router, whose choices would become unstable, and the routed experts, which would
    /// need an adapter each.
    pub const ALL_LINEAR: &[Module] = Module::ALL.split_at(27).0;

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
            Module::ShortconvInProj => "shortconv.in_proj",
            Module::ShortconvOutProj => "shortconv.out_proj",
            Module::AttnQA => "attn_q_a",
            Module::AttnQB => "attn_q_b",
            Module::AttnKvAMqa => "attn_kv_a_mqa",
            Module::AttnKvB => "attn_kv_b",
            Module::AttnKB => "attn_k_b",
            Module::AttnVB => "attn_v_b",
            Module::FfnGateShexp => "ffn_gate_shexp",
            Module::FfnUpShexp => "ffn_up_shexp",
            Module::FfnDownShexp => "ffn_down_shexp",
            Module::FfnGateInpShexp => "ffn_gate_inp_shexp",
            Module::FfnGateUp => "ffn_gate_up",
            Module::FfnGateInp => "ffn_gate_inp",
            Module::FfnGateUpExps => "ffn_gate_up_exps",
            Module::FfnDownExps => "ffn_down_exps",
        }
    }

    /// The modules whose matrices it has below each other, in models that have them as one matrix; none for any other module.
    pub fn fused(self) -> &'static [Module] {
        match self {
            Module::AttnQkv => &[Module::AttnQ, Module::AttnK, Module::AttnV],
            Module::FfnGateUp => &[Module::FfnGate, Module::FfnUp],
            Module::AttnKvB => &[Module::AttnKB, Module::AttnVB],
            _ => &[],
        }
    }

    /// Whether the module has one matrix per expert.
    pub fn of_experts(self) -> bool {
        matches!(self, Module::FfnGateUpExps | Module::FfnDownExps)
    }
}
