//! Reads what tests/golden/golden.py wrote.
#![allow(dead_code)] // each test uses a part

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rullama_train::batch::{IGNORE, Sample};
use rullama_train::lora::{Adapter, Module, Pair, Slot, slots};
use rullama_train::weights::{Base, Gguf};
use safetensors::{Dtype, SafeTensors};

/// One folder: a model, an adapter, and PyTorch's figures in f64.
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

        let all = slots(base.config(), &Module::ALL);
        let pair = |slot: &Slot| {
            let matrix = |half: &str| {
                let found = tensors.get(&format!("lora.{}.lora_{half}.weight", slot.peft_key()))?;
                Some(found.iter().map(|&v| v as f32).collect())
            };
            Some((*slot, Pair { a: matrix("A")?, b: matrix("B")? }))
        };
        let adapter = Adapter {
            rank: metadata["rank"].parse().expect("a rank"),
            alpha: metadata["alpha"].parse().expect("an alpha"),
            rslora: false,
            pairs: all.iter().filter_map(pair).collect(),
        };
        let sample = |suffix: &str| {
            let ids: Vec<u32> = tensors[&format!("tokens{suffix}")].iter().map(|&t| t as u32).collect();
            let mask = &tensors[&format!("mask{suffix}")];
            let labels = ids.iter().zip(mask).map(|(&id, &m)| if m == 1.0 { id as i32 } else { IGNORE });
            Sample { labels: labels.collect(), ids, origin: format!("golden{suffix}") }
        };
        let (first, second) = (sample(""), sample(".2"));
        Golden { folder: folder.into(), base, adapter, first, second, tensors }
    }

    pub fn tensor(&self, name: &str) -> &[f64] {
        self.tensors.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.folder.display()))
    }

    /// Tensors whose name starts so.
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

/// PEFT's name and the values of every matrix.
pub fn by_name(pairs: &BTreeMap<Slot, Pair>) -> Vec<(String, Vec<f64>)> {
    let wide = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect();
    let names = |(slot, pair): (&Slot, &Pair)| {
        let key = slot.peft_key();
        [(format!("{key}.lora_A.weight"), wide(&pair.a)), (format!("{key}.lora_B.weight"), wide(&pair.b))]
    };
    pairs.iter().flat_map(names).collect()
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
