//! Reads the files that tests/golden/golden.py wrote.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rullama_train::adapter;
use rullama_train::adapter::formats::peft::{self, Naming};
use rullama_train::adapter::lora::{Adapter, Pair, Slot};
use rullama_train::base::config::Config;
use rullama_train::base::formats::{GgmlType, dequantize, random_blocks_like};
use rullama_train::base::gguf::writer::{self, Entry};
use rullama_train::base::quantize::{ENCODED, quantize};
use rullama_train::base::{Base, Gguf};
use rullama_train::data::batch::{IGNORE, Sample};
use safetensors::{Dtype, SafeTensors};

/// The folders in tests/golden.
pub const FOLDERS: [&str; 14] = [
    "dense",
    "big",
    "ollama",
    "moe",
    "moe128",
    "qwen35",
    "qwen35moe",
    "qwen3",
    "qwen3moe",
    "qwen2",
    "llama",
    "gemma3",
    "gpt-oss",
    "formats",
];

/// The folders of families that differ from those in [`FOLDERS`] by numbers, or by a small part.
pub const KIN: [&str; 21] = [
    "qwen3vl",
    "qwen2vl",
    "qwen2moe",
    "seed_oss",
    "granite",
    "granite4",
    "granitemoe",
    "smollm3",
    "mistral3",
    "gemma2",
    "exaone4",
    "olmo2",
    "olmo3",
    "ernie4_5",
    "glm4",
    "phi3",
    "hunyuan-dense",
    "lfm2",
    "lfm2moe",
    "deepseek2",
    "glm4moelite",
];

/// One folder: a model, an adapter, and PyTorch's results in f64.
pub struct Golden {
    pub folder: PathBuf,
    pub base: Base,
    pub adapter: Adapter,
    pub first: Sample,
    pub second: Sample,
    tensors: BTreeMap<String, Vec<f64>>,
}

impl Golden {
    pub fn read(folder: &Path) -> Golden {
        let bytes = std::fs::read(folder.join("golden.safetensors")).expect("a golden file");
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a sound golden file");
        let metadata = header.metadata().clone().expect("rank and alpha");
        let file = SafeTensors::deserialize(&bytes).expect("a sound golden file");
        let tensors: BTreeMap<String, Vec<f64>> = file
            .tensors()
            .into_iter()
            .map(|(name, view)| (name, values(view.dtype(), view.data())))
            .collect();
        let gguf =
            ["model.gguf", "model-Q4_K_M.gguf"].map(|f| folder.join(f)).into_iter().find(|f| f.exists());
        let gguf = Gguf::open(&gguf.expect("a model")).expect("a sound model");
        let base = Base::from_gguf(gguf, "golden").expect("a supported model");

        let adapter =
            adapter::read_any(&folder.join("adapter"), base.config(), None).expect("PEFT's adapter");
        let (rank, alpha) = (adapter.rank.to_string(), adapter.alpha.to_string());
        assert_eq!((&metadata["rank"], &metadata["alpha"]), (&rank, &alpha));
        for (name, values) in by_name(&adapter.pairs, base.config()) {
            let stored = tensors.get(&format!("lora.{name}"));
            assert!(stored.is_none_or(|stored| *stored == values), "{name} is read as PEFT has it");
        }
        let sample = |suffix: &str| {
            let ids: Vec<u32> = tensors[&format!("tokens{suffix}")].iter().map(|&t| t as u32).collect();
            let mask = &tensors[&format!("mask{suffix}")];
            let labels = ids.iter().zip(mask).map(|(&id, &m)| if m == 1.0 { id as i32 } else { IGNORE });
            Sample { labels: labels.collect(), ids, origin: format!("golden{suffix}"), ..Sample::default() }
        };
        let (first, second) = (sample(""), sample(".2"));
        Golden { folder: folder.into(), base, adapter, first, second, tensors }
    }

    /// This model with gate and up of the experts as two tensors.
    pub fn with_experts_split(self) -> Golden {
        let bytes = split_experts(self.base.gguf());
        let base =
            Base::from_gguf(Gguf::from_bytes(bytes, "split").expect("sound"), "split").expect("a model");
        assert!(base.config().layers.iter().all(|l| l.experts_split));
        Golden { base, ..self }
    }

