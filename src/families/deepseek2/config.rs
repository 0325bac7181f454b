//! Metadata keys to the shape of a model. Source: llama.cpp `src/models/deepseek2.cpp`, transformers' `modeling_deepseek_v2.py` and
//! `modeling_glm4_moe_lite.py`.

use super::NAME;
use crate::base::config::{Activation, Config, Experts, Gating, Latent, LayerConfig, Yarn};
use crate::base::tensors::{find, require};
use crate::base::{Error, Gguf, Module};
use crate::families::metadata::{Keys, MOST_HEADS, WIDEST, WIDEST_HEAD};
use crate::families::uniform;

/// Values of `expert_gating_func`.
const SOFTMAX: u32 = 1;
pub(super) const SIGMOID: u32 = 2;
/// Experts from which on models of this architecture choose among groups of them, whether or not their files say so.
const GROUPED: usize = 160;

/// The shape of the model in `gguf`; an error where the keys make no sense.
pub(super) fn config(gguf: &Gguf) -> Result<Config, Error> {
    let keys = Keys { gguf, architecture: NAME };
    let count = uniform::layer_count(&keys)?;
    let width = keys.size("embedding_length", WIDEST)?;
    let vocab = require(gguf, "token_embd", &[width])?.shape.get(1).copied().unwrap_or(1);
    let attention = attention(&keys)?;
    let dense = LayerConfig { ffn_width: keys.size("feed_forward_length", WIDEST)?, ..attention.clone() };
    let (experts, shared_width) = experts(&keys)?;
    let mixture = LayerConfig { ffn_width: shared_width, experts: Some(experts), ..attention };
    let leading = keys.integer("leading_dense_block_count")?.unwrap_or(0) as usize;
    let layers = (0..count).map(|i| {
        let has = |last: &str| find(gguf, &format!("blk.{i}.{last}")).is_some();
        let split = !has("ffn_gate_up_exps") && has("ffn_gate_exps");
        match i < leading {
            true => dense.clone(),
            false => LayerConfig { experts_split: split, ..mixture.clone() },
        }
    });
    refuse_others(&keys)?;
    Ok(Config {
        architecture: NAME,
        width,
        vocab,
        rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
        context_length: keys.size("context_length", u32::MAX)?,
        layers: layers.collect(),
        ..Config::default()
    })
}

/// A layer but for its feed-forward block.
fn attention(keys: &Keys) -> Result<LayerConfig, Error> {
    let heads = keys.size("attention.head_count", MOST_HEADS)?;
    // Files with keys and values apart name the sizes of the vector under the usual keys.
    let apart = keys.integer("attention.key_length_mla")?.is_some_and(|length| length > 0);
    let of = |own: &'static str, usual: &'static str| if apart { own } else { usual };
    let key_length = of("attention.key_length_mla", "attention.key_length");
    let value_length = of("attention.value_length_mla", "attention.value_length");
    let head_size = keys.size(key_length, WIDEST_HEAD)?;
    let value_size = keys.size(value_length, WIDEST_HEAD)?;
    let turned = keys.size("rope.dimension_count", WIDEST_HEAD)?;
    let rank = keys.size("attention.kv_lora_rank", WIDEST)?;
    let query_rank = match keys.integer("attention.q_lora_rank")? {
        None | Some(0) => None,
        Some(_) => Some(keys.size("attention.q_lora_rank", WIDEST)?),
    };
    check_sizes(
        keys,
        &[
            (key_length, head_size),
            (value_length, value_size),
            ("rope.dimension_count", turned),
            ("attention.kv_lora_rank", rank),
            ("attention.q_lora_rank", query_rank.unwrap_or(0)),
        ],
    )?;
    if turned >= head_size {
        return Err(keys.wrong("rope.dimension_count", &format!("less than {head_size}, the size of keys")));
    }
    if value_size > head_size {
        return Err(keys.wrong(value_length, &format!("at most {head_size}, the size of keys")));
    }
    let rope_base = keys.positive_or("rope.freq_base", 10_000.0)?.unwrap_or(10_000.0).into();
    let stretch = uniform::stretch(keys, rope_base, true)?;
    // Scores grow with the stretched context, instead of queries and keys that turn.
    let growth = match stretch.yarn {
        None => 1.0,
        Some(yarn) => {
            let multiplier = f64::from(keys.positive("rope.scaling.yarn_log_multiplier")?);
            Yarn::scale_by(yarn.factor, 10.0 * multiplier).powi(2)
        }
    };
    let latent = Latent { rank, query_rank, turned, key_size: head_size - turned, value_size, apart };
    Ok(LayerConfig {
        heads,
        kv_heads: heads,
        head_size,
        rope_base,
        rope_divisor: stretch.divisor,
        yarn: stretch.yarn.map(|yarn| Yarn { scale: 1.0, ..yarn }),
        rotated: Some(turned),
        interleaved: true,
        interleaved_elsewhere: true,
        fused: vec![Module::AttnKvB],
        fused_in_file: if apart { Vec::new() } else { vec![Module::AttnKvB] },
        latent: Some(latent),
        score_scale: growth * (head_size as f64).sqrt().recip(),
        activation: Activation::Silu,
        ..LayerConfig::default()
    })
}

