//! LFM2 and LFM2.5, dense and as a mixture of experts: gated short convolutions, and between them layers of attention with norms of heads.

use super::chat_layout::{CHATML, Turns, turns};
use super::metadata::{Keys, MOST_HEADS, WIDEST};
use super::module_paths::{MixturePaths, Paths, paths};
use super::random::{Content, Tensors, q4_k_m};
use super::{AdapterNames, Family, SamplingDefaults, Shape, python_calls, tool_calls, uniform};
use crate::base::config::{Activation, Config, Experts, Gating, LayerConfig, ShortConv};
use crate::base::gguf::value::{Array, Value};
use crate::base::tensors::{find, require};
use crate::base::{Error, GgmlType, Gguf, Module};
use crate::data::template::{BuiltIn, ReplySyntax};
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

const NAME: &str = "lfm2";
const NAME_MOE: &str = "lfm2moe";
/// `expert_gating_func` of sigmoids.
const SIGMOID: u32 = 2;
/// Weights per channel of the published models' convolutions.
const TAPS: usize = 3;

/// LFM2 and LFM2.5 from 350M to 2.6B.
pub static FAMILY: Family = Family {
    name: NAME,
    title: "LFM2",
    example: "hf.co/LiquidAI/LFM2-1.2B-GGUF",
    config: |gguf| config(gguf, NAME),
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: SamplingDefaults { temperature: 0.3, top_k: 0, top_p: 1.0 },
    authors_token: "",
    names: &NAMES,
    shapes: &SHAPES,
    small_shape: SMALL,
    metadata,
    tensors,
};

/// LFM2 8B-A1B.
pub static FAMILY_MOE: Family = Family {
    name: NAME_MOE,
    title: "LFM2 mixture of experts",
    example: "hf.co/LiquidAI/LFM2-8B-A1B-GGUF",
    config: mixture,
    template: |_| &CHAT_MOE,
    names: &NAMES_MOE,
    shapes: &SHAPES_MOE,
    small_shape: SMALL_MOE,
    ..FAMILY
};

/// The shape of the mixture in `gguf`; an error where the keys make no sense. Source: llama.cpp `src/models/lfm2moe.cpp`.
fn mixture(gguf: &Gguf) -> Result<Config, Error> {
    let mut config = config(gguf, NAME_MOE)?;
    let keys = Keys { gguf, architecture: NAME_MOE };
    if keys.integer("expert_gating_func")?.is_some_and(|found| found != SIGMOID) {
        return Err(keys.wrong("expert_gating_func", "2, sigmoids"));
    }
    if keys.positive_or("expert_weights_scale", 1.0)?.unwrap_or(1.0) != 1.0 {
        return Err(keys.wrong("expert_weights_scale", "1 or no such key"));
    }
    let experts = uniform::required_experts(&keys)?;
    let width = keys.size("expert_feed_forward_length", WIDEST)?;
    let experts = Experts { width, gating: Gating::Sigmoid, ..experts };
    let dense = keys.integer("leading_dense_block_count")?.unwrap_or(0) as usize;
    for (i, layer) in config.layers.iter_mut().enumerate().skip(dense) {
        let has = |last: &str| find(gguf, &format!("blk.{i}.{last}")).is_some();
        layer.ffn_width = 0;
        layer.experts = Some(experts);
        layer.experts_split = !has("ffn_gate_up_exps") && has("ffn_gate_exps");
    }
    Ok(config)
}

/// The shape of the model in `gguf`; an error where the keys make no sense. Source: llama.cpp `src/models/lfm2.cpp`.
fn config(gguf: &Gguf, architecture: &'static str) -> Result<Config, Error> {
    let keys = Keys { gguf, architecture };
    let count = uniform::layer_count(&keys)?;
    let width = keys.size("embedding_length", WIDEST)?;
    let vocab = require(gguf, "token_embd", &[width])?.shape.get(1).copied().unwrap_or(1);
    let taps = keys.size("shortconv.l_cache", ShortConv::MOST_TAPS as u32)?;
    let short_conv = Some(ShortConv { channels: width, taps });
    let attention = attention(&keys, width)?;
    let ffn_width = keys.sizes("feed_forward_length", count, WIDEST)?;
    let layers = kv_heads(&keys, count, attention.heads)?.into_iter().zip(ffn_width);
    let layers = layers.map(|(kv_heads, ffn_width)| match kv_heads {
        0 => LayerConfig { short_conv, ffn_width, activation: Activation::Silu, ..LayerConfig::default() },
        _ => LayerConfig { kv_heads, ffn_width, ..attention.clone() },
    });
    Ok(Config {
        architecture,
        width,
        vocab,
        rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
        context_length: keys.size("context_length", u32::MAX)?,
        layers: layers.collect(),
        ..Config::default()
    })
}

