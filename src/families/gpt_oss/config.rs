//! GGUF metadata → [`Config`]. Source: llama.cpp `src/models/openai-moe.cpp`, and transformers' `GptOssConfig`.

use super::NAME;
use crate::base::config::{Activation, Config, LayerConfig};
use crate::base::tensors::{find, require};
use crate::base::{Error, Gguf, Module};
use crate::families::metadata::{Keys, WIDEST};
use crate::families::uniform::{experts, head_size, heads, layer_count, stretch};

/// The matrices that have a bias: all.
const BIASES: [Module; 7] = [
    Module::AttnQ,
    Module::AttnK,
    Module::AttnV,
    Module::AttnOutput,
    Module::FfnGateInp,
    Module::FfnGateUpExps,
    Module::FfnDownExps,
];

/// The shape of the model in `gguf`; an error where the keys make no sense.
pub(super) fn read(gguf: &Gguf) -> Result<Config, Error> {
    let keys = Keys { gguf, architecture: NAME };
    let count = layer_count(&keys)?;
    let width = keys.size("embedding_length", WIDEST)?;
    let vocab = require(gguf, "token_embd", &[width])?.shape.get(1).copied().unwrap_or(1);
    let (heads, kv_heads) = heads(&keys)?;
    let head_size = head_size(&keys, width, heads)?;
    let Some(experts) = experts(&keys)? else {
        return Err(keys.wrong("expert_count", "the number of experts"));
    };
    let window = keys.size("attention.sliding_window", u32::MAX)?;
    let rope_base = keys.positive("rope.freq_base")?.into();
    // transformers does not round the bounds of this model.
    let stretch = stretch(&keys, rope_base, false)?;
    let layer = LayerConfig {
        heads,
        kv_heads,
        head_size,
        rope_base,
        rope_divisor: stretch.divisor,
        yarn: stretch.yarn,
        biases: BIASES.into(),
        score_scale: (head_size as f64).sqrt().recip(),
        sinks: true,
        activation: Activation::SwigluOai,
        experts: Some(experts),
        ..LayerConfig::default()
    };
    let layers = (0..count).map(|i| LayerConfig {
        window: i.is_multiple_of(2).then_some(window),
        experts_split: find(gguf, &format!("blk.{i}.ffn_gate_up_exps")).is_none(),
        ..layer.clone()
    });
    Ok(Config {
        architecture: NAME,
        width,
        vocab,
        rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
        context_length: keys.size("context_length", u32::MAX)?,
        layers: layers.collect(),
        ..Config::default()
    })
}
