//! Gemma 4's sizes. Sizes, formats and metadata are those of Ollama's Q4_K_M files; vectors hold values near the real ones.

use super::NAME;
use crate::base::GgmlType;
use crate::base::gguf::value::{Array, Value};
use crate::families::Shape;
use crate::families::random::{Content, Tensors, q4_k_m};

const E2B: Shape = Shape {
    family: NAME,
    name: "e2b",
    layers: 35,
    width: 1536,
    ffn_width: 6144,
    shared_ffn_width: 12_288,
    heads: 8,
    kv_heads: [1, 1],
    head_sizes: [256, 512],
    full_every: 5,
    shared: 20,
    window: 512,
    per_layer_width: 256,
    experts: None,
    delta: None,
    tied: true,
    vocab: 262_144,
    context_length: 131_072,
};

const DENSE: Shape = Shape {
    family: NAME,
    name: "31b",
    layers: 60,
    width: 5376,
    ffn_width: 21_504,
    shared_ffn_width: 21_504,
    heads: 32,
    kv_heads: [16, 4],
    head_sizes: [256, 512],
    full_every: 6,
    shared: 0,
    window: 1024,
    per_layer_width: 0,
    experts: None,
    delta: None,
    tied: true,
    vocab: 262_144,
    context_length: 262_144,
};

/// The published sizes. Source: the metadata of Google's checkpoints as llama.cpp's converter writes them.
pub(super) const SHAPES: [Shape; 5] = [
    E2B,
    Shape {
        name: "e4b",
        layers: 42,
        width: 2560,
        ffn_width: 10_240,
        shared_ffn_width: 10_240,
        kv_heads: [2, 2],
        full_every: 6,
        shared: 18,
        ..E2B
    },
    Shape {
        name: "12b",
        layers: 48,
        width: 3840,
        ffn_width: 15_360,
        shared_ffn_width: 15_360,
        heads: 16,
        kv_heads: [8, 1],
        ..DENSE
    },
    Shape {
        name: "26b-a4b",
        layers: 30,
        width: 2816,
        ffn_width: 2112,
        shared_ffn_width: 2112,
        heads: 16,
        kv_heads: [8, 2],
        experts: Some([128, 8, 704]),
        ..DENSE
    },
    DENSE,
];

/// A few megabytes with every part that e2b has, for software renderers.
pub(super) const SMALL: Shape = Shape {
    name: "tiny",
    layers: 8,
    width: 768,
    ffn_width: 768,
    shared_ffn_width: 1536,
    heads: 2,
    full_every: 2,
    shared: 4,
    window: 64,
    vocab: 2048,
    context_length: 1024,
    ..E2B
};

/// Metadata of a file of this shape.
pub(super) fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let sizes = |of: &dyn Fn(usize) -> usize| {
        Value::Array(Array::U32((0..shape.layers).map(|layer| of(layer) as u32).collect()))
    };
    let first_shared = shape.layers - shape.shared;
    let [sliding, full] = shape.head_sizes.map(|size| size as u32);
    let mut keys: Vec<(&str, Value)> = [
        ("block_count", shape.layers),
        ("embedding_length", shape.width),
        ("context_length", shape.context_length),
        ("attention.head_count", shape.heads),
        ("attention.sliding_window", shape.window),
        ("attention.shared_kv_layers", shape.shared),
        ("embedding_length_per_layer_input", shape.per_layer_width),
    ]
    .map(|(key, value)| (key, Value::U32(value as u32)))
    .into();
    for (key, [value, value_swa]) in [
        (["attention.key_length", "attention.key_length_swa"], [full, sliding]),
        (["attention.value_length", "attention.value_length_swa"], [full, sliding]),
        (["rope.dimension_count", "rope.dimension_count_swa"], [full, sliding]),
    ] {
        keys.extend([(key[0], Value::U32(value)), (key[1], Value::U32(value_swa))]);
    }
    keys.extend([
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
        ("rope.freq_base", Value::F32(1e6)),
        ("rope.freq_base_swa", Value::F32(1e4)),
        ("final_logit_softcapping", Value::F32(30.0)),
        (
            "feed_forward_length",
            sizes(&|i| if i < first_shared { shape.ffn_width } else { shape.shared_ffn_width }),
        ),
        ("attention.head_count_kv", sizes(&|i| shape.kv_heads[usize::from(shape.is_full(i))])),
        (
            "attention.sliding_window_pattern",
            Value::Array(Array::Bool((0..shape.layers).map(|i| !shape.is_full(i)).collect())),
        ),
    ]);
    if let Some([count, used, width]) = shape.experts {
        keys.extend([
            ("expert_count", Value::U32(count as u32)),
            ("expert_used_count", Value::U32(used as u32)),
            ("expert_feed_forward_length", Value::U32(width as u32)),
        ]);
    }
    let architecture = ("general.architecture".to_string(), Value::String(NAME.into()));
    let name = ("general.name".to_string(), Value::String(format!("random {}", shape.name)));
    let keys = keys.into_iter().map(|(key, value)| (format!("{NAME}.{key}"), value));
    [architecture, name].into_iter().chain(keys).collect()
}

