//! Sizes of gpt-oss, with the formats of ggml-org's files: experts in MXFP4, everything else in Q8_0.

use super::NAME;
use crate::base::GgmlType;
use crate::base::gguf::value::Value;
use crate::families::random::{Content, Tensors};
use crate::families::{Shape, uniform};

const SMALLEST: Shape = Shape {
    family: NAME,
    name: "gpt-oss-20b",
    layers: 24,
    width: 2880,
    ffn_width: 2880,
    heads: 64,
    kv_heads: [8, 8],
    head_sizes: [64, 64],
    full_every: 2,
    window: 128,
    experts: Some([32, 4, 2880]),
    tied: false,
    vocab: 201_088,
    context_length: 131_072,
    ..uniform::DENSE
};

/// The published sizes. Source: transformers' configurations of OpenAI's checkpoints.
pub(super) const SHAPES: [Shape; 2] =
    [SMALLEST, Shape { name: "gpt-oss-120b", layers: 36, experts: Some([128, 4, 2880]), ..SMALLEST }];

/// A few megabytes, for software renderers.
pub(super) const SMALL: Shape = Shape {
    name: "gpt-oss-tiny",
    layers: 4,
    width: 256,
    ffn_width: 256,
    heads: 8,
    kv_heads: [2, 2],
    window: 64,
    experts: Some([8, 2, 256]),
    vocab: 2048,
    context_length: 1024,
    ..SMALLEST
};

/// Metadata of a file of this shape.
pub(super) fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut metadata = uniform::metadata(shape, 150_000.0);
    let mut add = |key: &str, value: Value| metadata.push((format!("{NAME}.{key}"), value));
    add("attention.sliding_window", Value::U32(shape.window as u32));
    add("rope.scaling.type", Value::String("yarn".into()));
    add("rope.scaling.factor", Value::F32(32.0));
    add("rope.scaling.original_context_length", Value::U32(4096));
    metadata
}

/// Tensors of a file of this shape.
pub(super) fn tensors(shape: &Shape) -> Tensors {
    let (d, q8, mxfp4) = (shape.width, GgmlType::Q8_0, GgmlType::MXFP4);
    let [_, head_size] = shape.head_sizes;
    let (queries, keys) = (shape.heads * head_size, shape.kv_heads[1] * head_size);
    let [count, _, width] = shape.experts.unwrap_or_default();
    let zeros = Content::Constant(0.0);
    let mut tensors = Tensors::new();
    let mut blocks = |name: String, shape: &[usize], ty| tensors.add(name, shape, ty, Content::Blocks);
    blocks("token_embd".into(), &[d, shape.vocab], q8);
    blocks("output".into(), &[d, shape.vocab], q8);
    for layer in 0..shape.layers {
        let name = |last: &str| format!("blk.{layer}.{last}");
        blocks(name("attn_q"), &[d, queries], q8);
        blocks(name("attn_k"), &[d, keys], q8);
        blocks(name("attn_v"), &[d, keys], q8);
        blocks(name("attn_output"), &[queries, d], q8);
        blocks(name("ffn_gate_exps"), &[d, width, count], mxfp4);
        blocks(name("ffn_up_exps"), &[d, width, count], mxfp4);
        blocks(name("ffn_down_exps"), &[width, d, count], mxfp4);
    }
    tensors.vector("output_norm".into(), d, 1.0);
    for layer in 0..shape.layers {
        let name = |last: &str| format!("blk.{layer}.{last}");
        tensors.vector(name("attn_norm"), d, 1.0);
        tensors.vector(name("post_attention_norm"), d, 1.0);
        tensors.vector(name("attn_sinks"), shape.heads, 0.0);
        let noise = Content::Noise((d as f32).powf(-0.5));
        tensors.add(name("ffn_gate_inp"), &[d, count], GgmlType::F32, noise);
        for (last, len) in [
            ("attn_q", queries),
            ("attn_k", keys),
            ("attn_v", keys),
            ("attn_output", d),
            ("ffn_gate_inp", count),
        ] {
            tensors.vector(name(&format!("{last}.bias")), len, 0.0);
        }
        for (last, len) in [("ffn_gate_exps", width), ("ffn_up_exps", width), ("ffn_down_exps", d)] {
            tensors.add(name(&format!("{last}.bias")), &[len, count], GgmlType::F32, zeros);
        }
    }
    tensors
}
