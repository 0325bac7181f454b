//! The frozen base as f64 matrices with GGUF names.

use crate::base::config::{Activation, Config, Experts};
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
    /// `[D]`.
    pub attn_norm: Vec<f64>,
    /// `[H·K, D]`.
    pub attn_q: Vec<f64>,
    /// `[G·K, D]`; `None` if the layer uses a donor's keys and values.
    pub attn_k: Option<Vec<f64>>,
    /// `[G·K, D]`; `None` if the layer has a donor, or if the values are the raw keys.
    pub attn_v: Option<Vec<f64>>,
    /// `[K]`.
    pub attn_q_norm: Vec<f64>,
    /// `[K]`; `None` if the layer uses a donor's keys and values.
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
    /// The layer's weights for its per-layer input; `None` if `P` is 0.
    pub per_layer: Option<PerLayerBranchWeights>,
    /// The experts; `None` in dense models.
    pub experts: Option<ExpertWeights>,
    /// `layer_output_scale`, which multiplies the residual stream; 1 if the file has none.
    pub output_scale: f64,
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
    /// `ffn_gate_inp.scale`, `[D]`.
    pub router_scale: Vec<f64>,
    /// `ffn_gate_up_exps`, `[E, 2·F, D]`: an expert's gate rows precede its up rows.
    pub gate_up: Vec<f64>,
    /// `ffn_down_exps`, `[E, D, F]`.
    pub down: Vec<f64>,
    /// `ffn_down_exps.scale`, `[E]`.
    pub down_scale: Vec<f64>,
    /// Norm after the dense feed-forward block, `[D]`.
    pub post_ffw_norm_1: Vec<f64>,
    /// Norm before the experts, `[D]`.
    pub pre_ffw_norm_2: Vec<f64>,
    /// Norm after the experts, `[D]`.
    pub post_ffw_norm_2: Vec<f64>,
}

/// Why tensors do not form a model.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum WeightsError {
    /// A tensor that the configuration requires is missing.
    #[error("tensor {0} is missing, but the configuration requires it; take both from the same base")]
    Missing(String),
    /// A tensor has a different size than the configuration requires.
    #[error(
        "tensor {name} has {found} elements, but the configuration requires {expected}; take both from the same base"
    )]
    Length {
        /// GGUF name.
        name: String,
        /// Number of elements found.
        found: usize,
        /// Number of elements expected.
        expected: usize,
    },
}

impl Weights {
    /// Collects the dequantized tensors, row-major `[out, in]`. `tensor` gets GGUF names without `.weight` (`blk.3.attn_q`).
    ///
    /// Requests only tensors that the model uses; `output` and `layer_output_scale` may be missing.
    pub fn from_tensors(
        config: &Config,
        mut tensor: impl FnMut(&str) -> Option<Vec<f64>>,
    ) -> Result<Weights, WeightsError> {
        let mut optional = |name: &str, expected: usize| match tensor(name) {
            Some(values) if values.len() != expected => {
                Err(WeightsError::Length { name: name.to_string(), found: values.len(), expected })
            }
            values => Ok(values),
        };
        let (d, p, v, layers) = (config.width, config.per_layer_width, config.vocab, config.layers.len());
        let output = optional("output", v * d)?;
        let mut scales = Vec::new();
        let mut fused = Vec::new();
        for layer in 0..layers {
            let experts = &config.layers[layer].experts;
            let gate_up = experts
                .map(|e| optional(&format!("blk.{layer}.ffn_gate_up_exps"), e.count * 2 * e.width * d));
            fused.push(gate_up.transpose()?.flatten());
            let scale = optional(&format!("blk.{layer}.layer_output_scale"), 1)?;
            scales.push(scale.map_or(1.0, |scale| scale[0]));
        }
        let mut required = |name: &str, expected: usize| {
            optional(name, expected)?.ok_or_else(|| WeightsError::Missing(name.to_string()))
        };
        let mut weights = Weights {
            token_embd: required("token_embd", v * d)?,
            output_norm: required("output_norm", d)?,
            output,
            per_layer: None,
            layers: Vec::new(),
        };
        if p > 0 {
            weights.per_layer = Some(PerLayerInputWeights {
                token_embd: required("per_layer_token_embd", v * layers * p)?,
                model_proj: required("per_layer_model_proj", layers * p * d)?,
                proj_norm: required("per_layer_proj_norm", p)?,
            });
        }
        for (layer, (output_scale, gate_up)) in scales.into_iter().zip(fused).enumerate() {
            let mut required = |name: &str, len: usize| required(&format!("blk.{layer}.{name}"), len);
            let mut weights_of = LayerWeights::from_tensors(config, layer, output_scale, &mut required)?;
            if let Some(experts) = config.layers[layer].experts {
                weights_of.experts = Some(ExpertWeights::from_tensors(&experts, d, gate_up, &mut required)?);
            }
            weights.layers.push(weights_of);
        }
        Ok(weights)
    }
}

