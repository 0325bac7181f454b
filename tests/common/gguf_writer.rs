//! Writes GGUF files for tests, valid or with false contents. Use: `#[path = "common/gguf_writer.rs"] mod gguf_writer;`.
#![allow(dead_code, reason = "each test uses a part")]

use rullama_train::base::formats::random_blocks;
use rullama_train::base::gguf::value::{Array, Value};
use rullama_train::base::{GgmlType, Gguf, TensorInfo};

/// One tensor to write.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    /// The shape in `ne` order: columns first.
    pub shape: Vec<u64>,
    /// Type id, supported or not.
    pub ty: u32,
    /// Offset to write instead of the correct one.
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

/// A file to write: change the fields, then call [`GgufWriter::bytes`].
#[derive(Clone)]
pub struct GgufWriter {
    pub version: u32,
    /// Counts to write instead of the correct ones.
    pub tensor_count: Option<u64>,
    pub key_count: Option<u64>,
    pub alignment: usize,
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        let (metadata, tensors) = (Vec::new(), Vec::new());
        GgufWriter { version: 3, tensor_count: None, key_count: None, alignment: 32, metadata, tensors }
    }
}

impl GgufWriter {
    /// A file to change.
    pub fn of(gguf: &Gguf) -> GgufWriter {
        let tensor = |t: &TensorInfo| Tensor {
            name: t.name.clone(),
            shape: t.shape.iter().map(|&size| size as u64).collect(),
            ty: t.ty as u32,
            offset: None,
            data: gguf.data(t).to_vec(),
        };
        let (metadata, tensors) = (gguf.metadata().to_vec(), gguf.tensors().iter().map(tensor).collect());
        GgufWriter { metadata, tensors, ..GgufWriter::default() }
    }

    /// Adds a key, or replaces its value.
    pub fn set(&mut self, key: &str, value: Value) {
        self.remove_key(key);
        self.metadata.push((key.into(), value));
    }

    pub fn remove_key(&mut self, key: &str) {
        self.metadata.retain(|(k, _)| k != key);
    }

    /// Adds a tensor of random values of a supported type, or of zeros.
    pub fn random(&mut self, name: &str, shape: &[usize], ty: GgmlType) {
        let blocks = shape.iter().product::<usize>() / ty.block_len();
        let seed = self.tensors.len() as u64;
        let data =
            if ty.supported() { random_blocks(ty, blocks, seed) } else { vec![0; blocks * ty.block_bytes()] };
        let shape = shape.iter().map(|&size| size as u64).collect();
        self.tensors.push(Tensor { name: name.into(), shape, ty: ty as u32, offset: None, data });
    }

