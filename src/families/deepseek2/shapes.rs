//! Files of the sizes of these models, with keys and values apart.

use super::NAME;
use super::config::SIGMOID;
use crate::base::GgmlType;
use crate::base::config::Latent;
use crate::base::gguf::value::Value;
use crate::families::random::{Content, Tensors, q4_k_m};
use crate::families::{Shape, uniform};

/// DeepSeek V2 Lite; `shared_ffn_width` is that of the shared expert.
const LITE: Shape = Shape {
    family: NAME,
    name: "deepseek-v2-lite",
    layers: 27,
    width: 2048,
    ffn_width: 10_944,
    shared_ffn_width: 2 * 1408,
    heads: 16,
    kv_heads: [16, 16],
    head_sizes: [192, 192],
    experts: Some([64, 6, 1408]),
    tied: false,
    vocab: 102_400,
    context_length: 163_840,
    ..uniform::DENSE
};

/// Source: transformers' configurations of the checkpoints of DeepSeek and Z.ai.
pub(super) const SHAPES: [Shape; 2] = [
    LITE,
    Shape {
        name: "glm-4.7-flash",
        layers: 47,
        ffn_width: 10_240,
        shared_ffn_width: 1536,
        heads: 20,
        kv_heads: [20, 20],
        head_sizes: [256, 256],
        experts: Some([64, 4, 1536]),
        vocab: 154_880,
        context_length: 202_752,
        ..LITE
    },
];

/// A few megabytes, for software renderers.
pub(super) const SMALL: Shape = Shape {
    name: "deepseek2-tiny",
    layers: 3,
    width: 256,
    ffn_width: 768,
    shared_ffn_width: 256,
    heads: 4,
    kv_heads: [4, 4],
    head_sizes: [64, 64],
    experts: Some([8, 2, 256]),
    vocab: 2048,
    context_length: 1024,
    ..LITE
};

/// Layers at the beginning that have no experts.
const DENSE_LAYERS: usize = 1;

/// The latent vectors of a shape.
fn latent(shape: &Shape) -> Latent {
    let [_, size] = shape.head_sizes;
    let (rank, query_rank, turned, value_size) = match size {
        192 => (512, None, 64, 128),
        256 => (512, Some(768), 64, 256),
        _ => (64, Some(96), size / 2, size / 2),
    };
    Latent { rank, query_rank, turned, key_size: size - turned, value_size, apart: true }
}

/// Metadata of a file of this shape.
pub(super) fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let latent = latent(shape);
    let mut metadata = uniform::metadata(shape, 1e4);
    let key = |key: &str| format!("{NAME}.{key}");
    let shared = shape.experts.map_or(0, |[_, _, width]| shape.shared_ffn_width.div_ceil(width));
    let sigmoid = latent.query_rank.is_some();
    let sizes = [
        ("attention.key_length_mla", latent.turned + latent.key_size),
        ("attention.value_length_mla", latent.value_size),
        ("attention.kv_lora_rank", latent.rank),
        ("attention.q_lora_rank", latent.query_rank.unwrap_or(0)),
        ("rope.dimension_count", latent.turned),
        ("expert_shared_count", shared),
        ("leading_dense_block_count", DENSE_LAYERS),
        ("expert_gating_func", if sigmoid { SIGMOID as usize } else { 1 }),
    ];
    metadata.extend(sizes.into_iter().map(|(name, size)| (key(name), Value::U32(size as u32))));
    metadata.push((key("expert_weights_norm"), Value::Bool(sigmoid)));
    metadata
}

/// Tensors of a file of this shape.
pub(super) fn tensors(shape: &Shape) -> Tensors {
    let (d, f, q4) = (shape.width, shape.ffn_width, GgmlType::Q4_K);
    let mut tensors = Tensors::new();
    tensors.matrix("token_embd".into(), &[d, shape.vocab], q4);
    tensors.matrix("output".into(), &[d, shape.vocab], GgmlType::Q6_K);
    tensors.vector("output_norm".into(), d, 1.0);
    for layer in 0..shape.layers {
        let name = |last: &str| format!("blk.{layer}.{last}");
        let down_type = q4_k_m(layer, shape.layers);
        attention(&mut tensors, shape, layer);
        tensors.vector(name("ffn_norm"), d, 1.0);
        let Some([count, _, width]) = shape.experts.filter(|_| layer >= DENSE_LAYERS) else {
            tensors.matrix(name("ffn_gate"), &[d, f], q4);
            tensors.matrix(name("ffn_up"), &[d, f], q4);
            tensors.matrix(name("ffn_down"), &[f, d], down_type);
            continue;
        };
        let noise = Content::Noise((d as f32).powf(-0.5));
        tensors.add(name("ffn_gate_inp"), &[d, count], GgmlType::F32, noise);
        if latent(shape).query_rank.is_some() {
            tensors.vector(name("exp_probs_b.bias"), count, 0.0);
        }
        let shared = shape.shared_ffn_width.div_ceil(width) * width;
        tensors.matrix(name("ffn_gate_shexp"), &[d, shared], q4);
        tensors.matrix(name("ffn_up_shexp"), &[d, shared], q4);
        tensors.matrix(name("ffn_down_shexp"), &[shared, d], down_type);
        tensors.matrix(name("ffn_gate_exps"), &[d, width, count], q4);
        tensors.matrix(name("ffn_up_exps"), &[d, width, count], q4);
        tensors.matrix(name("ffn_down_exps"), &[width, d, count], down_type);
    }
    tensors
}

fn attention(tensors: &mut Tensors, shape: &Shape, layer: usize) {
    let (d, heads, q4) = (shape.width, shape.heads, GgmlType::Q4_K);
    let latent = latent(shape);
    let queries = heads * (latent.turned + latent.key_size);
    let name = |last: &str| format!("blk.{layer}.{last}");
    tensors.vector(name("attn_norm"), d, 1.0);
    match latent.query_rank {
        None => tensors.matrix(name("attn_q"), &[d, queries], q4),
        Some(rank) => {
            tensors.matrix(name("attn_q_a"), &[d, rank], q4);
            tensors.vector(name("attn_q_a_norm"), rank, 1.0);
            tensors.matrix(name("attn_q_b"), &[rank, queries], q4);
        }
    }
    tensors.matrix(name("attn_kv_a_mqa"), &[d, latent.both()], q4);
    tensors.vector(name("attn_kv_a_norm"), latent.rank, 1.0);
    tensors.matrix(name("attn_k_b"), &[latent.key_size, latent.rank, heads], q4);
    tensors.matrix(name("attn_v_b"), &[latent.rank, latent.value_size, heads], q4);
    tensors.matrix(name("attn_output"), &[heads * latent.value_size, d], q4);
}
