//! GGUF metadata → [`Config`]. Source: llama.cpp `llama_model_gemma4::load_arch_hparams` and its defaults.

use crate::base::config::{Activation, Config, Experts, LayerConfig};
use crate::base::tensors::{find, read_vector, require};
use crate::base::{Error, Gguf, TensorInfo};
use crate::families::metadata::{Keys, MOST_HEADS, MOST_LAYERS, WIDEST, WIDEST_HEAD};

use super::NAME;

/// The shape of the text model in `gguf`; an error where the keys make no sense.
pub(super) fn read(gguf: &Gguf) -> Result<Config, Error> {
    let keys = Keys { gguf, architecture: NAME };
    refuse_variants(&keys)?;
    let count = keys.size("block_count", MOST_LAYERS)?;
    let width = keys.size("embedding_length", WIDEST)?;
    let vocab = require(gguf, "token_embd", &[width])?.shape.get(1).copied().unwrap_or(1);
    let per_layer_width = match keys.integer("embedding_length_per_layer_input")? {
        None | Some(0) => 0,
        Some(_) => keys.size("embedding_length_per_layer_input", WIDEST_HEAD)?,
    };
    // llama.cpp caps at 30 where the key is missing (`f_final_logit_softcapping`), and 0 turns the cap off.
    let softcap = keys.positive_or("final_logit_softcapping", 30.0)?;
    let (layers, full_head_size) = layers(&keys, count)?;
    Ok(Config {
        architecture: NAME,
        width,
        vocab,
        embedding_scale: (width as f64).sqrt() as f32,
        per_layer_width,
        per_layer_activation: Activation::Gelu,
        rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
        softcap,
        context_length: keys.size("context_length", u32::MAX)?,
        rope_freq_factors: full_head_size.map(|size| rope_freq_factors(gguf, size)).transpose()?,
        layers,
        ..Config::default()
    })
}

/// The layers, and the head size of full-attention layers where there are any.
fn layers(keys: &Keys, count: usize) -> Result<(Vec<LayerConfig>, Option<usize>), Error> {
    let sliding = keys.pattern("attention.sliding_window_pattern", count)?;
    let shared = keys.integer("attention.shared_kv_layers")?.unwrap_or(0) as usize;
    if shared >= count {
        let expected = format!("at most {}, for {count} layers", count - 1);
        return Err(keys.wrong("attention.shared_kv_layers", &expected));
    }
    let heads = keys.sizes("attention.head_count", count, MOST_HEADS)?;
    let kv_heads = kv_heads(keys, &sliding)?;
    let ffn_width = keys.sizes("feed_forward_length", count, WIDEST)?;
    let experts = experts(keys)?;
    let sliding_kind = sliding.contains(&true).then(|| attention(keys, true)).transpose()?;
    let full_kind = sliding.contains(&false).then(|| attention(keys, false)).transpose()?;

    let mut layers = Vec::with_capacity(count);
    for i in 0..count {
        let kind = if sliding[i] { &sliding_kind } else { &full_kind };
        let kind = kind.as_ref().expect("both kinds that occur were read");
        let kv_donor =
            if i < count - shared { None } else { Some(donor(keys, i, &sliding, count - shared)?) };
        if heads[i] % kv_heads[i] != 0 {
            let expected =
                format!("a divisor of the {} query heads of layer {i}, found {}", heads[i], kv_heads[i]);
            return Err(keys.wrong("attention.head_count_kv", &expected));
        }
        if let Some(donor) = kv_donor.filter(|&donor| kv_heads[donor] != kv_heads[i]) {
            let expected = format!("as many in layer {i} as in layer {donor}, whose keys and values it uses");
            return Err(keys.wrong("attention.head_count_kv", &expected));
        }
        let has = |last: &str| find(keys.gguf, &format!("blk.{i}.{last}")).is_some();
        layers.push(LayerConfig {
            window: kind.window,
            heads: heads[i],
            kv_heads: kv_heads[i],
            head_size: kind.head_size,
            ffn_width: ffn_width[i],
            rope_base: kind.rope_base,
            rope_factors: !sliding[i],
            kv_donor,
            k_eq_v: kv_donor.is_none() && !has("attn_v") && !has("attn_qkv"),
            qk_norm: true,
            v_norm: true,
            score_scale: 1.0,
            post_norms: true,
            activation: Activation::Gelu,
            experts,
            expert_scales: expert_scales(keys.gguf, i, experts)?,
            experts_split: !has("ffn_gate_up_exps") && has("ffn_gate_exps"),
            ..LayerConfig::default()
        });
    }
    Ok((layers, full_kind.map(|full| full.head_size)))
}