    /// This model with queries, keys and values as one tensor.
    pub fn with_fused_qkv(self) -> Golden {
        let gguf = Gguf::from_bytes(fuse_qkv(self.base.gguf()), "fused").expect("sound");
        assert!(
            gguf.tensor("blk.0.attn_qkv.weight").is_some() && gguf.tensor("blk.0.attn_q.weight").is_none()
        );
        Golden { base: Base::from_gguf(gguf, "fused").expect("a model"), ..self }
    }

    /// This model with queries, keys, values, gate and up as tensors of their own.
    pub fn with_fused_apart(self) -> Golden {
        let bytes = split_fused(self.base.gguf(), self.base.config());
        let base =
            Base::from_gguf(Gguf::from_bytes(bytes, "apart").expect("sound"), "apart").expect("a model");
        assert!(base.config().layers.iter().all(|l| l.fused_in_file.is_empty() && !l.fused.is_empty()));
        Golden { base, ..self }
    }

    /// This model with keys and values of latent vectors as one tensor.
    pub fn with_joined_keys_values(self) -> Golden {
        let gguf = Gguf::from_bytes(join_keys_values(&self.base), "joined").expect("sound");
        let base = Base::from_gguf(gguf, "joined").expect("a model");
        let apart = base.config().layers.iter().any(|l| l.latent.is_none_or(|latent| latent.apart));
        assert!(!apart, "one tensor of both");
        Golden { base, ..self }
    }

    pub fn tensor(&self, name: &str) -> &[f64] {
        self.tensors.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.folder.display()))
    }

    /// Tensors whose name starts with `prefix`.
    pub fn count(&self, prefix: &str) -> usize {
        self.tensors.keys().filter(|k| k.starts_with(prefix)).count()
    }

    /// This adapter with every `B` zero.
    pub fn without_effect(&self) -> Adapter {
        let mut adapter = self.adapter.clone();
        adapter.pairs.values_mut().for_each(|p| p.b.fill(0.0));
        adapter
    }
}

/// The model with its quantized matrices in each of `types` in turn, as far as rows are whole blocks, and with the same values in F32.
pub fn in_formats(gguf: &Gguf, types: &[GgmlType]) -> [Base; 2] {
    let (mut entries, mut data) = ([vec![], vec![]], [vec![], vec![]]);
    for (i, tensor) in gguf.tensors().iter().enumerate() {
        let mut types = (0..types.len()).map(|j| types[(i + j) % types.len()]);
        let ty = types.find(|ty| tensor.shape[0].is_multiple_of(ty.block_len()));
        let unchanged = (tensor.ty, gguf.data(tensor).to_vec());
        let stored = match ty.filter(|_| !tensor.ty.is_row_by_row()) {
            None => [unchanged.clone(), unchanged],
            Some(ty) => {
                let old = dequantize(tensor.ty, &unchanged.1);
                let bytes = match ENCODED.contains(&ty) {
                    true => quantize(ty, &old).expect("ordinary values"),
                    // Nothing here writes it: other weights of this size.
                    false => {
                        let std = (old.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / old.len() as f64)
                            .sqrt();
                        random_blocks_like(ty, old.len() / ty.block_len(), i as u64, std)
                    }
                };
                let values = dequantize(ty, &bytes).iter().flat_map(|x| x.to_le_bytes()).collect();
                [(ty, bytes), (GgmlType::F32, values)]
            }
        };
        for (which, (ty, bytes)) in stored.into_iter().enumerate() {
            entries[which].push(Entry { name: tensor.name.clone(), shape: tensor.shape.clone(), ty });
            data[which].push(bytes);
        }
    }
    [0, 1].map(|which| {
        let mut out = Vec::new();
        writer::write(&mut out, gguf.metadata(), &entries[which], |i, out| out.write_all(&data[which][i]))
            .expect("memory");
        let gguf = Gguf::from_bytes(out, "other formats").expect("sound");
        Base::from_gguf(gguf, "other formats").expect("a model")
    })
}

