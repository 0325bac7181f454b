//! GGUF metadata → [`Config`]. Source: llama.cpp `llama_model_gemma4::load_arch_hparams` and its defaults.

use super::tensors::{find, read_vector, require};
use super::{Error, Gguf, TensorInfo};
use crate::base::config::{Config, Experts, LayerConfig};

// No real model comes near these limits; with them, products of sizes stay below 2³².
const MOST_LAYERS: u32 = 1 << 10;
const MOST_HEADS: u32 = 1 << 10;
const WIDEST_HEAD: u32 = 1 << 16;
const WIDEST: u32 = 1 << 22;

/// The shape of the text model in `gguf`; an error where it is another architecture or the keys make no sense.
pub(super) fn read(gguf: &Gguf) -> Result<Config, Error> {
    refuse_others(gguf)?;
    let keys = Keys { gguf };

    let count = keys.size("block_count", MOST_LAYERS)?;
    let width = keys.size("embedding_length", WIDEST)?;
    let vocab = require(gguf, "token_embd", &[width])?.shape.get(1).copied().unwrap_or(1);
    let per_layer_width = match gguf.get::<u32>(&key("embedding_length_per_layer_input"))? {
        None | Some(0) => 0,
        Some(_) => keys.size("embedding_length_per_layer_input", WIDEST_HEAD)?,
    };
    // llama.cpp caps at 30 where the key is missing (`f_final_logit_softcapping`), and 0 turns the cap off.
    let softcap = keys.positive_or("final_logit_softcapping", 30.0)?;

    let sliding = keys.pattern(count)?;
    let shared = gguf.get::<u32>(&key("attention.shared_kv_layers"))?.unwrap_or(0) as usize;
    if shared >= count {
        return Err(
            keys.wrong("attention.shared_kv_layers", &format!("at most {}, for {count} layers", count - 1))
        );
    }
    let heads = keys.sizes("attention.head_count", count, MOST_HEADS)?;
    let mut kv_heads = keys.sizes("attention.head_count_kv", count, MOST_HEADS)?;
    if let Some(1..) = gguf.get::<u32>(&key("attention.global_head_count_kv"))? {
        let full = keys.size("attention.global_head_count_kv", MOST_HEADS)?;
        for (kv_heads, _) in kv_heads.iter_mut().zip(&sliding).filter(|(_, sliding)| !**sliding) {
            *kv_heads = full;
        }
    }
    let ffn_width = keys.sizes("feed_forward_length", count, WIDEST)?;
    let experts = keys.experts()?;
    let sliding_kind = sliding.contains(&true).then(|| keys.attention(true)).transpose()?;
    let full_kind = sliding.contains(&false).then(|| keys.attention(false)).transpose()?;

    let mut layers = Vec::with_capacity(count);
    for i in 0..count {
        let kind = if sliding[i] { &sliding_kind } else { &full_kind };
        let Attention { window, head_size, rope_base } =
            kind.clone().expect("both kinds that occur were read");
        let kv_donor =
            if i < count - shared { None } else { Some(keys.donor(i, &sliding, count - shared)?) };
        if heads[i] % kv_heads[i] != 0 {
            let expected =
                format!("a divisor of the {} query heads of layer {i}, found {}", heads[i], kv_heads[i]);
            return Err(keys.wrong("attention.head_count_kv", &expected));
        }
        if let Some(donor) = kv_donor.filter(|&donor| kv_heads[donor] != kv_heads[i]) {
            let expected = format!("as many in layer {i} as in layer {donor}, whose keys and values it uses");
            return Err(keys.wrong("attention.head_count_kv", &expected));
        }
        let has = |last: &str| find(gguf, &format!("blk.{i}.{last}")).is_some();
        let expert_scales = match experts {
            // What is wrong with the tensor is said when all are checked.
            Some(Experts { count, .. }) => {
                read_vector(gguf, &format!("blk.{i}.ffn_down_exps.scale"), count).unwrap_or_default()
            }
            None => Vec::new(),
        };
        layers.push(LayerConfig {
            window,
            heads: heads[i],
            kv_heads: kv_heads[i],
            head_size,
            ffn_width: ffn_width[i],
            rope_base,
            kv_donor,
            k_eq_v: kv_donor.is_none() && !has("attn_v") && !has("attn_qkv"),
            experts,
            expert_scales,
            experts_split: !has("ffn_gate_up_exps") && has("ffn_gate_exps"),
        });
    }

    Ok(Config {
        architecture: "gemma4",
        width,
        vocab,
        per_layer_width,
        rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
        softcap,
        context_length: keys.size("context_length", u32::MAX)?,
        rope_freq_factors: full_kind.map(|full| rope_freq_factors(gguf, full.head_size)).transpose()?,
        layers,
    })
}

