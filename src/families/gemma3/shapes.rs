//! Gemma 3's sizes, with the formats that llama-quantize's Q4_K_M gives their tensors.

use super::NAME;
use crate::base::GgmlType;
use crate::base::gguf::value::Value;
use crate::families::random::{Tensors, q4_k_m};
use crate::families::{Shape, uniform};

const SMALLEST: Shape = Shape {
    family: NAME,
    name: "gemma3-270m",
    layers: 18,
    width: 640,
    ffn_width: 2048,
    heads: 4,
    kv_heads: [1, 1],
    head_sizes: [256, 256],
    full_every: 6,
    window: 512,
    vocab: 262_144,
    context_length: 32_768,
    ..uniform::DENSE
};

/// The published sizes. Source: transformers' configurations of Google's checkpoints.
pub(super) const SHAPES: [Shape; 3] = [
    SMALLEST,
    Shape { name: "gemma3-1b", layers: 26, width: 1152, ffn_width: 6912, ..SMALLEST },
    Shape {
        name: "gemma3-4b",
        layers: 34,
        width: 2560,
        ffn_width: 10_240,
        heads: 8,
        kv_heads: [4, 4],
        window: 1024,
        vocab: 262_208,
        context_length: 131_072,
        ..SMALLEST
    },
];

/// A few megabytes, for software renderers.
pub(super) const SMALL: Shape = Shape {
    name: "gemma3-tiny",
    layers: 6,
    width: 256,
    ffn_width: 768,
    heads: 2,
    head_sizes: [64, 64],
    full_every: 3,
    window: 64,
    vocab: 2048,
    context_length: 1024,
    ..SMALLEST
};

/// Metadata of a file of this shape.
pub(super) fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut metadata = uniform::metadata(shape, 1e6);
    let mut add = |key: &str, value: Value| metadata.push((format!("{NAME}.{key}"), value));
    add("attention.sliding_window", Value::U32(shape.window as u32));
    add("attention.sliding_window_pattern", Value::U32(shape.full_every as u32));
    add("rope.freq_base_swa", Value::F32(1e4));
    metadata
}

/// Tensors of a file of this shape.
pub(super) fn tensors(shape: &Shape) -> Tensors {
    let (d, f, q4) = (shape.width, shape.ffn_width, GgmlType::Q4_K);
    let [_, head_size] = shape.head_sizes;
    let (queries, keys) = (shape.heads * head_size, shape.kv_heads[1] * head_size);
    let mut tensors = Tensors::new();
    tensors.matrix("token_embd".into(), &[d, shape.vocab], GgmlType::Q6_K);
    tensors.vector("output_norm".into(), d, 1.0);
    for layer in 0..shape.layers {
        let more_bits = q4_k_m(layer, shape.layers);
        let name = |last: &str| format!("blk.{layer}.{last}");
        for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            tensors.vector(name(norm), d, 1.0);
        }
        tensors.vector(name("attn_q_norm"), head_size, 1.0);
        tensors.vector(name("attn_k_norm"), head_size, 1.0);
        tensors.matrix(name("attn_q"), &[d, queries], q4);
        tensors.matrix(name("attn_k"), &[d, keys], q4);
        tensors.matrix(name("attn_v"), &[d, keys], more_bits);
        tensors.matrix(name("attn_output"), &[queries, d], q4);
        tensors.matrix(name("ffn_gate"), &[d, f], q4);
        tensors.matrix(name("ffn_up"), &[d, f], q4);
        tensors.matrix(name("ffn_down"), &[f, d], more_bits);
    }
    tensors
}