    pub fn remove_tensor(&mut self, name: &str) {
        self.tensors.retain(|t| t.name != name);
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.name == name).expect("the test names a tensor that it added")
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            string(&mut out, key);
            self::value(&mut out, value);
        }
        let mut data = Vec::new();
        for t in &self.tensors {
            string(&mut out, &t.name);
            out.extend((t.shape.len() as u32).to_le_bytes());
            t.shape.iter().for_each(|size| out.extend(size.to_le_bytes()));
            out.extend(t.ty.to_le_bytes());
            data.resize(usize::next_multiple_of(data.len(), self.alignment), 0);
            out.extend(t.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&t.data);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(data);
        out
    }

    /// A small dense Gemma 4 with every part: 4 layers (sliding, full, sliding, full), the last two sharing keys and
    /// values, per-layer embeddings. D 32, P 4, H 2, G 1, K 4 and 8, F 8 and (last two) 32, V 8.
    pub fn gemma4() -> Self {
        let mut w = GgufWriter::default();
        w.set("general.architecture", Value::String("gemma4".into()));
        let u32s = [
            ("block_count", 4),
            ("context_length", 64),
            ("embedding_length", 32),
            ("embedding_length_per_layer_input", 4),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("attention.key_length", 8),
            ("attention.value_length", 8),
            ("attention.key_length_swa", 4),
            ("attention.value_length_swa", 4),
            ("attention.sliding_window", 16),
            ("attention.shared_kv_layers", 2),
        ];
        for (key, value) in u32s {
            w.set(&format!("gemma4.{key}"), Value::U32(value));
        }
        let f32s = [
            ("rope.freq_base", 1e6),
            ("rope.freq_base_swa", 1e4),
            ("attention.layer_norm_rms_epsilon", 1e-6),
            ("final_logit_softcapping", 20.0),
        ];
        for (key, value) in f32s {
            w.set(&format!("gemma4.{key}"), Value::F32(value));
        }
        w.set("gemma4.feed_forward_length", Value::Array(Array::I32(vec![8, 8, 32, 32])));
        let pattern = Value::Array(Array::Bool(vec![true, false, true, false]));
        w.set("gemma4.attention.sliding_window_pattern", pattern);

        use GgmlType::{BF16, F16, F32, Q4_0, Q8_0};
        w.random("token_embd.weight", &[32, 8], Q8_0);
        w.random("output_norm.weight", &[32], F32);
        w.random("rope_freqs.weight", &[4], F32);
        w.tensor("rope_freqs.weight").data =
            [1f32, 1.0, 1e30, 1e30].iter().flat_map(|f| f.to_le_bytes()).collect();
        w.random("per_layer_token_embd.weight", &[16, 8], F16);
        w.random("per_layer_model_proj.weight", &[32, 16], BF16);
        w.random("per_layer_proj_norm.weight", &[4], F32);
        for i in 0..4 {
            let (k, f) = (if i % 2 == 0 { 4 } else { 8 }, if i < 2 { 8 } else { 32 });
            let mut add =
                |last: &str, shape: &[usize], ty| w.random(&format!("blk.{i}.{last}.weight"), shape, ty);
            for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"] {
                add(norm, &[32], F32);
            }
            add("attn_q_norm", &[k], F32);
            add("attn_q", &[32, 2 * k], Q8_0);
            add("attn_output", &[2 * k, 32], F32);
            if i < 2 {
                add("attn_k_norm", &[k], F32);
                add("attn_k", &[32, k], Q4_0);
                add("attn_v", &[32, k], Q4_0);
            }
            add("ffn_gate", &[32, f], Q4_0);
            add("ffn_up", &[32, f], Q4_0);
            add("ffn_down", &[f, 32], F16);
            add("inp_gate", &[32, 4], Q8_0);
            add("proj", &[4, 32], F32);
            add("layer_output_scale", &[1], F32);
        }
        w
    }

    /// The tiny model with four experts of width 32 beside every feed-forward block, two of which are active per token.
    pub fn mixture() -> Self {
        let mut w = GgufWriter::gemma4();
        for (key, value) in
            [("expert_count", 4), ("expert_used_count", 2), ("expert_feed_forward_length", 32)]
        {
            w.set(&format!("gemma4.{key}"), Value::U32(value));
        }
        use GgmlType::{F32, Q4_0, Q8_0};
        for i in 0..4 {
            let mut add = |last: &str, shape: &[usize], ty| w.random(&format!("blk.{i}.{last}"), shape, ty);
            for norm in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
                add(&format!("{norm}.weight"), &[32], F32);
            }
            add("ffn_gate_inp.weight", &[32, 4], F32);
            add("ffn_gate_inp.scale", &[32], F32);
            add("ffn_gate_up_exps.weight", &[32, 64, 4], Q4_0);
            add("ffn_down_exps.weight", &[32, 32, 4], Q8_0);
            add("ffn_down_exps.scale", &[4], F32);
        }
        w
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn value(out: &mut Vec<u8>, value: &Value) {
    let id: u32 = match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    };
    out.extend(id.to_le_bytes());
    match value {
        Value::U8(x) => out.push(*x),
        Value::I8(x) => out.extend(x.to_le_bytes()),
        Value::U16(x) => out.extend(x.to_le_bytes()),
        Value::I16(x) => out.extend(x.to_le_bytes()),
        Value::U32(x) => out.extend(x.to_le_bytes()),
        Value::I32(x) => out.extend(x.to_le_bytes()),
        Value::F32(x) => out.extend(x.to_le_bytes()),
        Value::U64(x) => out.extend(x.to_le_bytes()),
        Value::I64(x) => out.extend(x.to_le_bytes()),
        Value::F64(x) => out.extend(x.to_le_bytes()),
        Value::Bool(x) => out.push(*x as u8),
        Value::String(s) => string(out, s),
        Value::Array(a) => array(out, a),
    }
}

/// The element type, the count, the elements.
fn array(out: &mut Vec<u8>, array: &Array) {
    let id: u32 = match array {
        Array::U8(_) => 0,
        Array::I8(_) => 1,
        Array::U16(_) => 2,
        Array::I16(_) => 3,
        Array::U32(_) => 4,
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::Bool(_) => 7,
        Array::String(_) => 8,
        Array::U64(_) => 10,
        Array::I64(_) => 11,
        Array::F64(_) => 12,
    };
    out.extend(id.to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(a) => out.extend(a),
        Array::I8(a) => a.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::U16(a) => a.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::I16(a) => a.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::U32(a) => a.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::I32(a) => a.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::F32(a) => a.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::U64(a) => a.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::I64(a) => a.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::F64(a) => a.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::Bool(a) => a.iter().for_each(|&x| out.push(x.into())),
        Array::String(a) => a.iter().for_each(|x| string(out, x)),
    }
}
