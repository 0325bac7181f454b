//! Which matrices a LoRA adapter touches, what the adapter's tensors are called, and the adapter in host memory.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::base::config::Config;

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

    /// What `all-linear` means: every module but the router, whose choices an adapter makes unsteady, and the experts, whose
    /// adapters are as many as they are.
    pub const ALL_LINEAR: &[Module] = Module::ALL.split_at(9).0;

    /// GGUF's name: the middle of `blk.N.attn_q.weight`.
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

    /// Path inside transformers' `Gemma4DecoderLayer`, as PEFT's keys spell it.
    pub fn peft_path(self) -> &'static str {
        match self {
            Module::AttnQ => "self_attn.q_proj",
            Module::AttnK => "self_attn.k_proj",
            Module::AttnV => "self_attn.v_proj",
            Module::AttnOutput => "self_attn.o_proj",
            Module::FfnGate => "mlp.gate_proj",
            Module::FfnUp => "mlp.up_proj",
            Module::FfnDown => "mlp.down_proj",
            Module::InpGate => "per_layer_input_gate",
            Module::Proj => "per_layer_projection",
            Module::FfnGateInp => "router.proj",
            Module::FfnGateUpExps => "experts.gate_up_proj",
            Module::FfnDownExps => "experts.down_proj",
        }
    }

    /// What PEFT's `target_modules` lists: the last part of [`Module::peft_path`], or both of the router's, as `proj` alone
    /// is another module's name in GGUF; of the experts, what `target_parameters` lists.
    pub fn peft_name(self) -> &'static str {
        let path = self.peft_path();
        match self {
            Module::FfnGateInp | Module::FfnGateUpExps | Module::FfnDownExps => path,
            _ => path.rsplit('.').next().unwrap_or(path),
        }
    }

    /// The module that a user means by a GGUF or PEFT name.
    pub fn from_name(name: &str) -> Option<Module> {
        Module::ALL.into_iter().find(|m| m.gguf_name() == name || m.peft_name() == name)
    }

    /// Whether there is a matrix for every expert.
    pub fn of_experts(self) -> bool {
        matches!(self, Module::FfnGateUpExps | Module::FfnDownExps)
    }

    /// `(out, in)` of the matrix in layer `layer`, of experts of each; `None` where the layer has no such matrix or never uses it.
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

/// One adapted matrix: `y = W·x + scale·B·(A·x)` with `A` `[rank, in]` and `B` `[out, rank]`, or one for each expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Layer index.
    pub layer: usize,
    /// Which of the layer's matrices.
    pub module: Module,
    /// Rows of `W` and of `B`.
    pub out_features: usize,
    /// Columns of `W` and of `A`.
    pub in_features: usize,
    /// Matrices of this shape: `E` of experts, 1 of everything else.
    pub experts: usize,
}

impl Slot {
    /// The slot of a matrix in layer `layer`; `None` where the layer has no such matrix or never uses it.
    pub fn of(config: &Config, layer: usize, module: Module) -> Option<Slot> {
        let (out_features, in_features) = module.shape(config, layer)?;
        let experts = config.layers[layer].experts.filter(|_| module.of_experts()).map_or(1, |e| e.count);
        Some(Slot { layer, module, out_features, in_features, experts })
    }

    /// Values of `A` `[E, R, in]`.
    pub fn len_a(&self, rank: usize) -> usize {
        self.experts * rank * self.in_features
    }

    /// Values of `B` `[E, out, R]`.
    pub fn len_b(&self, rank: usize) -> usize {
        self.experts * self.out_features * rank
    }

    /// PEFT's key without `.lora_A.weight`, for `Gemma4ForCausalLM`.
    pub fn peft_key(&self) -> String {
        format!("base_model.model.model.layers.{}.{}", self.layer, self.module.peft_path())
    }
}

/// Every slot of `modules` that the model has and uses, by layer and then in [`Module::ALL`]'s order.
pub fn slots(config: &Config, modules: &[Module]) -> Vec<Slot> {
    let mut slots = Vec::new();
    for layer in 0..config.layers.len() {
        for module in Module::ALL.into_iter().filter(|m| modules.contains(m)) {
            slots.extend(Slot::of(config, layer, module));
        }
    }
    slots
}

/// `alpha/rank`, or `alpha/√rank` with rank-stabilised scaling (Kalajdzievski 2023, arXiv:2312.03732).
pub fn scale(rank: usize, alpha: f64, rslora: bool) -> f64 {
    if rslora { alpha / (rank as f64).sqrt() } else { alpha / rank as f64 }
}

/// An adapter in host memory: what files hold and what the device starts from.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// `R`, the same for every slot.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f64,
    /// Whether the scale is `alpha/√rank`.
    pub rslora: bool,
    /// The matrices.
    pub pairs: BTreeMap<Slot, Pair>,
}

/// The two matrices of a slot, or their gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// `A` `[R, in]`, of experts `[E, R, in]`.
    pub a: Vec<f32>,
    /// `B` `[out, R]`, of experts `[E, out, R]`.
    pub b: Vec<f32>,
}

impl Pair {
    /// The pair of a slot that changes nothing and, as both matrices are zero, learns nothing.
    pub fn zero(slot: &Slot, rank: usize) -> Pair {
        Pair { a: vec![0.0; slot.len_a(rank)], b: vec![0.0; slot.len_b(rank)] }
    }
}

impl Adapter {
    /// PEFT's start: `A` Kaiming-uniform with a = √5, which is uniform in `±1/√in`, and `B` zero.
    ///
    /// Each slot draws from its own stream of `seed`, so that slots do not depend on each other.
    pub fn init(slots: &[Slot], rank: usize, alpha: f64, rslora: bool, seed: u64) -> Adapter {
        let mut pairs = BTreeMap::new();
        for (stream, slot) in slots.iter().enumerate() {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(stream as u64 + 1);
            let bound = 1.0 / (slot.in_features as f32).sqrt();
            let a = (0..slot.len_a(rank)).map(|_| rng.random_range(-bound..bound)).collect();
            pairs.insert(*slot, Pair { a, b: vec![0.0; slot.len_b(rank)] });
        }
        Adapter { rank, alpha, rslora, pairs }
    }

    /// The factor on `B·A`.
    pub fn scale(&self) -> f64 {
        scale(self.rank, self.alpha, self.rslora)
    }

    /// The alpha that gives the same scale as `alpha/rank`, for formats that know no rank-stabilised scaling.
    pub fn plain_alpha(&self) -> f64 {
        if self.rslora { self.alpha * (self.rank as f64).sqrt() } else { self.alpha }
    }

    /// Trainable values.
    pub fn parameters(&self) -> usize {
        self.pairs.values().map(|p| p.a.len() + p.b.len()).sum()
    }
}