/// The file of a mixture with `ffn_gate_exps` and `ffn_up_exps` in the place of `ffn_gate_up_exps`.
pub fn split_experts(gguf: &Gguf) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for tensor in gguf.tensors() {
        let bytes = gguf.data(tensor);
        if !tensor.name.contains("ffn_gate_up_exps") {
            let (name, shape, ty) = (tensor.name.clone(), tensor.shape.clone(), tensor.ty);
            entries.push(Entry { name, shape, ty });
            data.push(bytes.to_vec());
            continue;
        }
        let &[cols, rows, experts] = &tensor.shape[..] else { panic!("three sizes") };
        for (half, name) in ["gate", "up"].into_iter().enumerate() {
            let name = tensor.name.replace("gate_up", name);
            entries.push(Entry { name, shape: vec![cols, rows / 2, experts], ty: tensor.ty });
            let halves = bytes.chunks_exact(bytes.len() / experts / 2).skip(half).step_by(2);
            data.push(halves.flatten().copied().collect());
        }
    }
    let mut out = Vec::new();
    writer::write(&mut out, gguf.metadata(), &entries, |i, out| out.write_all(&data[i])).expect("memory");
    out
}

/// The file of a model with `attn_q`, `attn_k` and `attn_v` in the place of `attn_qkv`, and `ffn_gate` and `ffn_up` in that of one `ffn_up`.
pub fn split_fused(gguf: &Gguf, config: &Config) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for tensor in gguf.tensors() {
        let layer = |name: &str| name.split('.').nth(1).and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
        let l = &config.layers[layer(&tensor.name)];
        let (queries, keys) = (l.heads * l.head_size, l.kv_heads * l.head_size);
        let parts = match tensor.name.rsplit('.').nth(1) {
            Some("attn_qkv") => vec![("attn_q", queries), ("attn_k", keys), ("attn_v", keys)],
            Some("ffn_up") => vec![("ffn_gate", l.ffn_width), ("ffn_up", l.ffn_width)],
            other => vec![(other.unwrap_or_default(), tensor.shape.get(1).copied().unwrap_or(1))],
        };
        let (mut bytes, rows) = (gguf.data(tensor), parts.iter().map(|(_, rows)| rows).sum::<usize>());
        let row = bytes.len() / rows;
        let whole = tensor.name.rsplit('.').nth(1).unwrap_or_default();
        for (part, rows) in &parts {
            let (own, rest) = bytes.split_at(row * rows);
            bytes = rest;
            let shape = if parts.len() > 1 { vec![tensor.shape[0], *rows] } else { tensor.shape.clone() };
            let name = if parts.len() > 1 { tensor.name.replace(whole, part) } else { tensor.name.clone() };
            entries.push(Entry { name, shape, ty: tensor.ty });
            data.push(own.to_vec());
        }
    }
    let mut out = Vec::new();
    writer::write(&mut out, gguf.metadata(), &entries, |i, out| out.write_all(&data[i])).expect("memory");
    out
}

/// The file of a model as llama.cpp's converter writes it with `--fuse-qkv`: queries, keys and values, and their biases, in one tensor each.
pub fn fuse_qkv(gguf: &Gguf) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for tensor in gguf.tensors() {
        let values = |name: &str| {
            let tensor = gguf.tensor(name).expect("a twin");
            (tensor.shape.last().copied().unwrap_or(1), dequantize(tensor.ty, gguf.data(tensor)))
        };
        match tensor.name.rsplit('.').nth(1) {
            Some("attn_q") => {
                let parts =
                    ["attn_q", "attn_k", "attn_v"].map(|part| values(&tensor.name.replace("attn_q", part)));
                let mut shape = tensor.shape.clone();
                *shape.last_mut().expect("sizes") = parts.iter().map(|(rows, _)| rows).sum();
                let name = tensor.name.replace("attn_q", "attn_qkv");
                entries.push(Entry { name, shape, ty: GgmlType::F32 });
                data.push(
                    parts.iter().flat_map(|(_, values)| values).flat_map(|x| x.to_le_bytes()).collect(),
                );
            }
            Some("attn_k" | "attn_v") => {}
            _ => {
                let (name, shape, ty) = (tensor.name.clone(), tensor.shape.clone(), tensor.ty);
                entries.push(Entry { name, shape, ty });
                data.push(gguf.data(tensor).to_vec());
            }
        }
    }
    let mut out = Vec::new();
    writer::write(&mut out, gguf.metadata(), &entries, |i, out| out.write_all(&data[i])).expect("memory");
    out
}

