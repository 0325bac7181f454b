//! Collects the f64 matrices of the reference from the dequantized tensors of a file.

use std::collections::BTreeMap;

use super::weights::*;
use crate::base::Module;
use crate::base::config::{Config, DeltaNet, Experts, Gating, Latent, LayerConfig, RowOrder, ShortConv};

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
                let norms = config.layers[layer].has_expert_norms();
                let experts = ExpertWeights::from_tensors(&experts, d, gate_up, norms, &mut required)?;
                weights_of.experts = Some(experts);
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
        // Longer than 60 lines: one line per tensor.
        let l = &config.layers[layer];
        let (d, p, f) = (config.width, config.per_layer_width, l.ffn_width);
        let (queries, keys) = (l.heads * l.head_size, l.kv_heads * l.head_size);
        let (mut attn_k, mut attn_v, mut attn_k_norm, mut per_layer) = (None, None, None, None);
        let has_attention = l.has_attention();
        let has_matrices = has_attention && l.latent.is_none();
        if l.kv_donor.is_none() && has_matrices {
            attn_k = Some(in_order(l.row_order(Module::AttnK), &required("attn_k", keys * d)?, d));
            if l.qk_norm {
                attn_k_norm = Some(required("attn_k_norm", l.qk_norm_sizes()[1])?);
            }
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
        let mut biases = BTreeMap::new();
        for module in &l.biases {
            let Some(len) = module.bias_len(config, layer) else { continue };
            let bias = match module {
                Module::FfnGateUpExps if l.experts_split => {
                    let gate = required("ffn_gate_exps.bias", len / 2)?;
                    let up = required("ffn_up_exps.bias", len / 2)?;
                    side_by_side(&gate, &up, l.experts.map_or(1, |experts| experts.width))
                }
                _ => required(&format!("{}.bias", module.gguf_name()), len)?,
            };
            biases.insert(*module, in_order(l.row_order(*module), &bias, 1));
        }
        let mut required_if =
            |present: bool, name: &str, len: usize| present.then(|| required(name, len)).transpose();
        let attn_q_norm = required_if(has_attention && l.qk_norm, "attn_q_norm", l.qk_norm_sizes()[0])?;
        let attn_norm = required_if(l.pre_norms, "attn_norm", d)?;
        let ffn_norm = required_if(l.pre_norms, "ffn_norm", d)?;
        let q_rows = if l.output_gate { 2 * queries } else { queries };
        let attn_q = required_if(has_matrices, "attn_q", q_rows * d)?.unwrap_or_default();
        let attn_output =
            required_if(has_attention, "attn_output", d * l.attention_width())?.unwrap_or_default();
        let sinks = required_if(l.sinks, "attn_sinks", l.heads)?;
        let post_attention_norm = required_if(l.post_norms, "post_attention_norm", d)?;
        let post_ffw_norm = required_if(l.post_norms, "post_ffw_norm", d)?;
        let mut dense =
            |module: Module| if f > 0 { required(module.gguf_name(), f * d) } else { Ok(Vec::new()) };
        let [gate, up, down] = l.dense_modules();
        Ok(LayerWeights {
            ffn_gate: dense(gate)?,
            ffn_up: dense(up)?,
            ffn_down: dense(down)?,
            attn_norm,
            attn_q: in_order(l.row_order(Module::AttnQ), &attn_q, d),
            attn_k,
            attn_v,
            attn_q_norm,
            attn_k_norm,
            attn_output,
            post_attention_norm,
            ffn_norm,
            post_ffw_norm,
            sinks,
            delta: l.delta.map(|delta| DeltaWeights::from_tensors(&delta, d, required)).transpose()?,
            short_conv: match &l.short_conv {
                Some(conv) => Some(ShortConvWeights::from_tensors(conv, d, required)?),
                None => None,
            },
            latent: match &l.latent {
                Some(latent) => Some(LatentWeights::from_tensors(l, latent, d, required)?),
                None => None,
            },
            biases,
            per_layer,
            experts: None,
            output_scale,
        })
    }
}

impl LatentWeights {
    fn from_tensors(
        l: &LayerConfig,
        shape: &Latent,
        d: usize,
        required: &mut impl FnMut(&str, usize) -> Result<Vec<f64>, WeightsError>,
    ) -> Result<LatentWeights, WeightsError> {
        let Latent { rank, query_rank, key_size, value_size, apart, .. } = *shape;
        let q_a = match query_rank {
            Some(rank) => Some((required("attn_q_a", rank * d)?, required("attn_q_a_norm", rank)?)),
            None => None,
        };
        let (q, inner) = if q_a.is_some() { ("attn_q_b", query_rank.unwrap_or(d)) } else { ("attn_q", d) };
        let (keys, values) = (l.heads * key_size * rank, l.heads * value_size * rank);
        let [k_b, v_b] = match apart {
            true => {
                // Transposed, head by head.
                let stored = required("attn_k_b", keys)?;
                let heads = stored.chunks_exact(key_size * rank);
                let head = |head: &[f64]| -> Vec<f64> {
                    (0..key_size).flat_map(|c| head.iter().skip(c).step_by(key_size).copied()).collect()
                };
                [heads.flat_map(head).collect(), required("attn_v_b", values)?]
            }
            false => {
                let mut part = |name: &str, module: Module, len: usize| {
                    let all = required(name, keys + values)?;
                    let order = l.row_order(module);
                    let row = |row: usize| order.map_or(row, |order| order.stored(row));
                    let rows = (0..len / rank).flat_map(|i| &all[row(i) * rank..][..rank]);
                    Ok(rows.copied().collect::<Vec<f64>>())
                };
                [part("attn_k_b", Module::AttnKB, keys)?, part("attn_v_b", Module::AttnVB, values)?]
            }
        };
        Ok(LatentWeights {
            shape: *shape,
            q: in_order(Some(shape.queries()), &required(q, l.heads * l.head_size * inner)?, inner),
            q_a,
            kv_a: in_order(Some(shape.vectors()), &required("attn_kv_a_mqa", shape.both() * d)?, d),
            kv_norm: required("attn_kv_a_norm", rank)?,
            k_b,
            v_b,
        })
    }
}

