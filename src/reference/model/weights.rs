//! The frozen base as f64 matrices with GGUF names.

use std::collections::BTreeMap;

use crate::base::Module;
use crate::base::config::{Activation, Latent};

use crate::reference::experts;

/// Every tensor of a model, row-major `[out, in]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// `[V, D]`.
    pub token_embd: Vec<f64>,
    /// `[D]`.
    pub output_norm: Vec<f64>,
    /// Output matrix, `[V, D]`; `None` if it is tied to the embedding.
    pub output: Option<Vec<f64>>,
    /// Weights of the per-layer inputs that all layers share; `None` if `P` is 0.
    pub per_layer: Option<PerLayerInputWeights>,
    /// The layers, `L`.
    pub layers: Vec<LayerWeights>,
}

/// Weights that compute a token's per-layer inputs.
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
    /// `[D]`; `None` without such a norm.
    pub attn_norm: Option<Vec<f64>>,
    /// `[H·K, D]`.
    pub attn_q: Vec<f64>,
    /// `[G·K, D]`; `None` if the layer uses a donor's keys and values.
    pub attn_k: Option<Vec<f64>>,
    /// `[G·K, D]`; `None` if the layer has a donor, or if the values are the raw keys.
    pub attn_v: Option<Vec<f64>>,
    /// `[K]`, or `[H·K]` for whole rows; `None` if queries are not normed.
    pub attn_q_norm: Option<Vec<f64>>,
    /// `[K]`, or `[G·K]` for whole rows; `None` if keys are not normed, or if the layer uses a donor's keys and values.
    pub attn_k_norm: Option<Vec<f64>>,
    /// `[D, H·K]`.
    pub attn_output: Vec<f64>,
    /// `[D]`; `None` without such a norm.
    pub post_attention_norm: Option<Vec<f64>>,
    /// `[D]`; `None` without such a norm.
    pub ffn_norm: Option<Vec<f64>>,
    /// `[F, D]`; empty if the layer has experts alone.
    pub ffn_gate: Vec<f64>,
    /// `[F, D]`.
    pub ffn_up: Vec<f64>,
    /// `[D, F]`.
    pub ffn_down: Vec<f64>,
    /// `[D]`; `None` without such a norm.
    pub post_ffw_norm: Option<Vec<f64>>,
    /// The layer's weights for its per-layer input; `None` if `P` is 0.
    pub per_layer: Option<PerLayerBranchWeights>,
    /// The experts; `None` in dense models.
    pub experts: Option<ExpertWeights>,
    /// `layer_output_scale`, which multiplies the residual stream; 1 if the file has none.
    pub output_scale: f64,
    /// Sinks of the query heads, `[H]`; `None` without.
    pub sinks: Option<Vec<f64>>,
    /// The delta net in the place of attention, whose matrices are empty then; `None` where the layer has attention.
    pub delta: Option<DeltaWeights>,
    /// The short convolution in the place of attention; `None` where the layer has attention or a delta net.
    pub short_conv: Option<ShortConvWeights>,
    /// The matrices of latent vectors in the place of `attn_q`, `attn_k` and `attn_v`; `None` without latent vectors.
    pub latent: Option<LatentWeights>,
    /// Frozen biases `[out]` of the matrices that have one; for experts `[E, out]`.
    pub biases: BTreeMap<Module, Vec<f64>>,
}

/// A gated delta net.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaWeights {
    /// `attn_qkv`, `[C, D]`.
    pub qkv: Vec<f64>,
    /// `attn_gate`, `[Hv·K, D]`.
    pub gate: Vec<f64>,
    /// `ssm_alpha`, `[Hv, D]`.
    pub alpha: Vec<f64>,
    /// `ssm_beta`, `[Hv, D]`.
    pub beta: Vec<f64>,
    /// `ssm_conv1d`, `[C, 4]`.
    pub taps: Vec<f64>,
    /// `ssm_a`, `−exp(A_log)`, `[Hv]`.
    pub a: Vec<f64>,
    /// `ssm_dt.bias`, `[Hv]`.
    pub dt: Vec<f64>,
    /// `ssm_norm`, `[K]`.
    pub norm: Vec<f64>,
    /// `ssm_out`, `[D, Hv·K]`.
    pub out: Vec<f64>,
}

