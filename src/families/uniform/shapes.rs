//! Files of the sizes of these families, with the formats that llama-quantize's Q4_K_M gives their tensors.

use super::{Norms, Traits};
use crate::base::gguf::value::Value;
use crate::base::{GgmlType, Module};
use crate::families::Shape;
use crate::families::random::{Content, Tensors, q4_k_m};

/// A dense size with the parts that all of these have.
pub(in crate::families) const DENSE: Shape = Shape {
    family: "",
    name: "",
    layers: 0,
    width: 0,
    ffn_width: 0,
    shared_ffn_width: 0,
    heads: 0,
    kv_heads: [0, 0],
    head_sizes: [128, 128],
    full_every: 1,
    shared: 0,
    window: 0,
    per_layer_width: 0,
    experts: None,
    delta: None,
    tied: true,
    vocab: 0,
    context_length: 0,
};

/// Metadata of a file of this shape.
pub(in crate::families) fn metadata(shape: &Shape, rope_base: f32) -> Vec<(String, Value)> {
    let [_, head_size] = shape.head_sizes;
    let mut sizes = vec![
        ("block_count", shape.layers),
        ("embedding_length", shape.width),
        ("feed_forward_length", shape.ffn_width),
        ("context_length", shape.context_length),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads[1]),
        ("attention.key_length", head_size),
        ("attention.value_length", head_size),
    ];
    if shape.shared_ffn_width > 0 {
        sizes.push(("expert_shared_feed_forward_length", shape.shared_ffn_width));
    }
    if let Some([count, used, width]) = shape.experts {
        sizes.extend([
            ("expert_count", count),
            ("expert_used_count", used),
            ("expert_feed_forward_length", width),
        ]);
    }
    let key = |key: &str| format!("{}.{key}", shape.family);
    let mut metadata = vec![
        ("general.architecture".to_string(), Value::String(shape.family.into())),
        ("general.name".to_string(), Value::String(format!("random {}", shape.name))),
        (key("attention.layer_norm_rms_epsilon"), Value::F32(1e-6)),
        (key("rope.freq_base"), Value::F32(rope_base)),
    ];
    metadata.extend(sizes.into_iter().map(|(name, size)| (key(name), Value::U32(size as u32))));
    metadata
}

/// Tensors of a file of this shape.
pub(in crate::families) fn tensors(shape: &Shape, traits: &Traits) -> Tensors {
    let d = shape.width;
    let mut tensors = Tensors::new();
    let embedding = if shape.tied { GgmlType::Q6_K } else { GgmlType::Q4_K };
    tensors.matrix("token_embd".into(), &[d, shape.vocab], embedding);
    if !shape.tied {
        tensors.matrix("output".into(), &[d, shape.vocab], GgmlType::Q6_K);
    }
    tensors.vector("output_norm".into(), d, 1.0);
    for layer in 0..shape.layers {
        attention(&mut tensors, shape, layer, traits);
        feed_forward(&mut tensors, shape, layer, traits);
    }
    tensors
}

/// The norms before and behind a block of layer `layer`, as far as there are any.
fn norms(tensors: &mut Tensors, layer: usize, width: usize, traits: &Traits, [before, behind]: [&str; 2]) {
    let present = [(before, traits.norms != Norms::Behind), (behind, traits.norms != Norms::Before)];
    for (name, _) in present.into_iter().filter(|(_, present)| *present) {
        tensors.vector(format!("blk.{layer}.{name}"), width, 1.0);
    }
}

fn attention(tensors: &mut Tensors, shape: &Shape, layer: usize, traits: &Traits) {
    let (d, [_, head_size]) = (shape.width, shape.head_sizes);
    let (queries, keys) = (shape.heads * head_size, shape.kv_heads[1] * head_size);
    let name = |last: &str| format!("blk.{layer}.{last}");
    norms(tensors, layer, d, traits, ["attn_norm", "post_attention_norm"]);
    if traits.fused.contains(&Module::AttnQkv) {
        tensors.matrix(name("attn_qkv"), &[d, queries + 2 * keys], GgmlType::Q5_K);
    } else {
        tensors.matrix(name("attn_q"), &[d, queries], GgmlType::Q4_K);
        tensors.matrix(name("attn_k"), &[d, keys], GgmlType::Q4_K);
        tensors.matrix(name("attn_v"), &[d, keys], q4_k_m(layer, shape.layers));
    }
    tensors.matrix(name("attn_output"), &[queries, d], GgmlType::Q4_K);
    if traits.qk_norm {
        let sizes = if traits.qk_norm_of_rows { [queries, keys] } else { [head_size; 2] };
        tensors.vector(name("attn_q_norm"), sizes[0], 1.0);
        tensors.vector(name("attn_k_norm"), sizes[1], 1.0);
    }
    for module in traits.biases {
        let rows = if *module == Module::AttnQ { queries } else { keys };
        tensors.vector(format!("{}.bias", name(module.gguf_name())), rows, 0.0);
    }
}

fn feed_forward(tensors: &mut Tensors, shape: &Shape, layer: usize, traits: &Traits) {
    let (d, f, q4) = (shape.width, shape.ffn_width, GgmlType::Q4_K);
    let down_type = q4_k_m(layer, shape.layers);
    let name = |last: &str| format!("blk.{layer}.{last}");
    norms(tensors, layer, d, traits, ["ffn_norm", "post_ffw_norm"]);
    let Some([count, _, width]) = shape.experts else {
        if traits.fused.contains(&Module::FfnGateUp) {
            tensors.matrix(name("ffn_up"), &[d, 2 * f], q4);
        } else {
            tensors.matrix(name("ffn_gate"), &[d, f], q4);
            tensors.matrix(name("ffn_up"), &[d, f], q4);
        }
        return tensors.matrix(name("ffn_down"), &[f, d], down_type);
    };
    let std = (d as f32).powf(-0.5);
    if traits.shared_expert {
        let f = shape.shared_ffn_width;
        tensors.add(name("ffn_gate_inp_shexp"), &[d, 1], GgmlType::F32, Content::Noise(std));
        tensors.matrix(name("ffn_gate_shexp"), &[d, f], q4);
        tensors.matrix(name("ffn_up_shexp"), &[d, f], q4);
        tensors.matrix(name("ffn_down_shexp"), &[f, d], down_type);
    }
    tensors.add(name("ffn_gate_inp"), &[d, count], GgmlType::F32, Content::Noise(std));
    tensors.matrix(name("ffn_gate_exps"), &[d, width, count], q4);
    tensors.matrix(name("ffn_up_exps"), &[d, width, count], q4);
    tensors.matrix(name("ffn_down_exps"), &[width, d, count], down_type);
}