/// The file of a model with latent vectors as older converters wrote it: `attn_kv_b` in the place of `attn_k_b` and `attn_v_b`.
pub fn join_keys_values(base: &Base) -> Vec<u8> {
    let (gguf, config) = (base.gguf(), base.config());
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for tensor in gguf.tensors() {
        let values = |name: &str| {
            let tensor = gguf.tensor(name).expect("a twin");
            dequantize(tensor.ty, gguf.data(tensor))
        };
        if tensor.name.ends_with(".attn_v_b.weight") {
            continue;
        }
        let Some(layer) = tensor.name.strip_suffix(".attn_k_b.weight") else {
            let (name, shape, ty) = (tensor.name.clone(), tensor.shape.clone(), tensor.ty);
            entries.push(Entry { name, shape, ty });
            data.push(gguf.data(tensor).to_vec());
            continue;
        };
        let l = &config.layers[0];
        let latent = l.latent.expect("latent vectors");
        let (keys, of_values) = (values(&tensor.name), values(&format!("{layer}.attn_v_b.weight")));
        let heads = keys.chunks(latent.key_size * latent.rank);
        let heads = heads.zip(of_values.chunks(latent.value_size * latent.rank));
        let of_head = |(keys, values): (&[f32], &[f32])| -> Vec<f32> {
            let column = |c: usize| keys.iter().skip(c).step_by(latent.key_size).copied();
            (0..latent.key_size).flat_map(column).chain(values.iter().copied()).collect()
        };
        let rows = l.heads * (latent.key_size + latent.value_size);
        let (name, shape) = (format!("{layer}.attn_kv_b.weight"), vec![latent.rank, rows]);
        entries.push(Entry { name, shape, ty: GgmlType::F32 });
        data.push(heads.flat_map(of_head).flat_map(|x| x.to_le_bytes()).collect());
    }
    let mut metadata: Vec<_> = gguf.metadata().to_vec();
    for name in ["key_length", "value_length"] {
        let of = |last: &str| format!("{}.attention.{last}", config.architecture);
        let own = of(&format!("{name}_mla"));
        let value = metadata.iter().find(|(key, _)| *key == own).map(|(_, value)| value.clone());
        metadata.retain(|(key, _)| *key != own);
        let usual = metadata.iter_mut().find(|(key, _)| *key == of(name)).expect("the usual key");
        usual.1 = value.expect("its own key");
    }
    let mut out = Vec::new();
    writer::write(&mut out, &metadata, &entries, |i, out| out.write_all(&data[i])).expect("memory");
    out
}

/// PEFT's name and layout of every matrix, with its values.
pub fn by_name(pairs: &BTreeMap<Slot, Pair>, config: &Config) -> Vec<(String, Vec<f64>)> {
    let (slot, pair) = pairs.first_key_value().expect("some matrix");
    let rank = pair.a.len() / slot.in_features / slot.experts;
    let bytes =
        peft::serialize_pairs(pairs, rank, Naming::causal_lm(config), Default::default()).expect("finite");
    let file = SafeTensors::deserialize(&bytes).expect("just written");
    file.tensors().into_iter().map(|(name, view)| (name, values(view.dtype(), view.data()))).collect()
}

fn values(dtype: Dtype, data: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::F64 => data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("8"))).collect(),
        Dtype::I64 => {
            data.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("8")) as f64).collect()
        }
        Dtype::F32 => {
            data.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().expect("4")))).collect()
        }
        other => panic!("golden files hold no {other:?}"),
    }
}
