//! Gemma 2: Gemma 3's blocks without norms of queries and keys, with a softcap on the scores, and windows in every second layer.

use super::metadata::{Keys, WIDEST};
use super::random::Tensors;
use super::uniform::{head_size, heads, layer_count};
use super::{Family, Shape, gemma3};
use crate::base::config::{Activation, Config, LayerConfig};
use crate::base::gguf::value::Value;
use crate::base::tensors::require;
use crate::base::{Error, Gguf};
use crate::data::template::BuiltIn;

/// `general.architecture`.
const NAME: &str = "gemma2";

/// Gemma 2 2B, 9B and 27B.
pub static FAMILY: Family = Family {
    name: NAME,
    title: "Gemma 2",
    example: "gemma2:2b",
    config,
    template: |_| &CHAT,
    shapes: &SHAPES,
    small_shape: Shape { family: NAME, name: "gemma2-tiny", full_every: 2, ..gemma3::SMALL },
    metadata,
    tensors,
    ..gemma3::FAMILY
};

/// Gemma 3's turns.
static CHAT: BuiltIn = BuiltIn { family: NAME, ..gemma3::CHAT };

/// Layers of the 27B model, whose scores are scaled by the model's width per head.
const LAYERS_27B: usize = 46;

/// The shape of the model in `gguf`; an error where the keys make no sense. Source: llama.cpp `src/models/gemma2.cpp`, which has these
/// defaults.
fn config(gguf: &Gguf) -> Result<Config, Error> {
    let keys = Keys { gguf, architecture: NAME };
    let count = layer_count(&keys)?;
    let width = keys.size("embedding_length", WIDEST)?;
    let vocab = require(gguf, "token_embd", &[width])?.shape.get(1).copied().unwrap_or(1);
    let (heads, kv_heads) = heads(&keys)?;
    let head_size = head_size(&keys, width, heads)?;
    let score_width = if count == LAYERS_27B { width / heads } else { head_size };
    let window = match keys.integer("attention.sliding_window")? {
        Some(_) => keys.size("attention.sliding_window", u32::MAX)?,
        None => 4096,
    };
    let ffn_width = keys.sizes("feed_forward_length", count, WIDEST)?;
    let score_softcap = keys.positive_or("attn_logit_softcapping", 50.0)?;
    let rope_base = keys.positive_or("rope.freq_base", 1e4)?.unwrap_or(1e4).into();
    let layer = |i: usize| LayerConfig {
        window: i.is_multiple_of(2).then_some(window),
        heads,
        kv_heads,
        head_size,
        ffn_width: ffn_width[i],
        rope_base,
        score_scale: (score_width as f64).sqrt().recip(),
        score_softcap,
        post_norms: true,
        activation: Activation::Gelu,
        ..LayerConfig::default()
    };
    Ok(Config {
        architecture: NAME,
        width,
        vocab,
        embedding_scale: (width as f64).sqrt() as f32,
        rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
        softcap: keys.positive_or("final_logit_softcapping", 30.0)?,
        context_length: keys.size("context_length", u32::MAX)?,
        layers: (0..count).map(layer).collect(),
        ..Config::default()
    })
}

/// The published sizes. Source: transformers' configurations of Google's checkpoints.
const SHAPES: [Shape; 1] = [Shape {
    family: NAME,
    name: "gemma2-9b",
    layers: 42,
    width: 3584,
    ffn_width: 14_336,
    heads: 16,
    kv_heads: [8, 8],
    full_every: 2,
    window: 4096,
    vocab: 256_000,
    context_length: 8192,
    ..gemma3::SMALLEST
}];

/// Metadata of a file of this shape.
fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut metadata = super::uniform::metadata(shape, 1e4);
    let mut add = |key: &str, value: Value| metadata.push((format!("{NAME}.{key}"), value));
    add("attention.sliding_window", Value::U32(shape.window as u32));
    add("attn_logit_softcapping", Value::F32(50.0));
    add("final_logit_softcapping", Value::F32(30.0));
    metadata
}

/// Tensors of a file of this shape.
fn tensors(shape: &Shape) -> Tensors {
    gemma3::tensors(shape, false)
}