impl LayerWeights {
    fn from_tensors(
        config: &Config,
        layer: usize,
        output_scale: f64,
        required: &mut impl FnMut(&str, usize) -> Result<Vec<f64>, WeightsError>,
    ) -> Result<LayerWeights, WeightsError> {
        let l = &config.layers[layer];
        let (d, p, f) = (config.width, config.per_layer_width, l.ffn_width);
        let (queries, keys) = (l.heads * l.head_size, l.kv_heads * l.head_size);
        let (mut attn_k, mut attn_v, mut attn_k_norm, mut per_layer) = (None, None, None, None);
        if l.kv_donor.is_none() {
            attn_k = Some(required("attn_k", keys * d)?);
            attn_k_norm = Some(required("attn_k_norm", l.head_size)?);
            if !l.k_eq_v {
                attn_v = Some(required("attn_v", keys * d)?);
            }
        }
        if p > 0 {
            per_layer = Some(PerLayerBranchWeights {
                inp_gate: required("inp_gate", p * d)?,
                proj: required("proj", d * p)?,
                post_norm: required("post_norm", d)?,
            });
        }
        Ok(LayerWeights {
            attn_norm: required("attn_norm", d)?,
            attn_q: required("attn_q", queries * d)?,
            attn_k,
            attn_v,
            attn_q_norm: required("attn_q_norm", l.head_size)?,
            attn_k_norm,
            attn_output: required("attn_output", d * queries)?,
            post_attention_norm: required("post_attention_norm", d)?,
            ffn_norm: required("ffn_norm", d)?,
            ffn_gate: required("ffn_gate", f * d)?,
            ffn_up: required("ffn_up", f * d)?,
            ffn_down: required("ffn_down", d * f)?,
            post_ffw_norm: required("post_ffw_norm", d)?,
            per_layer,
            experts: None,
            output_scale,
        })
    }
}

impl ExpertWeights {
    fn from_tensors(
        experts: &Experts,
        d: usize,
        fused: Option<Vec<f64>>,
        required: &mut impl FnMut(&str, usize) -> Result<Vec<f64>, WeightsError>,
    ) -> Result<ExpertWeights, WeightsError> {
        let Experts { count, width, .. } = *experts;
        let gate_up = match fused {
            Some(gate_up) => gate_up,
            None => {
                let gate = required("ffn_gate_exps", count * width * d)?;
                let up = required("ffn_up_exps", count * width * d)?;
                let pairs = gate.chunks_exact(width * d).zip(up.chunks_exact(width * d));
                pairs.flat_map(|(gate, up)| [gate, up].concat()).collect()
            }
        };
        Ok(ExpertWeights {
            router: required("ffn_gate_inp", count * d)?,
            router_scale: required("ffn_gate_inp.scale", d)?,
            gate_up,
            down: required("ffn_down_exps", count * d * width)?,
            down_scale: required("ffn_down_exps.scale", count)?,
            post_ffw_norm_1: required("post_ffw_norm_1", d)?,
            pre_ffw_norm_2: required("pre_ffw_norm_2", d)?,
            post_ffw_norm_2: required("post_ffw_norm_2", d)?,
        })
    }

    /// `ffn_gate_inp.scale/√D`: the weights of the norm before the router.
    pub(super) fn router_norm(&self) -> Vec<f64> {
        let root = (self.router_scale.len() as f64).sqrt();
        self.router_scale.iter().map(|s| s / root).collect()
    }