/// A layer of attention but for its key and value heads.
fn attention(keys: &Keys, width: usize) -> Result<LayerConfig, Error> {
    let heads = keys.size("attention.head_count", MOST_HEADS)?;
    let head_size = uniform::head_size(keys, width, heads)?;
    let rope_base = keys.positive_or("rope.freq_base", 10_000.0)?.unwrap_or(10_000.0).into();
    let stretch = uniform::stretch(keys, rope_base, true)?;
    Ok(LayerConfig {
        heads,
        head_size,
        rope_base,
        rope_divisor: stretch.divisor,
        yarn: stretch.yarn,
        qk_norm: true,
        score_scale: (head_size as f64).sqrt().recip(),
        activation: Activation::Silu,
        ..LayerConfig::default()
    })
}

/// Key and value heads of every layer, which divide the `heads` query heads; 0 in layers with a convolution.
fn kv_heads(keys: &Keys, count: usize, heads: usize) -> Result<Vec<usize>, Error> {
    let key = "attention.head_count_kv";
    let found = keys.gguf.scalar_or_array(&keys.key(key), count)?;
    let fits = |n: &u32| *n == 0 || *n <= MOST_HEADS && heads.is_multiple_of(*n as usize);
    match found.iter().all(fits) {
        true => Ok(found.into_iter().map(|n| n as usize).collect()),
        false => Err(keys
            .wrong(key, &format!("divisors of the {heads} query heads, and 0 in layers without attention"))),
    }
}

/// A size in which the last of `full_every` layers has attention, and some others, by [`attends`].
const SMALLEST: Shape = Shape {
    family: NAME,
    name: "lfm2-350m",
    layers: 16,
    width: 1024,
    ffn_width: 4608,
    heads: 16,
    kv_heads: [8, 8],
    head_sizes: [64, 64],
    full_every: 8,
    vocab: 65_536,
    context_length: 128_000,
    ..uniform::DENSE
};

/// Source: transformers' configurations of Liquid AI's checkpoints.
const SHAPES: [Shape; 4] = [
    SMALLEST,
    Shape { name: "lfm2-700m", width: 1536, ffn_width: 6912, heads: 24, ..SMALLEST },
    Shape { name: "lfm2-1.2b", width: 2048, ffn_width: 8192, heads: 32, ..SMALLEST },
    Shape {
        name: "lfm2-2.6b",
        layers: 30,
        width: 2048,
        ffn_width: 10_752,
        heads: 32,
        full_every: 15,
        ..SMALLEST
    },
];

/// Source as above.
const SHAPES_MOE: [Shape; 1] = [Shape {
    family: NAME_MOE,
    name: "lfm2-8b-a1b",
    layers: 24,
    width: 2048,
    ffn_width: 7168,
    heads: 32,
    full_every: 4,
    experts: Some([32, 4, 1792]),
    ..SMALLEST
}];

/// Layers at the beginning of the published mixtures that have no experts.
const DENSE_LAYERS: usize = 2;

/// A few megabytes, for software renderers.
const SMALL: Shape = Shape {
    name: "lfm2-tiny",
    layers: 4,
    width: 256,
    ffn_width: 768,
    heads: 4,
    kv_heads: [2, 2],
    full_every: 2,
    vocab: 2048,
    context_length: 1024,
    ..SMALLEST
};

const SMALL_MOE: Shape =
    Shape { family: NAME_MOE, name: "lfm2moe-tiny", experts: Some([8, 2, 256]), ..SMALL };