/// Refuses sizes that kernels do not read.
fn check_sizes(keys: &Keys, sizes: &[(&str, usize)]) -> Result<(), Error> {
    match sizes.iter().find(|(_, size)| !size.is_multiple_of(4)) {
        None => Ok(()),
        Some((name, _)) => Err(keys.wrong(name, "a multiple of 4")),
    }
}

/// The experts of layers that have some, and the width of the shared one; 0 without.
fn experts(keys: &Keys) -> Result<(Experts, usize), Error> {
    let experts = uniform::required_experts(keys)?;
    let groups = keys.integer("expert_group_count")?;
    if groups.unwrap_or(1) > 1 || groups.is_none() && experts.count >= GROUPED {
        let found = groups.map_or("no such key".to_owned(), |groups| groups.to_string());
        return Err(Error::Unsupported {
            file: keys.gguf.file().into(),
            problem: format!(
                "chooses among groups of its {} experts ({}: {found}), which is not trained: expected one group; use DeepSeek V2 Lite or GLM 4.7 Flash",
                experts.count,
                keys.key("expert_group_count")
            ),
        });
    }
    let biased = keys.gguf.tensors().iter().any(|t| t.name.ends_with("exp_probs_b.bias"));
    let sigmoid = match keys.integer("expert_gating_func")? {
        // The bias tells it where files do not.
        None | Some(0) => biased,
        Some(SOFTMAX) => false,
        Some(SIGMOID) => true,
        Some(_) => return Err(keys.wrong("expert_gating_func", "1, softmax, or 2, sigmoids")),
    };
    let normed = keys.gguf.get::<bool>(&keys.key("expert_weights_norm"))?.unwrap_or(false);
    let gating = match (sigmoid, normed) {
        (false, false) => Gating::All,
        (false, true) => Gating::Chosen,
        (true, true) => Gating::Sigmoid,
        (true, false) => return Err(keys.wrong("expert_weights_norm", "true beside a router of sigmoids")),
    };
    let scale = keys.positive_or("expert_weights_scale", 1.0)?.unwrap_or(1.0);
    let count = keys.integer("expert_shared_count")?.unwrap_or(0) as usize;
    let shared = count > 0;
    let width = count.checked_mul(keys.size("expert_feed_forward_length", WIDEST)?);
    let Some(width) = width.filter(|width| *width <= WIDEST as usize) else {
        return Err(keys.wrong("expert_shared_count", &format!("experts of {WIDEST} rows in all, or fewer")));
    };
    Ok((Experts { shared, ungated: shared, gating, scale, ..experts }, width))
}

/// Refuses biases, and queries that grow with their positions, which kin of these models have.
fn refuse_others(keys: &Keys) -> Result<(), Error> {
    let of_text = |name: &str| name.starts_with("blk.") && name.ends_with(".bias");
    let bad = keys.gguf.tensors().iter().find(|t| of_text(&t.name) && !t.name.ends_with("exp_probs_b.bias"));
    if let Some(tensor) = bad {
        return Err(Error::Unsupported {
            file: keys.gguf.file().into(),
            problem: format!(
                "has the bias {}, supported are biases of the router's choice alone; use another model",
                tensor.name
            ),
        });
    }
    match keys.gguf.get::<f32>(&keys.key("attention.temperature_scale"))? {
        None | Some(0.0) => Ok(()),
        Some(_) => Err(keys.wrong("attention.temperature_scale", "0 or no such key")),
    }
}
