//! Reads the files that tests/golden/golden.py wrote.
#![allow(dead_code)] // each test uses a part

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rullama_train::adapter;
use rullama_train::adapter::formats::peft::{self, Naming};
use rullama_train::adapter::lora::{Adapter, Pair, Slot};
use rullama_train::base::config::Config;
use rullama_train::base::gguf::writer::{self, Entry};
use rullama_train::base::{Base, Gguf};
use rullama_train::data::batch::{IGNORE, Sample};
use safetensors::{Dtype, SafeTensors};

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
            assert!(tensors[&format!("lora.{name}")] == values, "{name} is read as PEFT has it");
        }
        let sample = |suffix: &str| {
            let ids: Vec<u32> = tensors[&format!("tokens{suffix}")].iter().map(|&t| t as u32).collect();
            let mask = &tensors[&format!("mask{suffix}")];
            let labels = ids.iter().zip(mask).map(|(&id, &m)| if m == 1.0 { id as i32 } else { IGNORE });
            Sample { labels: labels.collect(), ids, origin: format!("golden{suffix}") }
        };
        let (first, second) = (sample(""), sample(".2"));
        Golden { folder: folder.into(), base, adapter, first, second, tensors }
    }

    /// The same with gate and up of the experts as two tensors.
    pub fn with_experts_split(self) -> Golden {
        let bytes = split_experts(self.base.gguf());
        let base =
            Base::from_gguf(Gguf::from_bytes(bytes, "split").expect("sound"), "split").expect("a model");
        assert!(base.config().layers.iter().all(|l| l.experts_split));
        Golden { base, ..self }
    }

    pub fn tensor(&self, name: &str) -> &[f64] {
        self.tensors.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.folder.display()))
    }

    /// Tensors whose name starts with `prefix`.
    pub fn count(&self, prefix: &str) -> usize {
        self.tensors.keys().filter(|k| k.starts_with(prefix)).count()
    }

    /// The same adapter with every `B` zero.
    pub fn without_effect(&self) -> Adapter {
        let mut adapter = self.adapter.clone();
        adapter.pairs.values_mut().for_each(|p| p.b.fill(0.0));
        adapter
    }
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