/// The matrices of attention whose keys and values come from a latent vector.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentWeights {
    /// Their sizes.
    pub shape: Latent,
    /// `attn_q_a` `[Rq, D]` and its norm `[Rq]`; `None` where one matrix makes the queries.
    pub q_a: Option<(Vec<f64>, Vec<f64>)>,
    /// `attn_q` or `attn_q_b`, `[H·K, D or Rq]`.
    pub q: Vec<f64>,
    /// `attn_kv_a_mqa`, `[n + Rk, D]`.
    pub kv_a: Vec<f64>,
    /// `attn_kv_a_norm`, `[Rk]`.
    pub kv_norm: Vec<f64>,
    /// `[H·(K − n), Rk]`.
    pub k_b: Vec<f64>,
    /// `[H·V, Rk]`.
    pub v_b: Vec<f64>,
}

/// A gated short convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvWeights {
    /// `shortconv.in_proj`, `[3·C, D]`.
    pub in_proj: Vec<f64>,
    /// `shortconv.conv`, `[C, n]`.
    pub taps: Vec<f64>,
    /// `shortconv.out_proj`, `[D, C]`.
    pub out_proj: Vec<f64>,
}

/// The weights that apply a layer's per-layer input.
#[derive(Clone, Debug, PartialEq)]
pub struct PerLayerBranchWeights {
    /// `[P, D]`.
    pub inp_gate: Vec<f64>,
    /// `[D, P]`.
    pub proj: Vec<f64>,
    /// `[D]`.
    pub post_norm: Vec<f64>,
}

/// The experts of a layer, their router and the norms around them.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertWeights {
    /// `ffn_gate_inp`, `[E, D]`.
    pub router: Vec<f64>,
    /// `exp_probs_b.bias`, `[E]`, which is added to sigmoids for the choice alone; empty without.
    pub selection: Vec<f64>,
    /// `ffn_gate_up_exps`, `[E, 2·F, D]`: an expert's gate rows precede its up rows.
    pub gate_up: Vec<f64>,
    /// `ffn_down_exps`, `[E, D, F]`.
    pub down: Vec<f64>,
    /// `ffn_down_exps.scale`, `[E]`; ones where the model has none.
    pub down_scale: Vec<f64>,
    /// The norms around the experts; `None` without a dense feed-forward block, where `ffn_norm` is the only one.
    pub norms: Option<ExpertNorms>,
    /// `ffn_gate_inp_shexp`, `[D]`, which scores a shared expert; `None` without one.
    pub shared_gate: Option<Vec<f64>>,
}

/// The norms around experts beside a dense feed-forward block.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertNorms {
    /// `ffn_gate_inp.scale`, `[D]`.
    pub router_scale: Vec<f64>,
    /// Norm after the dense feed-forward block, `[D]`.
    pub post_ffw_norm_1: Vec<f64>,
    /// Norm before the experts, `[D]`.
    pub pre_ffw_norm_2: Vec<f64>,
    /// Norm after the experts, `[D]`.
    pub post_ffw_norm_2: Vec<f64>,
}

impl ExpertWeights {
    pub(super) fn matrices<'a>(
        &'a self,
        width: usize,
        activation: Activation,
        biases: &'a BTreeMap<Module, Vec<f64>>,
    ) -> experts::Experts<'a> {
        let bias = |module: &Module| biases.get(module).map_or(&[][..], Vec::as_slice);
        experts::Experts {
            gate_up: &self.gate_up,
            down: &self.down,
            gate_up_bias: bias(&Module::FfnGateUpExps),
            down_bias: bias(&Module::FfnDownExps),
            scale: &self.down_scale,
            width,
            activation,
            gate_up_lora: None,
            down_lora: None,
        }
    }
}

impl ExpertNorms {
    /// `ffn_gate_inp.scale/√D`: the weights of the norm before the router.
    pub(super) fn router(&self) -> Vec<f64> {
        let root = (self.router_scale.len() as f64).sqrt();
        self.router_scale.iter().map(|s| s / root).collect()
    }
}