/// Whether a layer has attention: 3 of 8 layers have, 4 of 15 in the largest dense model, 1 of 4 in the mixture, evenly spread. Published
/// models have as many, some of them a layer further on.
fn attends(shape: &Shape, layer: usize) -> bool {
    let of = shape.full_every;
    let some = match of {
        2 | 4 => 1,
        15 => 4,
        _ => 3,
    };
    (layer + 1) * some / of > layer * some / of
}

/// Metadata of a file of this shape.
fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut metadata = uniform::metadata(shape, 1e6);
    let key = |key: &str| format!("{}.{key}", shape.family);
    let kv_heads = |layer| if attends(shape, layer) { shape.kv_heads[1] as u32 } else { 0 };
    let kv_heads = (0..shape.layers).map(kv_heads).collect();
    metadata.retain(|(name, _)| *name != key("attention.head_count_kv"));
    metadata.push((key("attention.head_count_kv"), Value::Array(Array::U32(kv_heads))));
    metadata.push((key("shortconv.l_cache"), Value::U32(TAPS as u32)));
    if shape.experts.is_some() {
        metadata.push((key("leading_dense_block_count"), Value::U32(DENSE_LAYERS as u32)));
        metadata.push((key("expert_gating_func"), Value::U32(SIGMOID)));
    }
    metadata
}

/// Tensors of a file of this shape.
fn tensors(shape: &Shape) -> Tensors {
    let (d, f, q4) = (shape.width, shape.ffn_width, GgmlType::Q4_K);
    let mut tensors = Tensors::new();
    tensors.matrix("token_embd".into(), &[d, shape.vocab], GgmlType::Q6_K);
    tensors.vector("token_embd_norm".into(), d, 1.0);
    for layer in 0..shape.layers {
        let name = |last: &str| format!("blk.{layer}.{last}");
        tensors.vector(name("attn_norm"), d, 1.0);
        match attends(shape, layer) {
            true => attention_tensors(&mut tensors, shape, layer),
            false => {
                tensors.matrix(name("shortconv.in_proj"), &[d, 3 * d], q4);
                tensors.add(name("shortconv.conv"), &[TAPS, d], GgmlType::F32, Content::Noise(0.6));
                tensors.matrix(name("shortconv.out_proj"), &[d, d], q4);
            }
        }
        tensors.vector(name("ffn_norm"), d, 1.0);
        if let Some([count, _, width]) = shape.experts.filter(|_| layer >= DENSE_LAYERS) {
            let down_type = q4_k_m(layer, shape.layers);
            let noise = Content::Noise((d as f32).powf(-0.5));
            tensors.add(name("ffn_gate_inp"), &[d, count], GgmlType::F32, noise);
            tensors.vector(name("exp_probs_b.bias"), count, 0.0);
            tensors.matrix(name("ffn_gate_exps"), &[d, width, count], q4);
            tensors.matrix(name("ffn_up_exps"), &[d, width, count], q4);
            tensors.matrix(name("ffn_down_exps"), &[width, d, count], down_type);
            continue;
        }
        tensors.matrix(name("ffn_gate"), &[d, f], q4);
        tensors.matrix(name("ffn_up"), &[d, f], q4);
        tensors.matrix(name("ffn_down"), &[f, d], q4_k_m(layer, shape.layers));
    }
    tensors
}

fn attention_tensors(tensors: &mut Tensors, shape: &Shape, layer: usize) {
    let (d, [_, head_size]) = (shape.width, shape.head_sizes);
    let (queries, keys) = (shape.heads * head_size, shape.kv_heads[1] * head_size);
    let name = |last: &str| format!("blk.{layer}.{last}");
    tensors.matrix(name("attn_q"), &[d, queries], GgmlType::Q4_K);
    tensors.matrix(name("attn_k"), &[d, keys], GgmlType::Q4_K);
    tensors.matrix(name("attn_v"), &[d, keys], q4_k_m(layer, shape.layers));
    tensors.matrix(name("attn_output"), &[queries, d], GgmlType::Q4_K);
    tensors.vector(name("attn_q_norm"), head_size, 1.0);
    tensors.vector(name("attn_k_norm"), head_size, 1.0);
}

