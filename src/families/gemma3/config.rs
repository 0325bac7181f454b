//! GGUF metadata → [`Config`]. Source: llama.cpp `src/models/gemma3.cpp`, and Ollama's names of the rotary bases.

use super::NAME;
use crate::base::config::{Activation, Config, LayerConfig};
use crate::base::tensors::require;
use crate::base::{Error, Gguf};
use crate::families::keys::{Keys, WIDEST};
use crate::families::uniform::{head_size, heads, layer_count, stretch};

/// Every so many layers one has full attention, where the file does not say which.
const FULL_EVERY: usize = 6;
/// Layers of the 27B model, whose scores are scaled by the model's width per head.
const LAYERS_27B: usize = 62;

/// The shape of the text model in `gguf`; an error where the keys make no sense.
pub(super) fn read(gguf: &Gguf) -> Result<Config, Error> {
    let keys = Keys { gguf, architecture: NAME };
    let count = layer_count(&keys)?;
    let width = keys.size("embedding_length", WIDEST)?;
    let vocab = require(gguf, "token_embd", &[width])?.shape.get(1).copied().unwrap_or(1);
    let (heads, kv_heads) = heads(&keys)?;
    let head_size = head_size(&keys, width, heads)?;
    let score_width = if count == LAYERS_27B { width / heads } else { head_size };
    let window = keys.size("attention.sliding_window", u32::MAX)?;
    let full_base = rope_base(&keys, ["rope.freq_base", "rope.global.freq_base"], 1e6)?;
    let sliding_base = rope_base(&keys, ["rope.freq_base_swa", "rope.local.freq_base"], 1e4)?;
    let stretch = stretch(&keys, full_base, true)?;
    let ffn_width = keys.sizes("feed_forward_length", count, WIDEST)?;
    let is_sliding = sliding(&keys, count)?;
    let layer = |i: usize| LayerConfig {
        window: is_sliding[i].then_some(window),
        heads,
        kv_heads,
        head_size,
        ffn_width: ffn_width[i],
        rope_base: if is_sliding[i] { sliding_base } else { full_base },
        rope_divisor: if is_sliding[i] { 1.0 } else { stretch.divisor },
        yarn: stretch.yarn.filter(|_| !is_sliding[i]),
        qk_norm: true,
        score_scale: (score_width as f64).sqrt().recip(),
        post_norms: true,
        activation: Activation::Gelu,
        ..LayerConfig::default()
    };
    Ok(Config {
        architecture: NAME,
        width,
        vocab,
        embedding_scale: (width as f64).sqrt() as f32,
        per_layer_width: 0,
        per_layer_activation: Activation::Gelu,
        rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
        // Ollama's files have a cap that Gemma 3 does not apply.
        softcap: None,
        context_length: keys.size("context_length", u32::MAX)?,
        rope_freq_factors: None,
        layers: (0..count).map(layer).collect(),
    })
}

/// The base of the rotary frequencies, by llama.cpp's or Ollama's key.
fn rope_base(keys: &Keys, names: [&str; 2], default: f32) -> Result<f64, Error> {
    let name = names.into_iter().find(|name| keys.gguf.value(&keys.key(name)).is_some());
    Ok(name.map_or(Ok(default), |name| keys.positive(name))?.into())
}

/// Whether each layer sees a window alone. The key holds the distance of full layers, or one bool for each layer.
fn sliding(keys: &Keys, count: usize) -> Result<Vec<bool>, Error> {
    let name = "attention.sliding_window_pattern";
    if let Ok(Some(every)) = keys.integer(name) {
        let every = (every as usize).max(1);
        return Ok((0..count).map(|i| i % every != every - 1).collect());
    }
    match keys.gguf.value(&keys.key(name)) {
        Some(_) => keys.pattern(name, count),
        None => Ok((0..count).map(|i| i % FULL_EVERY != FULL_EVERY - 1).collect()),
    }
}
