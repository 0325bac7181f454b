//! Files of the family's sizes, with the formats that llama-quantize's Q4_K_M gives their tensors.

use super::{NAME, NAME_MOE};
use crate::base::GgmlType;
use crate::base::config::DeltaNet;
use crate::base::gguf::value::Value;
use crate::families::random::{Content, Tensors, q4_k_m};
use crate::families::{Shape, uniform};

const SMALLEST: Shape = Shape {
    family: NAME,
    name: "qwen3.5-0.8b",
    layers: 24,
    width: 1024,
    ffn_width: 3584,
    heads: 8,
    kv_heads: [2, 2],
    head_sizes: [256, 256],
    full_every: 4,
    delta: Some([16, 16, 128]),
    vocab: 248_320,
    context_length: 262_144,
    ..uniform::DENSE
};

/// Source: transformers' configurations of Qwen's checkpoints.
pub const SHAPES: [Shape; 5] = [
    SMALLEST,
    Shape { name: "qwen3.5-2b", width: 2048, ffn_width: 6144, ..SMALLEST },
    FOUR,
    Shape { name: "qwen3.5-9b", width: 4096, ffn_width: 12_288, tied: false, ..FOUR },
    Shape {
        name: "qwen3.5-27b",
        layers: 64,
        width: 5120,
        ffn_width: 17_408,
        heads: 24,
        delta: Some([16, 48, 128]),
        tied: false,
        ..FOUR
    },
];

/// Sources as above. `ffn_width` is that of the shared expert.
pub const SHAPES_MOE: [Shape; 1] = [Shape {
    family: NAME_MOE,
    name: "qwen3.5-35b-a3b",
    layers: 40,
    width: 2048,
    ffn_width: 512,
    heads: 16,
    kv_heads: [2, 2],
    experts: Some([256, 8, 512]),
    tied: false,
    ..FOUR
}];

const FOUR: Shape = Shape {
    name: "qwen3.5-4b",
    layers: 32,
    width: 2560,
    ffn_width: 9216,
    heads: 16,
    kv_heads: [4, 4],
    delta: Some([16, 32, 128]),
    ..SMALLEST
};

/// A few megabytes, for software renderers.
pub const SMALL: Shape = Shape {
    name: "qwen35-tiny",
    layers: 8,
    width: 256,
    ffn_width: 512,
    heads: 4,
    head_sizes: [64, 64],
    delta: Some([2, 4, 32]),
    vocab: 2048,
    context_length: 1024,
    ..SMALLEST
};

/// A few megabytes, for software renderers.
pub const SMALL_MOE: Shape = Shape {
    family: NAME_MOE,
    name: "qwen35moe-tiny",
    ffn_width: 128,
    experts: Some([8, 2, 128]),
    tied: false,
    ..SMALL
};

fn net(shape: &Shape) -> DeltaNet {
    let [key_heads, value_heads, head_size] = shape.delta.expect("shapes of this family have delta nets");
    DeltaNet { key_heads, value_heads, head_size }
}

/// Metadata of a file of this shape.
pub fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let delta = net(shape);
    let sizes = [
        ("rope.dimension_count", shape.head_sizes[1] / 4),
        ("full_attention_interval", shape.full_every),
        ("ssm.conv_kernel", 4),
        ("ssm.group_count", delta.key_heads),
        ("ssm.time_step_rank", delta.value_heads),
        ("ssm.state_size", delta.head_size),
        ("ssm.inner_size", delta.values()),
    ];
    let mut metadata = uniform::metadata(shape, 1e7);
    let shared = shape.experts.map(|_| ("expert_shared_feed_forward_length", shape.ffn_width));
    let sizes = sizes.into_iter().chain(shared);
    metadata.extend(sizes.map(|(name, size)| (format!("{}.{name}", shape.family), Value::U32(size as u32))));
    metadata
}