impl ShortConvWeights {
    fn from_tensors(
        conv: &ShortConv,
        d: usize,
        required: &mut impl FnMut(&str, usize) -> Result<Vec<f64>, WeightsError>,
    ) -> Result<ShortConvWeights, WeightsError> {
        Ok(ShortConvWeights {
            in_proj: required("shortconv.in_proj", 3 * conv.channels * d)?,
            taps: required("shortconv.conv", conv.channels * conv.taps)?,
            out_proj: required("shortconv.out_proj", d * conv.channels)?,
        })
    }
}

impl DeltaWeights {
    fn from_tensors(
        delta: &DeltaNet,
        d: usize,
        required: &mut impl FnMut(&str, usize) -> Result<Vec<f64>, WeightsError>,
    ) -> Result<DeltaWeights, WeightsError> {
        let heads = delta.value_heads;
        Ok(DeltaWeights {
            qkv: required("attn_qkv", delta.channels() * d)?,
            gate: required("attn_gate", delta.values() * d)?,
            alpha: required("ssm_alpha", heads * d)?,
            beta: required("ssm_beta", heads * d)?,
            taps: required("ssm_conv1d", delta.channels() * 4)?,
            a: required("ssm_a", heads)?,
            dt: required("ssm_dt.bias", heads)?,
            norm: required("ssm_norm", delta.head_size)?,
            out: required("ssm_out", d * delta.values())?,
        })
    }
}

impl ExpertWeights {
    fn from_tensors(
        experts: &Experts,
        d: usize,
        fused: Option<Vec<f64>>,
        has_norms: bool,
        required: &mut impl FnMut(&str, usize) -> Result<Vec<f64>, WeightsError>,
    ) -> Result<ExpertWeights, WeightsError> {
        let Experts { count, width, .. } = *experts;
        let gate_up = match fused {
            Some(gate_up) => gate_up,
            None => {
                let gate = required("ffn_gate_exps", count * width * d)?;
                let up = required("ffn_up_exps", count * width * d)?;
                side_by_side(&gate, &up, width * d)
            }
        };
        Ok(ExpertWeights {
            router: required("ffn_gate_inp", count * d)?,
            selection: match experts.gating {
                Gating::Sigmoid => required("exp_probs_b.bias", count)?,
                Gating::Chosen | Gating::All => Vec::new(),
            },
            gate_up,
            down: required("ffn_down_exps", count * d * width)?,
            down_scale: match has_norms {
                true => required("ffn_down_exps.scale", count)?,
                false => vec![experts.scale.into(); count],
            },
            norms: match has_norms {
                true => Some(ExpertNorms {
                    router_scale: required("ffn_gate_inp.scale", d)?,
                    post_ffw_norm_1: required("post_ffw_norm_1", d)?,
                    pre_ffw_norm_2: required("pre_ffw_norm_2", d)?,
                    post_ffw_norm_2: required("post_ffw_norm_2", d)?,
                }),
                false => None,
            },
            shared_gate: match experts.scores_shared() {
                true => Some(required("ffn_gate_inp_shexp", d)?),
                false => None,
            },
        })
    }
}

/// Every `len` values of gate, each before as many of up.
fn side_by_side(gate: &[f64], up: &[f64], len: usize) -> Vec<f64> {
    let pairs = gate.chunks_exact(len).zip(up.chunks_exact(len));
    pairs.flat_map(|(gate, up)| [gate, up].concat()).collect()
}

/// The rows of a matrix, `width` values each, in the order of memory.
fn in_order(order: Option<RowOrder>, stored: &[f64], width: usize) -> Vec<f64> {
    order.map_or_else(|| stored.to_vec(), |order| order.sorted(stored, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers; the second reads the keys and values of the first.
    fn config() -> Config {
        let layer = LayerConfig {
            heads: 2,
            kv_heads: 1,
            head_size: 2,
            ffn_width: 5,
            qk_norm: true,
            v_norm: true,
            post_norms: true,
            ..LayerConfig::default()
        };
        Config {
            architecture: "test",
            width: 3,
            embedding_scale: 3f32.sqrt(),
            vocab: 7,
            per_layer_width: 2,
            context_length: 8,
            layers: vec![layer.clone(), LayerConfig { kv_donor: Some(0), ..layer }],
            ..Config::default()
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
