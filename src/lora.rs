//! Which matrices a LoRA adapter touches, what the adapter's tensors are called, and the adapter in host memory.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::config::Config;

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
}

impl Module {
    /// Every module, in the order in which a layer uses them.
    pub const ALL: [Module; 9] = [
        Module::AttnQ,
        Module::AttnK,
        Module::AttnV,
        Module::AttnOutput,
        Module::FfnGate,
        Module::FfnUp,
        Module::FfnDown,
        Module::InpGate,
        Module::Proj,
    ];

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
        }
    }

    /// The last part of [`Module::peft_path`]: what PEFT's `target_modules` lists.
    pub fn peft_name(self) -> &'static str {
        let path = self.peft_path();
        path.rsplit('.').next().unwrap_or(path)
    }

    /// The module that a user means by a GGUF or PEFT name.
    pub fn from_name(name: &str) -> Option<Module> {
        Module::ALL.into_iter().find(|m| m.gguf_name() == name || m.peft_name() == name)
    }

    /// `(out, in)` of the matrix in layer `layer`; `None` where the layer has no such matrix or never uses it.
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
        }
    }
}

/// One adapted matrix: `y = W·x + scale·B·(A·x)` with `A` `[rank, in]` and `B` `[out, rank]`.
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
}

impl Slot {
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
            if let Some((out_features, in_features)) = module.shape(config, layer) {
                slots.push(Slot { layer, module, out_features, in_features });
            }
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
    /// `A` `[R, in]`.
    pub a: Vec<f32>,
    /// `B` `[out, R]`.
    pub b: Vec<f32>,
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
            let a = (0..rank * slot.in_features).map(|_| rng.random_range(-bound..bound)).collect();
            pairs.insert(*slot, Pair { a, b: vec![0.0; slot.out_features * rank] });
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

/// Several adapters, each with a weight, as one whose scale is 1: `Σ weight·scale·B·A` has the rows of every `A` below each
/// other and the columns of every `B`, scaled, side by side. A slot that one of them lacks has zeros there.
pub fn combine(adapters: &[(&Adapter, f64)]) -> Adapter {
    let rank: usize = adapters.iter().map(|(a, _)| a.rank).sum();
    let mut pairs: BTreeMap<Slot, Pair> = BTreeMap::new();
    let mut first = 0; // rank before this adapter's
    for (adapter, weight) in adapters {
        let factor = weight * adapter.scale();
        for (slot, pair) in &adapter.pairs {
            let (k, n, r) = (slot.in_features, slot.out_features, adapter.rank);
            let empty = || Pair { a: vec![0.0; rank * k], b: vec![0.0; n * rank] };
            let combined = pairs.entry(*slot).or_insert_with(empty);
            combined.a[first * k..(first + r) * k].copy_from_slice(&pair.a);
            for (to, from) in combined.b.chunks_exact_mut(rank).zip(pair.b.chunks_exact(r)) {
                for (to, from) in to[first..first + r].iter_mut().zip(from) {
                    *to = (factor * f64::from(*from)) as f32;
                }
            }
        }
        first += adapter.rank;
    }
    Adapter { rank, alpha: rank as f64, rslora: false, pairs }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Σ weight·scale·B·A`, multiplied out, of two adapters of different ranks and slots.
    #[test]
    fn combined_adapters_add_up() {
        let slot = |layer| Slot { layer, module: Module::AttnQ, out_features: 3, in_features: 2 };
        let adapter = |rank: usize, alpha: f64, rslora: bool, layers: &[usize], first: f32| {
            let mut adapter = Adapter { rank, alpha, rslora, pairs: BTreeMap::new() };
            for &layer in layers {
                let values = |n: usize| (0..n).map(|i| first + i as f32).collect();
                adapter.pairs.insert(slot(layer), Pair { a: values(rank * 2), b: values(3 * rank) });
            }
            adapter
        };
        let product = |adapter: &Adapter, slot: Slot| -> Vec<f64> {
            let Some(pair) = adapter.pairs.get(&slot) else { return vec![0.0; 6] };
            let r = adapter.rank;
            let element = |n: usize, k: usize| -> f64 {
                (0..r).map(|i| f64::from(pair.b[n * r + i]) * f64::from(pair.a[i * 2 + k])).sum()
            };
            (0..6).map(|i| adapter.scale() * element(i / 2, i % 2)).collect()
        };
        let (one, two) = (adapter(2, 4.0, false, &[0, 1], 1.0), adapter(4, 2.0, true, &[1, 2], -3.0));
        let both = combine(&[(&one, 0.5), (&two, -3.0)]);
        assert_eq!((both.rank, both.scale(), both.pairs.len()), (6, 1.0, 3));
        for layer in 0..3 {
            let (a, b) = (product(&one, slot(layer)), product(&two, slot(layer)));
            let expected: Vec<f64> = a.iter().zip(&b).map(|(a, b)| 0.5 * a - 3.0 * b).collect();
            assert_eq!(product(&both, slot(layer)), expected, "layer {layer}");
        }
    }
}
