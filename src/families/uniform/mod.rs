//! Models whose layers are all alike: norms before the blocks, rotary embedding over whole heads, full attention, and a gated
//! feed-forward block with SiLU, or experts in its place. Qwen 2 and 3, Llama and their like.

mod shapes;

use super::AdapterNames;
use super::metadata::{Keys, MOST_HEADS, MOST_LAYERS, WIDEST, WIDEST_HEAD};
use super::module_paths::{MixturePaths, paths};
use crate::base::config::{Activation, Config, Experts, LayerConfig, Yarn};
use crate::base::tensors::{find, read_vector, require};
use crate::base::{Error, Gguf, Module};

pub(super) use shapes::{DENSE, metadata, tensors};

/// The matrices of attention.
const ATTENTION: [Module; 4] = [Module::AttnQ, Module::AttnK, Module::AttnV, Module::AttnOutput];

/// The differences between these architectures.
pub(super) struct Traits {
    /// `general.architecture`.
    pub name: &'static str,
    /// Whether every query and key head has an RMSNorm.
    pub qk_norm: bool,
    /// Whether the file stores the two rows of a rotary pair side by side.
    pub interleaved: bool,
    /// Whether transformers has them so too.
    pub interleaved_elsewhere: bool,
    /// Whether rotary embedding may turn a part of each head (`rope.dimension_count`).
    pub turns_parts: bool,
    /// The places of the norms of blocks.
    pub norms: Norms,
    /// Whether the norms of queries and keys, where there are any, are of whole rows.
    pub qk_norm_of_rows: bool,
    /// Whether a shared expert with a gate stands beside the others.
    pub shared_expert: bool,
    /// Whether those of heads stand behind the rotary embedding.
    pub qk_norm_behind: bool,
    /// Matrices that always have a bias. Other matrices of attention have one where the file has it.
    pub biases: &'static [Module],
    /// The modules of several matrices that are one in transformers. Files have them as one tensor or as several.
    pub fused: &'static [Module],
}

/// The places of the norms of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Norms {
    Before,
    Behind,
    Around,
}

impl Traits {
    /// Llama's layers with the rows of rotary pairs apart, and nothing of their own.
    pub const PLAIN: Traits = Traits {
        name: "",
        qk_norm: false,
        interleaved: false,
        interleaved_elsewhere: false,
        turns_parts: false,
        norms: Norms::Before,
        qk_norm_of_rows: false,
        shared_expert: false,
        qk_norm_behind: false,
        biases: &[],
        fused: &[],
    };
}

