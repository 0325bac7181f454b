//! Metadata keys → the model's shape.
//!
//! Source: llama.cpp `src/models/{qwen35,qwen35moe}.cpp` and `conversion/qwen.py`.

use crate::base::config::{Activation, Config, DeltaNet, Experts, LayerConfig};
use crate::base::tensors::{find, require};
use crate::base::{Error, Gguf};
use crate::families::metadata::{Keys, MOST_HEADS, MOST_LAYERS, WIDEST, WIDEST_HEAD};
use crate::families::uniform;

/// Distance of layers with attention, where the file has neither key.
const ATTENTION_EVERY: u32 = 4;

/// The shape of the model in `gguf`, which is of `architecture`; an error where the keys make no sense.
pub fn config(gguf: &Gguf, architecture: &'static str) -> Result<Config, Error> {
    let keys = Keys { gguf, architecture };
    let count = uniform::layer_count(&keys)?;
    let width = keys.size("embedding_length", WIDEST)?;
    let vocab = require(gguf, "token_embd", &[width])?.shape.get(1).copied().unwrap_or(1);
    let experts = experts(&keys)?;
    let ffn_width = ffn_width(&keys)?;
    let (delta, attention) = (delta_net(&keys)?, attention(&keys)?);
    let layer = |recurrent: bool| match recurrent {
        true => LayerConfig { delta: Some(delta), ..LayerConfig::default() },
        false => attention.clone(),
    };
    let recurrent = recurrent_layers(&keys, count)?;
    let has = |layer: usize, last: &str| find(gguf, &format!("blk.{layer}.{last}")).is_some();
    let described = recurrent.into_iter().enumerate().map(|(i, recurrent)| LayerConfig {
        ffn_width,
        activation: Activation::Silu,
        experts,
        experts_split: !has(i, "ffn_gate_up_exps") && has(i, "ffn_gate_exps"),
        ..layer(recurrent)
    });
    Ok(Config {
        architecture,
        width,
        vocab,
        rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
        context_length: keys.size("context_length", u32::MAX)?,
        layers: described.collect(),
        ..Config::default()
    })
}

/// The routed experts, beside a shared one, of every layer; `None` in dense models.
fn experts(keys: &Keys) -> Result<Option<Experts>, Error> {
    if keys.architecture != super::NAME_MOE {
        return Ok(None);
    }
    Ok(Some(Experts { shared: true, ..uniform::required_experts(keys)? }))
}

/// The width of the feed-forward block, or of the shared expert in its place.
fn ffn_width(keys: &Keys) -> Result<usize, Error> {
    match keys.architecture == super::NAME_MOE {
        true => uniform::shared_width(keys),
        false => keys.size("feed_forward_length", WIDEST),
    }
}

/// Which layers have a delta net: a list, those without heads of keys in Ollama's conversions, or all but the last of so many.
fn recurrent_layers(keys: &Keys, count: usize) -> Result<Vec<bool>, Error> {
    if keys.gguf.value(&keys.key("attention.recurrent_layers")).is_some() {
        let all = keys.size("block_count", WIDEST)?;
        let mut pattern = keys.pattern("attention.recurrent_layers", all)?;
        pattern.truncate(count);
        return Ok(pattern);
    }
    let kv_heads = kv_heads(keys)?;
    if kv_heads.contains(&0) {
        return Ok(kv_heads.into_iter().map(|heads| heads == 0).take(count).collect());
    }
    let every = match keys.integer("full_attention_interval")? {
        Some(_) => keys.size("full_attention_interval", u32::MAX)?,
        None => ATTENTION_EVERY as usize,
    };
    Ok((0..count).map(|layer| (layer + 1) % every != 0).collect())
}

/// Heads of keys and values of every layer; 0 in layers with a delta net, where the file has an array as Ollama's conversions do.
fn kv_heads(keys: &Keys) -> Result<Vec<u32>, Error> {
    keys.gguf.scalar_or_array(&keys.key("attention.head_count_kv"), keys.size("block_count", MOST_LAYERS)?)
}

fn attention(keys: &Keys) -> Result<LayerConfig, Error> {
    let heads = keys.size("attention.head_count", MOST_HEADS)?;
    let mut kv_heads = kv_heads(keys)?;
    kv_heads.retain(|&heads| heads > 0);
    kv_heads.dedup();
    let &[1..=MOST_HEADS] = &kv_heads[..] else {
        return Err(keys.wrong(
            "attention.head_count_kv",
            &format!("1 to {MOST_HEADS}, and 0 in layers without attention"),
        ));
    };
    let kv_heads = kv_heads[0] as usize;
    if !heads.is_multiple_of(kv_heads) {
        return Err(keys.wrong("attention.head_count_kv", &format!("a divisor of the {heads} query heads")));
    }
    let head_size = keys.size("attention.key_length", WIDEST_HEAD)?;
    if !head_size.is_multiple_of(4) {
        return Err(keys.wrong("attention.key_length", "a multiple of 4"));
    }
    if keys.integer("attention.value_length")?.is_some_and(|found| found as usize != head_size) {
        return Err(keys.wrong("attention.value_length", &format!("{head_size}, the head size")));
    }
    let rotated = match keys.integer("rope.dimension_count")? {
        Some(_) => keys.size("rope.dimension_count", head_size as u32)?,
        None => head_size,
    };
    if !rotated.is_multiple_of(2) {
        return Err(keys.wrong("rope.dimension_count", "an even number"));
    }
    let rope_base = keys.positive_or("rope.freq_base", 10_000.0)?.unwrap_or(10_000.0).into();
    let stretch = uniform::stretch(keys, rope_base, true)?;
    Ok(LayerConfig {
        heads,
        kv_heads,
        head_size,
        rope_base,
        rope_divisor: stretch.divisor,
        yarn: stretch.yarn,
        rotated: (rotated < head_size).then_some(rotated),
        qk_norm: true,
        score_scale: (head_size as f64).sqrt().recip(),
        output_gate: true,
        ..LayerConfig::default()
    })
}

fn delta_net(keys: &Keys) -> Result<DeltaNet, Error> {
    let delta = DeltaNet {
        key_heads: keys.size("ssm.group_count", MOST_HEADS)?,
        value_heads: keys.size("ssm.time_step_rank", MOST_HEADS)?,
        head_size: keys.size("ssm.state_size", DeltaNet::LARGEST_HEAD as u32)?,
    };
    if !delta.value_heads.is_multiple_of(delta.key_heads) {
        let expected = format!("a multiple of the {} key heads", delta.key_heads);
        return Err(keys.wrong("ssm.time_step_rank", &expected));
    }
    if !delta.head_size.is_multiple_of(4) {
        return Err(keys.wrong("ssm.state_size", "a multiple of 4"));
    }
    if keys.size("ssm.inner_size", WIDEST)? != delta.values() {
        return Err(keys.wrong("ssm.inner_size", &format!("{}, all value heads", delta.values())));
    }
    if keys.size("ssm.conv_kernel", u32::MAX)? != 4 {
        return Err(keys.wrong("ssm.conv_kernel", "4"));
    }
    // Ollama's key for the order of value heads, which llama.cpp's converter always has.
    let reordered = keys.gguf.get::<bool>(&keys.key("ssm.v_head_reordered"))?;
    if reordered == Some(false) && delta.value_heads != delta.key_heads {
        return Err(keys.wrong("ssm.v_head_reordered", "true; use a newer conversion of the model"));
    }
    Ok(delta)
}