    pub(super) fn matrices(&self, width: usize, activation: Activation) -> experts::Experts<'_> {
        experts::Experts {
            gate_up: &self.gate_up,
            down: &self.down,
            scale: &self.down_scale,
            width,
            activation,
            gate_up_lora: None,
            down_lora: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::config::LayerConfig;

    /// Two layers; the second reads the keys and values of the first.
    fn config() -> Config {
        let layer = LayerConfig {
            window: None,
            heads: 2,
            kv_heads: 1,
            head_size: 2,
            ffn_width: 5,
            rope_base: 1e4,
            kv_donor: None,
            k_eq_v: false,
            experts: None,
            expert_scales: Vec::new(),
            experts_split: false,
            rope_factors: false,
            qk_norm: true,
            v_norm: true,
            score_scale: 1.0,
            post_norms: true,
            activation: Default::default(),
        };
        Config {
            architecture: "test",
            width: 3,
            embedding_scale: 3f32.sqrt(),
            vocab: 7,
            per_layer_width: 2,
            per_layer_activation: Default::default(),
            rms_eps: 1e-6,
            softcap: None,
            context_length: 8,
            rope_freq_factors: None,
            layers: vec![layer.clone(), LayerConfig { kv_donor: Some(0), ..layer }],
        }
    }

    /// Number of elements of the tensors of [`config`].
    fn length(name: &str) -> Option<usize> {
        Some(match name.trim_start_matches("blk.0.").trim_start_matches("blk.1.") {
            "token_embd" => 21,
            "per_layer_token_embd" => 28,
            "per_layer_model_proj" => 12,
            "attn_q" | "attn_output" => 12,
            "attn_k" | "attn_v" | "inp_gate" | "proj" => 6,
            "ffn_gate" | "ffn_up" | "ffn_down" => 15,
            "attn_q_norm" | "attn_k_norm" | "per_layer_proj_norm" => 2,
            "output" | "layer_output_scale" => return None,
            norm if norm.ends_with("norm") => 3,
            name => panic!("asked for the unknown tensor {name}"),
        })
    }

    #[test]
    fn tensors_are_asked_for_by_their_gguf_names() {
        let mut asked = Vec::new();
        let weights = Weights::from_tensors(&config(), |name| {
            asked.push(name.to_string());
            length(name).map(|len| vec![0.5; len])
        });
        let weights = weights.expect("all tensors are there");
        assert_eq!((weights.output, weights.layers[0].output_scale), (None, 1.0));
        // 3 + 3 global tensors; 14 + 3 per layer, of which the second does not use its k, v and k_norm.
        assert_eq!(asked.len(), 6 + 17 + 14, "{asked:?}");
        assert!(!asked.contains(&"blk.1.attn_k".to_string()));
    }

    #[test]
    fn wrong_tensors_are_named() {
        let without = |gone: &'static str| {
            move |name: &str| length(name).filter(|_| name != gone).map(|len| vec![0.5; len])
        };
        assert_eq!(
            Weights::from_tensors(&config(), without("blk.1.ffn_up")),
            Err(WeightsError::Missing("blk.1.ffn_up".to_string()))
        );
        let short =
            |name: &str| length(name).map(|len| vec![0.5; if name == "blk.0.proj" { 5 } else { len }]);
        assert_eq!(
            Weights::from_tensors(&config(), short),
            Err(WeightsError::Length { name: "blk.0.proj".to_string(), found: 5, expected: 6 })
        );
    }

    #[test]
    fn random_weights_have_the_shapes_of_the_configuration() {
        let weights = Weights::random(&config(), 1);
        assert_eq!(weights.token_embd.len(), 21);
        assert_eq!(weights.layers[0].attn_k.as_ref().map(Vec::len), Some(6));
        assert_eq!((&weights.layers[1].attn_k, &weights.layers[1].attn_v), (&None, &None));
        assert_eq!(weights, Weights::random(&config(), 1));
        assert_ne!(weights, Weights::random(&config(), 2));
    }
}
