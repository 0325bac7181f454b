//! Golden models as other programs load them.

use rullama_train::base::Gguf;
use rullama_train::base::gguf::value::{Array, Value};
use rullama_train::base::gguf::writer::{self, Entry};

/// Families whose heads llama.cpp, or mlx-lm (Granite), takes to be as wide as the model together, whatever `attention.key_length` says.
/// The golden models of these families have heads of twice that width.
const HEADS_OF_THE_WIDTH: [&str; 7] =
    ["qwen2moe", "exaone4", "olmo2", "olmo3", "granite", "granite4", "granitemoe"];

/// Shortest context of llama.cpp, which takes the long rotary factors where it is longer than the base's original context.
const CONTEXT: u32 = 256;

/// Layers of DeepSeek V2 Lite, by which llama.cpp knows that queries have no latent vector.
const LITE: u32 = 27;

/// The file of the golden model `name`, in which other programs find what they expect of a published model: for some families half of the
/// heads, for EXAONE 4 no window (it has windows in models of 64 layers only), for Phi an original context of [`CONTEXT`] tokens, for
/// DeepSeek V2 Lite copies of its last layer, and a name that asks for no special tokens.
pub fn for_others(gguf: &Gguf, name: &str) -> Vec<u8> {
    let halved = HEADS_OF_THE_WIDTH.contains(&name);
    let number = |key: &str| match gguf.metadata().iter().find(|(k, _)| k.ends_with(key)) {
        Some((_, Value::U32(n))) => *n as usize,
        other => panic!("{key}: {other:?}"),
    };
    let mut metadata = gguf.metadata().to_vec();
    metadata.retain(|(key, _)| !key.starts_with("exaone4.attention.sliding_window"));
    for (key, value) in &mut metadata {
        match value {
            // llama.cpp looks for tokens of Phi-3 by this name.
            Value::String(text) if key == "general.name" => *text = "Tiny".into(),
            Value::U32(n) if key == "phi3.rope.scaling.original_context_length" => *n = CONTEXT,
            // As transformers computes it from both contexts.
            Value::F32(factor) if key == "phi3.rope.scaling.attn_factor" => {
                let longer = number(".context_length") as f32 / CONTEXT as f32;
                *factor = (1.0 + longer.ln() / (CONTEXT as f32).ln()).sqrt();
            }
            Value::U32(n) if name == "deepseek2" && key == "deepseek2.block_count" => *n = LITE,
            Value::U32(n) if halved && key.contains(".attention.head_count") => *n /= 2,
            Value::Array(Array::U32(each)) if halved && key.contains(".attention.head_count") => {
                each.iter_mut().for_each(|n| *n /= 2);
            }
            Value::Array(Array::I32(each)) if halved && key.contains(".attention.head_count") => {
                each.iter_mut().for_each(|n| *n /= 2);
            }
            _ => {}
        }
    }
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for tensor in gguf.tensors() {
        let (mut shape, bytes) = (tensor.shape.clone(), gguf.data(tensor));
        let kept = match tensor.name.rsplit('.').nth(1) {
            _ if !halved => bytes.to_vec(),
            // Rows of heads lie one after the other.
            Some("attn_q" | "attn_k" | "attn_v" | "attn_q_norm" | "attn_k_norm")
                if *shape.last().expect("sizes") > number(".attention.key_length") =>
            {
                *shape.last_mut().expect("sizes") /= 2;
                bytes[..bytes.len() / 2].to_vec()
            }
            Some("attn_output") => {
                shape[0] /= 2;
                let row = tensor.shape[0] / tensor.ty.block_len() * tensor.ty.block_bytes();
                bytes.chunks_exact(row).flat_map(|row| &row[..row.len() / 2]).copied().collect()
            }
            _ => bytes.to_vec(),
        };
        let last = format!("blk.{}.", number(".block_count") - 1);
        let copies = match tensor.name.strip_prefix(&last) {
            Some(rest) if name == "deepseek2" => {
                (number(".block_count")..LITE as usize).map(|layer| format!("blk.{layer}.{rest}")).collect()
            }
            _ => Vec::new(),
        };
        for name in [tensor.name.clone()].into_iter().chain(copies) {
            entries.push(Entry { name, shape: shape.clone(), ty: tensor.ty });
            data.push(kept.clone());
        }
    }
    let mut out = Vec::new();
    writer::write(&mut out, &metadata, &entries, |i, out| out.write_all(&data[i])).expect("memory");
    out
}

/// Whether the golden adapter of the model `name` fits the file of [`for_others`], and all programs apply it.
pub fn is_whole(name: &str) -> bool {
    !HEADS_OF_THE_WIDTH.contains(&name) && !["deepseek2", "glm4moelite"].contains(&name)
}