/// The shape of the model in `gguf`; an error where the keys make no sense.
///
/// Source: llama.cpp `src/models/{qwen2,qwen3,qwen3moe,llama}.cpp`.
pub(super) fn config(gguf: &Gguf, traits: &Traits) -> Result<Config, Error> {
    // Longer than 60 lines: one line per field of two descriptions.
    let keys = Keys { gguf, architecture: traits.name };
    let count = layer_count(&keys)?;
    let width = keys.size("embedding_length", WIDEST)?;
    let vocab = require(gguf, "token_embd", &[width])?.shape.get(1).copied().unwrap_or(1);
    let heads = keys.sizes("attention.head_count", count, MOST_HEADS)?;
    let kv_heads = match gguf.value(&keys.key("attention.head_count_kv")) {
        Some(_) => keys.sizes("attention.head_count_kv", count, MOST_HEADS)?,
        None => heads.clone(),
    };
    if let Some(layer) = (0..count).find(|&layer| !heads[layer].is_multiple_of(kv_heads[layer])) {
        let expected = format!("a divisor of the {} query heads of layer {layer}", heads[layer]);
        return Err(keys.wrong("attention.head_count_kv", &expected));
    }
    let head_size = match traits.turns_parts {
        true => key_size(&keys, width, heads[0])?,
        false => head_size(&keys, width, heads[0])?,
    };
    let experts = experts(&keys)?;
    let ffn_width = match experts {
        Some(_) => vec![0; count],
        None => keys.sizes("feed_forward_length", count, WIDEST)?,
    };
    let rope_freq_factors = match find(gguf, "rope_freqs") {
        Some(_) => Some(rope_freq_factors(gguf, head_size)?),
        None => None,
    };
    let rope_base = keys.positive_or("rope.freq_base", 10_000.0)?.unwrap_or(10_000.0).into();
    let stretch = stretch(&keys, rope_base, true)?;
    let layer = LayerConfig {
        heads: heads[0],
        kv_heads: kv_heads[0],
        head_size,
        ffn_width: ffn_width[0],
        rope_base,
        rope_factors: rope_freq_factors.is_some(),
        rope_divisor: stretch.divisor,
        yarn: stretch.yarn,
        rotated: if traits.turns_parts { turned(&keys, head_size)? } else { None },
        interleaved: traits.interleaved,
        interleaved_elsewhere: traits.interleaved_elsewhere,
        qk_norm: traits.qk_norm,
        qk_norm_of_rows: traits.qk_norm_of_rows,
        qk_norm_behind: traits.qk_norm_behind,
        pre_norms: traits.norms != Norms::Behind,
        post_norms: traits.norms != Norms::Before,
        fused: traits.fused.to_vec(),
        score_scale: score_scale(&keys, head_size)?,
        activation: Activation::Silu,
        experts,
        ..LayerConfig::default()
    };
    let layers = (0..count).map(|i| {
        let has = |last: &str| find(gguf, &format!("blk.{i}.{last}")).is_some();
        let in_fused = |m: &Module| Module::AttnQkv.fused().contains(m) && has("attn_qkv.bias");
        let bias =
            |m: &Module| traits.biases.contains(m) || has(&format!("{}.bias", m.gguf_name())) || in_fused(m);
        let in_file = |fused: &&Module| match fused {
            Module::FfnGateUp => !has("ffn_gate"),
            _ => !has("attn_q") && has("attn_qkv"),
        };
        LayerConfig {
            heads: heads[i],
            kv_heads: kv_heads[i],
            ffn_width: ffn_width[i],
            biases: ATTENTION.into_iter().filter(bias).collect(),
            fused_in_file: traits.fused.iter().filter(in_file).copied().collect(),
            experts_split: !has("ffn_gate_up_exps") && has("ffn_gate_exps"),
            ..layer.clone()
        }
    });
    refuse_biases(gguf)?;
    Ok(Config {
        architecture: traits.name,
        width,
        vocab,
        rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
        context_length: keys.size("context_length", u32::MAX)?,
        rope_freq_factors,
        layers: layers.collect(),
        ..Config::default()
    })
}

/// Whether each layer sees a window alone. The key holds the distance of full layers, or one bool for each layer; without it, the last of
/// `full_every` layers is full.
pub(super) fn sliding(keys: &Keys, count: usize, full_every: usize) -> Result<Vec<bool>, Error> {
    let name = "attention.sliding_window_pattern";
    let by_distance = |every: usize| (0..count).map(|i| i % every != every - 1).collect();
    if let Ok(Some(every)) = keys.integer(name) {
        return Ok(by_distance((every as usize).max(1)));
    }
    match keys.gguf.value(&keys.key(name)) {
        Some(_) => keys.pattern(name, count),
        None => Ok(by_distance(full_every)),
    }
}

/// The layers that a pass runs: those for multi-token prediction, at the end of the file, are not among them.
pub(super) fn layer_count(keys: &Keys) -> Result<usize, Error> {
    let count = keys.size("block_count", MOST_LAYERS)?;
    let extra = keys.integer("nextn_predict_layers")?.unwrap_or(0) as usize;
    match count.checked_sub(extra) {
        Some(count @ 1..) => Ok(count),
        _ => Err(keys.wrong("nextn_predict_layers", &format!("fewer than the {count} layers"))),
    }
}

/// The numbers of query heads, and of key and value heads, where all layers have the same.
pub(super) fn heads(keys: &Keys) -> Result<(usize, usize), Error> {
    let heads = keys.size("attention.head_count", MOST_HEADS)?;
    let kv_heads = keys.size("attention.head_count_kv", MOST_HEADS)?;
    match heads.is_multiple_of(kv_heads) {
        true => Ok((heads, kv_heads)),
        false => Err(keys.wrong("attention.head_count_kv", &format!("a divisor of the {heads} query heads"))),
    }
}

/// The head size where rotary embedding turns whole heads: of the keys, or an even share of the model's width.
pub(super) fn head_size(keys: &Keys, width: usize, heads: usize) -> Result<usize, Error> {
    let size = key_size(keys, width, heads)?;
    match turned(keys, size)? {
        None => Ok(size),
        Some(_) => Err(keys.wrong("rope.dimension_count", &format!("{size}, the head size"))),
    }
}