/// Names of modules in adapter files: transformers' `Lfm2ForCausalLM` and mlx-lm's `models/lfm2.py` agree on them.
static NAMES: AdapterNames =
    AdapterNames { peft: |module| own_paths(module).0, mlx: |module| own_paths(module).1, ..uniform::NAMES };

/// Names of modules in adapter files: transformers' `Lfm2MoeForCausalLM`, and mlx-lm's `models/lfm2_moe.py`, whose dense blocks have other names.
static NAMES_MOE: AdapterNames = AdapterNames {
    mlx: |module| match module {
        Module::FfnGate => &["feed_forward.gate_proj"],
        Module::FfnUp => &["feed_forward.up_proj"],
        Module::FfnDown => &["feed_forward.down_proj"],
        module => own_paths(module).1,
    },
    ..NAMES
};

fn own_paths(module: Module) -> Paths {
    match module {
        Module::AttnOutput => ("self_attn.out_proj", &["self_attn.out_proj"]),
        Module::FfnGate => ("feed_forward.w1", &["feed_forward.w1"]),
        Module::FfnUp => ("feed_forward.w3", &["feed_forward.w3"]),
        Module::FfnDown => ("feed_forward.w2", &["feed_forward.w2"]),
        module => paths(module, &MIXTURE),
    }
}

const MIXTURE: MixturePaths = MixturePaths {
    router: ("feed_forward.gate", &["feed_forward.gate"]),
    gate_up: (
        "feed_forward.experts.gate_up_proj",
        &["feed_forward.switch_mlp.gate_proj", "feed_forward.switch_mlp.up_proj"],
    ),
    down: ("feed_forward.experts.down_proj", &["feed_forward.switch_mlp.down_proj"]),
};

static TURNS: Turns = Turns { start: "<|startoftext|>", ..CHATML };

/// ChatML behind `<|startoftext|>`. Reasoning stands in `<think>` in front of the answer to the last question.
pub static CHAT: BuiltIn = turns!("lfm2", "LFM2", &["<|startoftext|>", "<|im_start|>", "<|im_end|>"], TURNS);

/// The layout of the mixtures of experts.
pub static CHAT_MOE: BuiltIn =
    turns!("lfm2moe", "LFM2", &["<|startoftext|>", "<|im_start|>", "<|im_end|>"], TURNS);

/// The tokenizer of LFM2, by byte-level merges.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp")],
    pre: "",
    bos: "",
    end_of_text: &["<|endoftext|>"],
    required: &[],
    turn_end: &["<|im_end|>"],
    control: &["<|im_start|>"],
    end_names: END_NAMES,
    reply: &REPLIES,
};

/// Marks of reasoning and function calls in replies: a list of calls as Python writes them, or JSON where the system message asks for it.
static REPLIES: ReplySyntax = ReplySyntax {
    calls: &[("<|tool_call_start|>", "<|tool_call_end|>")],
    parse_calls: |text, tools| match tool_calls::parse(text, tools) {
        calls if calls.is_empty() => python_calls::parse(text),
        calls => calls,
    },
    ..tool_calls::QWEN
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::families::tool_calls::tests::{called, parts, words};

    #[test]
    fn replies_are_split_into_parts() {
        let call = called("weather", json!({"city": "Lima"}));
        let python = "<|tool_call_start|>[weather(city=\"Lima\")]<|tool_call_end|>I look.";
        let json = "<|tool_call_start|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Lima\"}}]<|tool_call_end|>";
        for size in [1, 3, 10_000] {
            assert_eq!(parts(&REPLIES, false, python, size), [call.clone(), words("I look.")]);
            assert_eq!(parts(&REPLIES, false, json, size), std::slice::from_ref(&call));
        }
    }

    #[test]
    fn sizes_have_as_many_layers_of_attention_as_the_models() {
        let count = |shape: &Shape| (0..shape.layers).filter(|layer| attends(shape, *layer)).count();
        assert_eq!(SHAPES.map(|shape| count(&shape)), [6, 6, 6, 8]);
        assert_eq!(SHAPES_MOE.map(|shape| count(&shape)), [6]);
    }
}
