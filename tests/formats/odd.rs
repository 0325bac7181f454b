//! Adapters that PEFT, llama.cpp or the safetensors crate load, though our own writers make no such files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rullama_train::adapter::lora::{Adapter, scale};
use rullama_train::adapter::{AdapterPath, Format, Loaded, OtherBase, detect, load, read_any};
use rullama_train::base::Gguf;
use rullama_train::base::gguf::value::Value;
use serde_json::json;

use super::safe_file::SafeFile;
use super::{dense_base, written};
use crate::gguf_writer::GgufWriter;

fn loaded(path: &Path) -> Loaded {
    let base = dense_base();
    load(&[AdapterPath::whole(path)], &base, None, OtherBase::Refuse)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn read(path: &Path) -> Adapter {
    read_any(path, dense_base().config(), None).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_header_may_begin_with_spaces() {
    let (dir, path, _) = written(Format::RullamaV0);
    let bytes = fs::read(&path).expect("there");
    let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
    let length = u64::from_le_bytes(*length) + 8;
    // The name has no ending by which the format could be known.
    let odd = dir.path().join("odd");
    fs::write(&odd, [&length.to_le_bytes()[..], b" \n\t     ", rest].concat()).expect("written");
    assert_eq!(detect(&odd).expect("detected"), Format::RullamaV0);
    assert_eq!(read(&odd), read(&path));
}

#[test]
fn peft_folders_of_other_programs() {
    let (_dir, path, _) = written(Format::Peft);
    let expected = read(&path);
    let (tensors, config) = (path.join("adapter_model.safetensors"), path.join("adapter_config.json"));
    let sound = SafeFile::read(&tensors);

    // Classes with towers before transformers 4.52.
    let mut renamed = sound.clone();
    let old =
        |name: String| name.replace("base_model.model.model.", "base_model.model.language_model.model.");
    renamed.tensors = renamed.tensors.into_iter().map(|(name, tensor)| (old(name), tensor)).collect();
    fs::write(&tensors, renamed.bytes()).expect("written");
    assert_eq!(read(&path), expected);

    // Modules of the towers, which text never passes.
    let mut towers = sound.clone();
    let any = sound.tensors.values().next().expect("some tensor").clone();
    for name in ["model.vision_tower.layers.0.q_proj", "vision_model.encoder.layers.1.fc1"] {
        towers.tensors.insert(format!("base_model.model.{name}.lora_A.weight"), any.clone());
    }
    fs::write(&tensors, towers.bytes()).expect("written");
    let found = loaded(&path);
    assert_eq!(found.adapter, expected);
    let notice = "2 tensors are left out, of vision and audio towers";
    assert!(found.notices.iter().any(|found| found.contains(notice)), "{:?}", found.notices);
    fs::write(&tensors, sound.bytes()).expect("written");
    assert_eq!(loaded(&path).notices, [""; 0]);

    // PEFT turns this off for linear modules.
    let mut settings: serde_json::Value =
        serde_json::from_slice(&fs::read(&config).expect("there")).expect("JSON");
    settings["fan_in_fan_out"] = json!(true);
    fs::write(&config, settings.to_string()).expect("written");
    assert_eq!(read(&path), expected);
}

#[test]
fn gguf_loras_of_other_programs() {
    let (_dir, path, _) = written(Format::GgufLora);
    let expected = read(&path);
    let good = GgufWriter::of(&Gguf::open(&path).expect("sound"));
    let with = |change: &dyn Fn(&mut GgufWriter)| {
        let mut writer = good.clone();
        change(&mut writer);
        fs::write(&path, writer.bytes()).expect("written");
        loaded(&path)
    };
    // llama.cpp scales by 1 then.
    let none: &dyn Fn(&mut GgufWriter) = &|w| w.remove_key("adapter.lora.alpha");
    let zero: &dyn Fn(&mut GgufWriter) = &|w| w.set("adapter.lora.alpha", Value::F32(0.0));
    for change in [none, zero] {
        let found = with(change).adapter;
        assert_eq!((found.scale(), found.rank), (1.0, expected.rank));
        assert_eq!(found.pairs, expected.pairs);
        assert_ne!(scale(expected.rank, expected.alpha, false), 1.0);
    }
    // llama.cpp leaves norms out.
    let found = with(&|w| w.random("blk.0.attn_norm.weight", &[256], rullama_train::base::GgmlType::F32));
    assert_eq!(found.adapter, expected);
    assert_eq!(found.notices.len(), 1, "{:?}", found.notices);
    assert!(found.notices[0].ends_with("1 tensor is left out, of norms, which llama.cpp leaves out too"));
    // convert_lora_to_gguf.py --outtype q8_0.
    let name = "blk.0.attn_q.weight.lora_a";
    let found = with(&|w| {
        let tensor = w.tensor(name);
        let block = [&[0x00, 0x3C][..], &[3u8; 32]].concat(); // 1.0 as f16, and 32 times 3
        (tensor.ty, tensor.data) = (8, block.repeat(tensor.data.len() / 4 / 32));
    });
    let changed: BTreeMap<_, _> =
        found.adapter.pairs.iter().filter(|(slot, pair)| expected.pairs[slot] != **pair).collect();
    assert_eq!(changed.len(), 1);
    assert!(changed.values().all(|pair| pair.a.iter().all(|value| *value == 3.0)));
}