/// The leading values of each head that rotary embedding turns; `None` where it turns whole heads.
fn turned(keys: &Keys, head_size: usize) -> Result<Option<usize>, Error> {
    let name = "rope.dimension_count";
    let Some(_) = keys.integer(name)? else { return Ok(None) };
    let turned = keys.size(name, WIDEST_HEAD)?;
    match turned {
        _ if turned > head_size => Err(keys.wrong(name, &format!("at most {head_size}, the head size"))),
        _ if !turned.is_multiple_of(2) => Err(keys.wrong(name, "an even number")),
        _ => Ok((turned < head_size).then_some(turned)),
    }
}

/// The head size: of the keys, or an even share of the model's width.
fn key_size(keys: &Keys, width: usize, heads: usize) -> Result<usize, Error> {
    let size = match keys.integer("attention.key_length")? {
        Some(_) => keys.size("attention.key_length", WIDEST_HEAD)?,
        None => width / heads,
    };
    if size == 0 || !size.is_multiple_of(4) {
        return Err(keys.wrong("attention.key_length", &format!("a multiple of 4, found {size}")));
    }
    let same = "attention.value_length";
    if keys.integer(same)?.is_some_and(|found| found as usize != size) {
        return Err(keys.wrong(same, &format!("{size}, the head size")));
    }
    Ok(size)
}

/// The way in which a model stretches its context.
pub(super) struct Stretch {
    /// The divisor of all positions.
    pub divisor: f64,
    /// YaRN, if the model has it.
    pub yarn: Option<Yarn>,
}

/// The way in which a model with rotary base `base` stretches its context; others than linear and YaRN are refused. `whole`: the bounds of YaRN
/// are whole pairs, as in llama.cpp and, for all models but gpt-oss, in transformers.
pub(super) fn stretch(keys: &Keys, base: f64, whole: bool) -> Result<Stretch, Error> {
    let by = |divisor: f64| Ok(Stretch { divisor, yarn: None });
    match keys.text("rope.scaling.type")? {
        None if keys.integer("rope.scale_linear").is_ok_and(|scale| scale.is_none()) => by(1.0),
        None => by(keys.positive("rope.scale_linear")?.into()),
        // The factors are tensors, which the families that have them read.
        Some("longrope") if find(keys.gguf, "rope_factors_short").is_some() => by(1.0),
        Some("none") => by(1.0),
        Some("linear") => by(keys.positive("rope.scaling.factor")?.into()),
        Some("yarn") if base <= 1.0 => Err(keys.wrong("rope.freq_base", "a number above 1")),
        Some("yarn") => Ok(Stretch { divisor: 1.0, yarn: Some(yarn(keys, whole)?) }),
        Some(kind) => Err(Error::Unsupported {
            file: keys.gguf.file().into(),
            problem: format!(
                "stretches its context (rope.scaling.type = {kind:?}), expected yarn, linear or none; use the model as it was released"
            ),
        }),
    }
}

/// YaRN by the file's keys.
fn yarn(keys: &Keys, whole: bool) -> Result<Yarn, Error> {
    let number = |name: &str, default: f32| match keys.gguf.value(&keys.key(name)) {
        Some(_) => keys.positive(name),
        None => Ok(default),
    };
    let original = "rope.scaling.original_context_length";
    let original = if keys.integer(original)?.is_some() { original } else { "context_length" };
    let yarn = Yarn {
        factor: keys.positive("rope.scaling.factor")?.into(),
        original_context: keys.size(original, u32::MAX)? as f64,
        beta_fast: number("rope.scaling.yarn_beta_fast", 32.0)?.into(),
        beta_slow: number("rope.scaling.yarn_beta_slow", 1.0)?.into(),
        whole,
        scale: Yarn::usual_scale(keys.positive("rope.scaling.factor")?.into()),
    };
    // Some files have the scale itself, which follows from the factor.
    let follows = |name: &str, value: f32| {
        name.ends_with("attn_factor") && (f64::from(value) / yarn.scale - 1.0).abs() < 1e-4
    };
    for name in ["rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.attn_factor"]
    {
        let value = number(name, 1.0)?;
        if value != 1.0 && !follows(name, value) {
            return Err(keys.wrong(name, "1 or no such key"));
        }
    }
    match yarn.factor >= 1.0 {
        true => Ok(yarn),
        false => Err(keys.wrong("rope.scaling.factor", "1 or more")),
    }
}