/// Tensors of a file of this shape, in the formats that llama-quantize's Q4_K_M gives them.
pub(super) fn tensors(shape: &Shape) -> Tensors {
    let (d, p) = (shape.width, shape.per_layer_width);
    let mut tensors = Tensors::new();
    tensors.matrix("token_embd".into(), &[d, shape.vocab], GgmlType::Q6_K);
    tensors.vector("output_norm".into(), d, 1.0);
    let rotated = Content::RopeFactors(shape.head_sizes[1] / 8); // a quarter of the dimensions, two per frequency
    tensors.add("rope_freqs".into(), &[shape.head_sizes[1] / 2], GgmlType::F32, rotated);
    if p > 0 {
        let of_all = p * shape.layers;
        tensors.add("per_layer_token_embd".into(), &[of_all, shape.vocab], GgmlType::BF16, Content::Table);
        tensors.matrix("per_layer_model_proj".into(), &[d, of_all], GgmlType::Q4_K);
        tensors.vector("per_layer_proj_norm".into(), p, 1.0);
    }
    let mut values = 0; // layers with a matrix of values so far
    for layer in 0..shape.layers {
        let has_values = p > 0 || !shape.is_full(layer);
        let value_type = has_values.then(|| q4_k_m(values, shape.layers));
        values += usize::from(has_values);
        add_layer(&mut tensors, shape, layer, value_type);
    }
    tensors
}

fn add_layer(tensors: &mut Tensors, shape: &Shape, layer: usize, value_type: Option<GgmlType>) {
    let (d, p, q4) = (shape.width, shape.per_layer_width, GgmlType::Q4_K);
    let full = usize::from(shape.is_full(layer));
    let (head_size, kv_heads) = (shape.head_sizes[full], shape.kv_heads[full]);
    let (queries, keys) = (shape.heads * head_size, kv_heads * head_size);
    let shares = layer >= shape.layers - shape.shared;
    let ffn = if shares { shape.shared_ffn_width } else { shape.ffn_width };
    let down_type = q4_k_m(layer, shape.layers);
    let name = |last: &str| format!("blk.{layer}.{last}");

    tensors.matrix(name("attn_q"), &[d, queries], q4);
    tensors.matrix(name("attn_k"), &[d, keys], q4);
    if let Some(ty) = value_type {
        tensors.matrix(name("attn_v"), &[d, keys], ty);
    }
    tensors.matrix(name("attn_output"), &[queries, d], q4);
    tensors.matrix(name("ffn_gate"), &[d, ffn], q4);
    tensors.matrix(name("ffn_up"), &[d, ffn], q4);
    tensors.matrix(name("ffn_down"), &[ffn, d], down_type);
    if p > 0 {
        tensors.matrix(name("inp_gate"), &[d, p], q4);
        tensors.matrix(name("proj"), &[p, d], q4);
    }
    if let Some([count, _, width]) = shape.experts {
        let std = (d as f32).powf(-0.5);
        tensors.add(name("ffn_gate_inp"), &[d, count], GgmlType::F32, Content::Noise(std));
        tensors.matrix(name("ffn_gate_up_exps"), &[d, 2 * width, count], q4);
        tensors.matrix(name("ffn_down_exps"), &[width, d, count], down_type);
    }
    for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
        tensors.vector(name(norm), d, 1.0);
    }
    tensors.vector(name("attn_q_norm"), head_size, 1.0);
    tensors.vector(name("attn_k_norm"), head_size, [0.06, 0.045][full]);
    tensors.vector(name("layer_output_scale"), 1, 0.7);
    if p > 0 {
        tensors.vector(name("post_norm"), d, 1.0);
    }
    if let Some([count, ..]) = shape.experts {
        for norm in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
            tensors.vector(name(norm), d, 1.0);
        }
        tensors.vector(name("ffn_gate_inp.scale"), d, 4.0);
        tensors.vector(name("ffn_down_exps.scale"), count, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_over_layers() {
        let layers = |name: &str| {
            let shapes = Shape::named(name).expect("a size").by_layers();
            shapes.iter().map(|s| (s.layers, s.shared)).collect::<Vec<_>>()
        };
        assert_eq!(layers("e2b"), [(14, 8), (21, 12), (28, 16), (35, 20)]);
        assert_eq!(layers("31b"), [(12, 0), (24, 0), (36, 0), (48, 0), (60, 0)]);
    }
}
