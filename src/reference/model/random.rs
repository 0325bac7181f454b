//! Random weights for tests.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::weights::{
    DeltaWeights, ExpertNorms, ExpertWeights, LatentWeights, LayerWeights, PerLayerBranchWeights,
    PerLayerInputWeights, ShortConvWeights, Weights,
};
use crate::base::Module;
use crate::base::config::{Config, DeltaNet, Experts, Gating, Latent, LayerConfig};

impl Weights {
    /// Random weights at scales at which every path matters: embeddings of RMS 1, moderate attention scores, branches that
    /// change the residual stream by a third, logits that reach the softcap, and an output norm with mixed signs, so that the
    /// tied head does not merely reproduce its input.
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
        let has_attention = l.has_attention();
        let own_keys = l.kv_donor.is_none() && has_attention && l.latent.is_none();
        let q_rows = if l.output_gate { 2 * queries } else { queries };
        // Scores are sums of K products of unit-RMS elements and of both norms: keep their spread near 1.5.
        let k_norm = 1.7 * (l.head_size as f64).powf(-0.5);
        LayerWeights {
            attn_norm: l.pre_norms.then(|| normal.vec(d, 1.0, 0.2)),
            attn_q: if l.latent.is_some() { Vec::new() } else { normal.matrix(q_rows, d) },
            attn_k: own_keys.then(|| normal.matrix(keys, d)),
            attn_v: (own_keys && !l.k_eq_v).then(|| normal.matrix(keys, d)),
            attn_q_norm: (has_attention && l.qk_norm).then(|| normal.vec(l.qk_norm_sizes()[0], 0.9, 0.1)),
            attn_k_norm: (own_keys && l.qk_norm)
                .then(|| normal.vec(l.qk_norm_sizes()[1], k_norm, 0.12 * k_norm)),
            attn_output: normal.matrix(d, l.attention_width()),
            post_attention_norm: l.post_norms.then(|| normal.vec(d, 0.35, 0.05)),
            ffn_norm: l.pre_norms.then(|| normal.vec(d, 1.0, 0.2)),
            ffn_gate: normal.matrix(f, d),
            ffn_up: normal.matrix(f, d),
            ffn_down: normal.matrix(d, f),
            post_ffw_norm: l.post_norms.then(|| normal.vec(d, 0.35, 0.05)),
            per_layer: (p > 0).then(|| PerLayerBranchWeights {
                inp_gate: normal.matrix(p, d),
                proj: normal.matrix(d, p),
                post_norm: normal.vec(d, 0.35, 0.05),
            }),
            output_scale: 0.8 + 0.25 * normal.uniform(),
            experts: l.experts.map(|e| ExpertWeights::random(&e, d, l.has_expert_norms(), normal)),
            sinks: l.sinks.then(|| normal.vec(l.heads, 0.0, 1.0)),
            delta: l.delta.map(|delta| DeltaWeights::random(&delta, d, normal)),
            short_conv: l.short_conv.map(|conv| ShortConvWeights {
                in_proj: normal.matrix(3 * conv.channels, d),
                taps: normal.vec(conv.channels * conv.taps, 0.0, 0.7),
                out_proj: normal.matrix(d, conv.channels),
            }),
            latent: l.latent.map(|latent| LatentWeights::random(l, latent, d, normal)),
            biases: biases(config, layer, normal),
        }
    }
}

impl LatentWeights {
    fn random(l: &LayerConfig, shape: Latent, d: usize, normal: &mut Normal) -> LatentWeights {
        let Latent { rank, query_rank, .. } = shape;
        let a = query_rank.map(|rank| (normal.matrix(rank, d), normal.vec(rank, 1.0, 0.2)));
        LatentWeights {
            shape,
            q_a: a,
            q: normal.matrix(l.heads * l.head_size, query_rank.unwrap_or(d)),
            kv_a: normal.matrix(shape.both(), d),
            kv_norm: normal.vec(rank, 1.0, 0.2),
            k_b: normal.matrix(l.heads * shape.key_size, rank),
            v_b: normal.matrix(l.heads * shape.value_size, rank),
        }
    }
}

impl DeltaWeights {
    /// Decays from a memory of a few tokens to one of many.
    fn random(delta: &DeltaNet, d: usize, normal: &mut Normal) -> DeltaWeights {
        let heads = delta.value_heads;
        DeltaWeights {
            qkv: normal.matrix(delta.channels(), d),
            gate: normal.matrix(delta.values(), d),
            alpha: normal.matrix(heads, d),
            beta: normal.matrix(heads, d),
            taps: normal.vec(delta.channels() * 4, 0.0, 0.5),
            a: (0..heads).map(|head| -f64::from(0.05 * 3f32.powi(head as i32))).collect(),
            dt: normal.vec(heads, 0.0, 0.7),
            norm: normal.vec(delta.head_size, 1.0, 0.2),
            out: normal.matrix(d, delta.values()),
        }
    }
}

impl ExpertWeights {
    /// Scores with a spread of about 1.5, so that no expert dominates.
    fn random(experts: &Experts, d: usize, has_norms: bool, normal: &mut Normal) -> ExpertWeights {
        let Experts { count, width, .. } = *experts;
        let router = normal.matrix(count, d);
        let router_scale = has_norms.then(|| normal.vec(d, 1.5 * (d as f64).sqrt(), 0.2));
        ExpertWeights {
            router,
            selection: match experts.gating {
                Gating::Sigmoid => normal.vec(count, 0.0, 0.3),
                Gating::Chosen | Gating::All => Vec::new(),
            },
            gate_up: normal.matrix(count * 2 * width, d),
            down: normal.matrix(count * d, width),
            down_scale: match has_norms {
                true => (0..count).map(|_| 0.5 + normal.uniform()).collect(),
                false => vec![experts.scale.into(); count],
            },
            norms: router_scale.map(|router_scale| ExpertNorms {
                router_scale,
                post_ffw_norm_1: normal.vec(d, 1.0, 0.2),
                pre_ffw_norm_2: normal.vec(d, 1.0, 0.2),
                post_ffw_norm_2: normal.vec(d, 1.0, 0.2),
            }),
            shared_gate: experts.scores_shared().then(|| normal.matrix(1, d)),
        }
    }
}

/// Biases of a third of what their matrices give.
fn biases(config: &Config, layer: usize, normal: &mut Normal) -> BTreeMap<Module, Vec<f64>> {
    let shapes = config.layers[layer].biases.iter().filter_map(|m| Some((*m, m.bias_len(config, layer)?)));
    shapes.map(|(module, len)| (module, normal.vec(len, 0.0, 0.3))).collect()
}

/// A seeded source of normal numbers.
pub(super) struct Normal(ChaCha8Rng);

impl Normal {
    pub(super) fn new(seed: u64) -> Normal {
        Normal(ChaCha8Rng::seed_from_u64(seed))
    }

    /// `N(mean, std²)` by Box–Muller, rounded to f32, so that a GPU can represent exactly the same numbers.
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