/// Refuses variants of the architecture that the kernels do not run.
fn refuse_variants(keys: &Keys) -> Result<(), Error> {
    let unsupported = |problem| Err(Error::Unsupported { file: keys.gguf.file().into(), problem });
    let router = |t: &&TensorInfo| t.name.starts_with("blk.") && t.name.contains(".ffn_gate_inp");
    let has_experts = !matches!(keys.integer("expert_count")?, None | Some(0));
    if let (false, Some(t)) = (has_experts, keys.gguf.tensors().iter().find(router)) {
        return unsupported(format!(
            "holds the router {} of a mixture of experts, but {}, its number of experts, is missing or 0; \
             use another conversion of the model",
            t.name,
            keys.key("expert_count")
        ));
    }
    match keys.text("rope.scaling.type")? {
        None | Some("none") => Ok(()),
        Some(kind) => unsupported(format!(
            "stretches its context (rope.scaling.type = {kind:?}), expected none; use the model as it was released"
        )),
    }
}

/// `rope_freqs.weight`. llama.cpp requires it too: without it, the unrotated dimensions would rotate.
fn rope_freq_factors(gguf: &Gguf, head_size: usize) -> Result<Vec<f32>, Error> {
    let factors = read_vector(gguf, "rope_freqs", head_size / 2)?;
    if let Some(bad) = factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
        let problem = format!(
            "tensor rope_freqs.weight holds {bad}, expected numbers above 0; download the file again"
        );
        return Err(Error::Tensor { file: gguf.file().into(), problem });
    }
    Ok(factors)
}

/// Key/value heads of each layer; full-attention layers may have a number of their own.
fn kv_heads(keys: &Keys, sliding: &[bool]) -> Result<Vec<usize>, Error> {
    let mut kv_heads = keys.sizes("attention.head_count_kv", sliding.len(), MOST_HEADS)?;
    if let Some(1..) = keys.integer("attention.global_head_count_kv")? {
        let full = keys.size("attention.global_head_count_kv", MOST_HEADS)?;
        for (kv_heads, _) in kv_heads.iter_mut().zip(sliding).filter(|(_, sliding)| !**sliding) {
            *kv_heads = full;
        }
    }
    Ok(kv_heads)
}

/// The experts, which every layer of a mixture has; `None` in dense models.
fn experts(keys: &Keys) -> Result<Option<Experts>, Error> {
    if matches!(keys.integer("expert_count")?, None | Some(0)) {
        return Ok(None);
    }
    let count = keys.size("expert_count", Experts::MOST as u32)?;
    if !count.is_multiple_of(4) {
        return Err(keys.wrong("expert_count", "a multiple of 4"));
    }
    let most_used = count.min(Experts::MOST_USED) as u32;
    let used = keys.size("expert_used_count", most_used)?;
    let width = keys.size("expert_feed_forward_length", WIDEST)?;
    Ok(Some(Experts { count, used, width, ..Experts::default() }))
}

/// The factors on the experts' outputs; none in dense models.
fn expert_scales(gguf: &Gguf, layer: usize, experts: Option<Experts>) -> Result<Vec<f32>, Error> {
    let scales = experts
        .map(|Experts { count, .. }| read_vector(gguf, &format!("blk.{layer}.ffn_down_exps.scale"), count));
    scales.unwrap_or_else(|| Ok(Vec::new()))
}

/// The shape that all sliding layers share, or all full layers.
struct Attention {
    window: Option<usize>,
    head_size: usize,
    rope_base: f64,
}

fn attention(keys: &Keys, sliding: bool) -> Result<Attention, Error> {
    let suffix = if sliding { "_swa" } else { "" };
    let head_size = keys.size(&format!("attention.key_length{suffix}"), WIDEST_HEAD)?;
    if !head_size.is_multiple_of(2) {
        return Err(keys.wrong(&format!("attention.key_length{suffix}"), "an even head size"));
    }
    for same in ["attention.value_length", "rope.dimension_count"] {
        let same = format!("{same}{suffix}");
        if keys.integer(&same)?.is_some_and(|size| size as usize != head_size) {
            let expected = format!("{head_size}, the same as attention.key_length{suffix}");
            return Err(keys.wrong(&same, &expected));
        }
    }
    Ok(Attention {
        window: if sliding { Some(keys.size("attention.sliding_window", u32::MAX)?) } else { None },
        head_size,
        rope_base: keys.positive(&format!("rope.freq_base{suffix}"))?.into(),
    })
}

/// The donor of a layer's keys and values: the last layer of the same kind before the sharing layers begin.
fn donor(keys: &Keys, layer: usize, sliding: &[bool], first_shared: usize) -> Result<usize, Error> {
    (0..first_shared).rev().find(|&j| sliding[j] == sliding[layer]).ok_or_else(|| {
        let kind = if sliding[layer] { "sliding" } else { "full" };
        let expected =
            format!("a {kind}-attention layer before the first shared one, for layer {layer} to use");
        keys.wrong("attention.shared_kv_layers", &expected)
    })
}