/// Refuses files that are no Gemma 4 text model, by what they are.
fn refuse_others(gguf: &Gguf) -> Result<(), Error> {
    let unsupported = |problem| Err(Error::Unsupported { file: gguf.file().into(), problem });
    if gguf.get::<&str>("general.type")? == Some("adapter") {
        return unsupported(
            "is a LoRA adapter, expected a base model; name the model that it was trained on".into(),
        );
    }
    let architecture: &str = gguf.require("general.architecture")?;
    if architecture != "gemma4" {
        return unsupported(format!(
            "is a model of architecture `{architecture}`, expected `gemma4`; use a Gemma 4 GGUF, such as gemma4:e2b"
        ));
    }
    if let Some(parts @ 2..) = gguf.get::<u32>("split.count")? {
        return unsupported(format!(
            "is one of {parts} parts of a split file, expected a whole one; join them with `llama-gguf-split --merge`"
        ));
    }
    let router = |t: &&TensorInfo| t.name.starts_with("blk.") && t.name.contains(".ffn_gate_inp");
    if let (None | Some(0), Some(t)) =
        (gguf.get::<u32>(&key("expert_count"))?, gguf.tensors().iter().find(router))
    {
        return unsupported(format!(
            "holds the router {} of a mixture of experts, but gemma4.expert_count, its number of experts, is missing or 0; \
             use another conversion of the model",
            t.name
        ));
    }
    match gguf.get::<&str>(&key("rope.scaling.type"))? {
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

/// What all layers of one kind share.
#[derive(Clone)]
struct Attention {
    window: Option<usize>,
    head_size: usize,
    rope_base: f64,
}

fn key(name: &str) -> String {
    format!("gemma4.{name}")
}

/// Checked reads of `gemma4.*` keys; names are given without that prefix.
struct Keys<'a> {
    gguf: &'a Gguf,
}

impl Keys<'_> {
    fn wrong(&self, name: &str, expected: &str) -> Error {
        self.gguf.wrong_value(&key(name), expected)
    }

    /// A size from 1 to `most`.
    fn size(&self, name: &str, most: u32) -> Result<usize, Error> {
        match self.gguf.require::<u32>(&key(name))? {
            size if (1..=most).contains(&size) => Ok(size as usize),
            _ => Err(self.wrong(name, &format!("1 to {most}"))),
        }
    }

    /// One size for all layers, or one each.
    fn sizes(&self, name: &str, layers: usize, most: u32) -> Result<Vec<usize>, Error> {
        let sizes = self.gguf.scalar_or_array(&key(name), layers)?;
        match sizes.iter().find(|size| !(1..=most).contains(*size)) {
            Some(bad) => Err(self.wrong(name, &format!("1 to {most} for each layer, found {bad}"))),
            None => Ok(sizes.into_iter().map(|size| size as usize).collect()),
        }
    }

    fn positive(&self, name: &str) -> Result<f32, Error> {
        let value: f32 = self.gguf.require(&key(name))?;
        if value.is_finite() && value > 0.0 { Ok(value) } else { Err(self.wrong(name, "a number above 0")) }
    }

    /// `default` where the key is missing, `None` where it is 0.
    fn positive_or(&self, name: &str, default: f32) -> Result<Option<f32>, Error> {
        match self.gguf.get::<f32>(&key(name))? {
            None => Ok(Some(default)),
            Some(0.0) => Ok(None),
            Some(_) => self.positive(name).map(Some),
        }
    }

    /// Which layers see a window only.
    fn pattern(&self, layers: usize) -> Result<Vec<bool>, Error> {
        let name = "attention.sliding_window_pattern";
        let pattern: Vec<bool> = self.gguf.require(&key(name))?;
        if pattern.len() != layers {
            return Err(self.wrong(name, &format!("{layers} bools, one for each layer")));
        }
        Ok(pattern)
    }

    /// The experts, which every layer of such a model has; `None` in dense models.
    fn experts(&self) -> Result<Option<Experts>, Error> {
        if matches!(self.gguf.get::<u32>(&key("expert_count"))?, None | Some(0)) {
            return Ok(None);
        }
        let count = self.size("expert_count", Experts::MOST as u32)?;
        if !count.is_multiple_of(4) {
            return Err(self.wrong("expert_count", "a multiple of 4"));
        }
        let most_used = count.min(Experts::MOST_USED) as u32;
        let used = self.size("expert_used_count", most_used)?;
        Ok(Some(Experts { count, used, width: self.size("expert_feed_forward_length", WIDEST)? }))
    }

    fn attention(&self, sliding: bool) -> Result<Attention, Error> {
        let kind = if sliding { "_swa" } else { "" };
        let head_size = self.size(&format!("attention.key_length{kind}"), WIDEST_HEAD)?;
        if !head_size.is_multiple_of(2) {
            return Err(self.wrong(&format!("attention.key_length{kind}"), "an even head size"));
        }
        for same in ["attention.value_length", "rope.dimension_count"] {
            let same = format!("{same}{kind}");
            if self.gguf.get::<u32>(&key(&same))?.is_some_and(|size| size as usize != head_size) {
                return Err(
                    self.wrong(&same, &format!("{head_size}, the same as attention.key_length{kind}"))
                );
            }
        }
        Ok(Attention {
            window: if sliding { Some(self.size("attention.sliding_window", u32::MAX)?) } else { None },
            head_size,
            rope_base: self.positive(&format!("rope.freq_base{kind}"))?.into(),
        })
    }

    /// The last layer of the same kind before the shared ones begin.
    fn donor(&self, layer: usize, sliding: &[bool], first_shared: usize) -> Result<usize, Error> {
        (0..first_shared).rev().find(|&j| sliding[j] == sliding[layer]).ok_or_else(|| {
            let kind = if sliding[layer] { "sliding" } else { "full" };
            let expected =
                format!("a {kind}-attention layer before the first shared one, for layer {layer} to use");
            self.wrong("attention.shared_kv_layers", &expected)
        })
    }
}