/// The factor on the scores: `attention.scale`, or `1/√K`.
fn score_scale(keys: &Keys, head_size: usize) -> Result<f64, Error> {
    let usual = (head_size as f64).sqrt().recip();
    match keys.gguf.get::<f32>(&keys.key("attention.scale"))? {
        None | Some(0.0) => Ok(usual),
        Some(_) => Ok(keys.positive("attention.scale")?.into()),
    }
}

/// `rope_freqs.weight`, the divisors of the rotary frequencies of Llama 3.1 and later.
fn rope_freq_factors(gguf: &Gguf, head_size: usize) -> Result<Vec<f32>, Error> {
    rope_factors(gguf, "rope_freqs", head_size / 2)
}

/// Divisors of the rotary frequencies: the tensor `name` of `pairs` numbers.
pub(super) fn rope_factors(gguf: &Gguf, name: &str, pairs: usize) -> Result<Vec<f32>, Error> {
    let factors = read_vector(gguf, name, pairs)?;
    match factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
        None => Ok(factors),
        Some(bad) => Err(Error::Tensor {
            file: gguf.file().into(),
            problem: format!(
                "tensor {name}.weight holds {bad}, expected numbers above 0; download the file again"
            ),
        }),
    }
}

/// The experts, which stand in the place of every layer's feed-forward block; `None` in dense models.
pub(super) fn experts(keys: &Keys) -> Result<Option<Experts>, Error> {
    if matches!(keys.integer("expert_count")?, None | Some(0)) {
        return Ok(None);
    }
    let count = keys.size("expert_count", Experts::MOST as u32)?;
    if !count.is_multiple_of(4) {
        return Err(keys.wrong("expert_count", "a multiple of 4"));
    }
    let used = keys.size("expert_used_count", count.min(Experts::MOST_USED) as u32)?;
    let width = match keys.integer("expert_feed_forward_length")? {
        Some(_) => "expert_feed_forward_length",
        None => "feed_forward_length",
    };
    Ok(Some(Experts { count, used, width: keys.size(width, WIDEST)?, ..Experts::default() }))
}

/// The experts of a family that is a mixture.
pub(super) fn required_experts(keys: &Keys) -> Result<Experts, Error> {
    experts(keys)?.ok_or_else(|| keys.wrong("expert_count", "a multiple of 4 above 0"))
}

/// The width of a shared expert: its own, or that of a feed-forward block.
pub(super) fn shared_width(keys: &Keys) -> Result<usize, Error> {
    let of_shared = "expert_shared_feed_forward_length";
    let own = keys.integer(of_shared)?.is_some();
    keys.size(if own { of_shared } else { "feed_forward_length" }, WIDEST)
}

/// Refuses biases that no kernel adds: of the feed-forward block and the head.
fn refuse_biases(gguf: &Gguf) -> Result<(), Error> {
    let modules = || ATTENTION.iter().chain(&[Module::AttnQkv]);
    let adds = |name: &str| modules().any(|m| name.ends_with(&format!(".{}.bias", m.gguf_name())));
    let of_text = |name: &str| name.starts_with("blk.") || name == "output.bias";
    let bad = gguf.tensors().iter().find(|t| of_text(&t.name) && t.name.ends_with(".bias") && !adds(&t.name));
    match bad {
        None => Ok(()),
        Some(tensor) => Err(Error::Unsupported {
            file: gguf.file().into(),
            problem: format!(
                "has the bias {}, supported are biases of queries, keys, values and attention's output; use another model",
                tensor.name
            ),
        }),
    }
}

/// Names of modules in adapter files: transformers' and mlx-lm's `models/{qwen2,qwen3,qwen3_moe,llama}.py` agree on them.
pub(super) static NAMES: AdapterNames = AdapterNames {
    peft: |module| paths(module, &MIXTURE).0,
    mlx: |module| paths(module, &MIXTURE).1,
    causal_lm_layers: "model.layers",
    conditional_generation_layers: "model.language_model.layers",
    mlx_layers: "model.layers",
    router_is_parameter: true,
    gate_up_alternate: false,
    where_fused: None,
};

pub(super) const MIXTURE: MixturePaths = MixturePaths {
    router: ("mlp.gate", &["mlp.gate"]),
    gate_up: ("mlp.experts.gate_up_proj", &["mlp.switch_mlp.gate_proj", "mlp.switch_mlp.up_proj"]),
    down: ("mlp.experts.down_proj", &["mlp.switch_mlp.down_proj"]),
};
