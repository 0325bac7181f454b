//! The frozen base as f64 matrices, named as GGUF names them, and a maker of random ones for tests.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::config::Config;

/// Every tensor of a dense model, row-major `[out, in]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// `[V, D]`.
    pub token_embd: Vec<f64>,
    /// `[D]`.
    pub output_norm: Vec<f64>,
    /// `[V, D]`; `None` where the embedding is the output matrix.
    pub output: Option<Vec<f64>>,
    /// The global part of the per-layer embeddings; `None` where `P` is 0.
    pub per_layer: Option<PerLayerInputWeights>,
    /// The layers, `L`.
    pub layers: Vec<LayerWeights>,
}

/// What turns a token into its per-layer inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct PerLayerInputWeights {
    /// `per_layer_token_embd`, `[V, L·P]`.
    pub token_embd: Vec<f64>,
    /// `per_layer_model_proj`, `[L·P, D]`.
    pub model_proj: Vec<f64>,
    /// `per_layer_proj_norm`, `[P]`.
    pub proj_norm: Vec<f64>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerWeights {
    /// `[D]`.
    pub attn_norm: Vec<f64>,
    /// `[H·K, D]`.
    pub attn_q: Vec<f64>,
    /// `[G·K, D]`; `None` where a donor's keys and values are used.
    pub attn_k: Option<Vec<f64>>,
    /// `[G·K, D]`; `None` there and where the values are the raw keys.
    pub attn_v: Option<Vec<f64>>,
    /// `[K]`.
    pub attn_q_norm: Vec<f64>,
    /// `[K]`; `None` where a donor's keys and values are used.
    pub attn_k_norm: Option<Vec<f64>>,
    /// `[D, H·K]`.
    pub attn_output: Vec<f64>,
    /// `[D]`.
    pub post_attention_norm: Vec<f64>,
    /// `[D]`.
    pub ffn_norm: Vec<f64>,
    /// `[F, D]`.
    pub ffn_gate: Vec<f64>,
    /// `[F, D]`.
    pub ffn_up: Vec<f64>,
    /// `[D, F]`.
    pub ffn_down: Vec<f64>,
    /// `[D]`.
    pub post_ffw_norm: Vec<f64>,
    /// The layer's part of the per-layer embeddings; `None` where `P` is 0.
    pub per_layer: Option<PerLayerBranchWeights>,
    /// `layer_output_scale`, multiplies the whole stream; 1 where the file has none.
    pub output_scale: f64,
}

/// How one layer takes in its per-layer input.
#[derive(Clone, Debug, PartialEq)]
pub struct PerLayerBranchWeights {
    /// `[P, D]`.
    pub inp_gate: Vec<f64>,
    /// `[D, P]`.
    pub proj: Vec<f64>,
    /// `[D]`.
    pub post_norm: Vec<f64>,
}

impl Weights {
    /// Random weights at scales where every path matters: embeddings of RMS 1, moderate attention scores, branches
    /// that move the stream by a third, logits that reach the softcap, signs in the output norm so that the tied
    /// head does not just echo its input.
    pub fn random(config: &Config, seed: u64) -> Weights {
        let mut normal = Normal::new(seed);
        let (d, p) = (config.width, config.per_layer_width);
        let mut output_norm = normal.vec(d, 5.0, 0.5);
        for weight in &mut output_norm {
            *weight *= normal.sign();
        }
        Weights {
            token_embd: normal.vec(config.vocab * d, 0.0, 0.9 * (d as f64).powf(-0.5)),
            output_norm,
            output: None,
            per_layer: (p > 0).then(|| PerLayerInputWeights {
                token_embd: normal.vec(config.vocab * config.layers.len() * p, 0.0, (p as f64).powf(-0.5)),
                model_proj: normal.matrix(config.layers.len() * p, d),
                proj_norm: normal.vec(p, 1.0, 0.2),
            }),
            layers: (0..config.layers.len())
                .map(|layer| LayerWeights::random(config, layer, &mut normal))
                .collect(),
        }
    }
}

impl LayerWeights {
    fn random(config: &Config, layer: usize, normal: &mut Normal) -> LayerWeights {
        let l = &config.layers[layer];
        let (d, p, f) = (config.width, config.per_layer_width, l.ffn_width);
        let (queries, keys) = (l.heads * l.head_size, l.kv_heads * l.head_size);
        let own_keys = l.kv_donor.is_none();
        // Scores are a sum of K products of unit-RMS elements times both norms: keep their spread near 1.5.
        let k_norm = 1.7 * (l.head_size as f64).powf(-0.5);
        LayerWeights {
            attn_norm: normal.vec(d, 1.0, 0.2),
            attn_q: normal.matrix(queries, d),
            attn_k: own_keys.then(|| normal.matrix(keys, d)),
            attn_v: (own_keys && !l.k_eq_v).then(|| normal.matrix(keys, d)),
            attn_q_norm: normal.vec(l.head_size, 0.9, 0.1),
            attn_k_norm: own_keys.then(|| normal.vec(l.head_size, k_norm, 0.12 * k_norm)),
            attn_output: normal.matrix(d, queries),
            post_attention_norm: normal.vec(d, 0.35, 0.05),
            ffn_norm: normal.vec(d, 1.0, 0.2),
            ffn_gate: normal.matrix(f, d),
            ffn_up: normal.matrix(f, d),
            ffn_down: normal.matrix(d, f),
            post_ffw_norm: normal.vec(d, 0.35, 0.05),
            per_layer: (p > 0).then(|| PerLayerBranchWeights {
                inp_gate: normal.matrix(p, d),
                proj: normal.matrix(d, p),
                post_norm: normal.vec(d, 0.35, 0.05),
            }),
            output_scale: 0.8 + 0.25 * normal.uniform(),
        }
    }
}

/// A seeded source of normal numbers.
pub(super) struct Normal(ChaCha8Rng);

impl Normal {
    pub(super) fn new(seed: u64) -> Normal {
        Normal(ChaCha8Rng::seed_from_u64(seed))
    }

    /// `N(mean, std²)`, by Box and Muller; rounded to f32, so that a GPU can hold exactly the same numbers.
    pub(super) fn vec(&mut self, len: usize, mean: f64, std: f64) -> Vec<f64> {
        let mut values = Vec::with_capacity(len);
        for _ in 0..len {
            let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
            let angle = 2.0 * std::f64::consts::PI * self.uniform();
            values.push(f64::from((mean + std * radius * angle.cos()) as f32));
        }
        values
    }

    /// A projection `[out, in]` that keeps the RMS: `N(0, 1/in)`.
    fn matrix(&mut self, out_features: usize, in_features: usize) -> Vec<f64> {
        self.vec(out_features * in_features, 0.0, (in_features as f64).powf(-0.5))
    }

    fn sign(&mut self) -> f64 {
        if self.0.random::<bool>() { 1.0 } else { -1.0 }
    }

    /// `[0, 1)`, exact in f32.
    fn uniform(&mut self) -> f64 {
        f64::from(self.0.random::<f32>())
    }
}