/// Tensors of a file of this shape.
pub fn tensors(shape: &Shape) -> Tensors {
    let d = shape.width;
    let mut tensors = Tensors::new();
    let embedding = if shape.tied { GgmlType::Q6_K } else { GgmlType::Q4_K };
    tensors.matrix("token_embd".into(), &[d, shape.vocab], embedding);
    if !shape.tied {
        tensors.matrix("output".into(), &[d, shape.vocab], GgmlType::Q6_K);
    }
    tensors.vector("output_norm".into(), d, 1.0);
    for layer in 0..shape.layers {
        let name = |last: &str| format!("blk.{layer}.{last}");
        tensors.vector(name("attn_norm"), d, 1.0);
        match shape.is_full(layer) {
            true => attention(&mut tensors, shape, layer),
            false => delta_net(&mut tensors, shape, layer),
        }
        tensors.vector(name("post_attention_norm"), d, 1.0);
        feed_forward(&mut tensors, shape, layer);
    }
    tensors
}

fn feed_forward(tensors: &mut Tensors, shape: &Shape, layer: usize) {
    let (d, f) = (shape.width, shape.ffn_width);
    let name = |last: &str| format!("blk.{layer}.{last}");
    let block = if shape.experts.is_some() { "_shexp" } else { "" };
    tensors.matrix(name(&format!("ffn_gate{block}")), &[d, f], GgmlType::Q4_K);
    tensors.matrix(name(&format!("ffn_up{block}")), &[d, f], GgmlType::Q4_K);
    tensors.matrix(name(&format!("ffn_down{block}")), &[f, d], q4_k_m(layer, shape.layers));
    let Some([count, _, width]) = shape.experts else { return };
    let noise = Content::Noise((d as f32).powf(-0.5));
    tensors.add(name("ffn_gate_inp_shexp"), &[d], GgmlType::F32, noise);
    tensors.add(name("ffn_gate_inp"), &[d, count], GgmlType::F32, noise);
    tensors.matrix(name("ffn_gate_exps"), &[d, width, count], GgmlType::Q4_K);
    tensors.matrix(name("ffn_up_exps"), &[d, width, count], GgmlType::Q4_K);
    tensors.matrix(name("ffn_down_exps"), &[width, d, count], q4_k_m(layer, shape.layers));
}

fn attention(tensors: &mut Tensors, shape: &Shape, layer: usize) {
    let (d, [_, head_size]) = (shape.width, shape.head_sizes);
    let (queries, keys) = (shape.heads * head_size, shape.kv_heads[1] * head_size);
    let name = |last: &str| format!("blk.{layer}.{last}");
    tensors.matrix(name("attn_q"), &[d, 2 * queries], GgmlType::Q4_K);
    tensors.matrix(name("attn_k"), &[d, keys], GgmlType::Q4_K);
    tensors.matrix(name("attn_v"), &[d, keys], q4_k_m(layer, shape.layers));
    tensors.matrix(name("attn_output"), &[queries, d], GgmlType::Q4_K);
    tensors.vector(name("attn_q_norm"), head_size, 1.0);
    tensors.vector(name("attn_k_norm"), head_size, 1.0);
}

fn delta_net(tensors: &mut Tensors, shape: &Shape, layer: usize) {
    let (d, delta) = (shape.width, net(shape));
    let name = |last: &str| format!("blk.{layer}.{last}");
    tensors.matrix(name("attn_qkv"), &[d, delta.channels()], GgmlType::Q4_K);
    tensors.matrix(name("attn_gate"), &[d, delta.values()], GgmlType::Q4_K);
    tensors.matrix(name("ssm_alpha"), &[d, delta.value_heads], GgmlType::Q4_K);
    tensors.matrix(name("ssm_beta"), &[d, delta.value_heads], GgmlType::Q4_K);
    tensors.add(name("ssm_conv1d"), &[4, delta.channels()], GgmlType::F32, Content::Noise(0.5));
    tensors.vector(name("ssm_dt.bias"), delta.value_heads, 0.0);
    tensors.vector(name("ssm_a"), delta.value_heads, -0.1);
    tensors.vector(name("ssm_norm"), delta.head_size, 1.0);
    tensors.matrix(name("ssm_out"), &[delta.values(), d], GgmlType::Q4_K);
}
