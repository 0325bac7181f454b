//! Malformed adapters, each rejected with a clear error of one line. Those of PEFT are in tests/export.rs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rullama_train::adapter::lora::slots;
use rullama_train::adapter::{Format, read_any};
use rullama_train::base::Module;
use rullama_train::base::config::Config;
use rullama_train::base::gguf::value::{Array, Value};
use rullama_train::base::{Base, Gguf};
use safetensors::Dtype;
use serde_json::json;

use super::safe_file::{SafeFile, SafeTensor};
use super::{OPTIONS, adapter, dense, golden, written};
use crate::gguf_writer::GgufWriter;

/// Runs all malformed adapters and checks their number, so that none is lost unnoticed.
#[test]
fn every_malformed_adapter_gives_one_clear_error() {
    for kind in [
        damaged_bytes,
        duplicate_names,
        gguf_loras_that_do_not_fit,
        tensors_that_do_not_fit,
        wrong_configurations,
        no_adapters,
    ] {
        kind();
    }
    assert_eq!(REFUSED.get(), 83, "malformed adapters that were refused");
}

thread_local! {
    /// Number of adapters that [`refused`] has seen in this test.
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

/// Checks that the error has one line, names the file or folder, and contains `expected`.
fn refused(path: &Path, config: &Config, expected: &str) {
    REFUSED.set(REFUSED.get() + 1);
    let error = read_any(path, config, None).expect_err(&format!("expected {expected:?}")).to_string();
    assert!(error.contains(expected), "expected {expected:?} in: {error}");
    assert!(!error.contains('\n'), "more than one line: {error}");
    let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(error.contains(name), "{name} is not named: {error}");
}

/// A change of a valid file, and the expected error.
type Case<'a, T> = (&'a dyn Fn(&mut T), &'a str);

/// Changes the bytes of the valid file at `path`.
fn refuse_bytes(path: &Path, config: &Config, cases: &[Case<Vec<u8>>]) {
    let good = fs::read(path).expect("there");
    let adapter = match path.file_name().and_then(|n| n.to_str()) {
        Some("adapter_config.json" | "adapters.safetensors") => path.parent().expect("a folder"),
        _ => path,
    };
    for (change, expected) in cases {
        let mut bytes = good.clone();
        change(&mut bytes);
        fs::write(path, bytes).expect("written");
        refused(adapter, config, expected);
    }
    fs::write(path, good).expect("written");
    read_any(adapter, config, None).expect("the file that all this was made from is sound");
}

/// Replaces all occurrences of a name by one of equal length.
fn rename(from: &'static str, to: &'static str) -> impl Fn(&mut Vec<u8>) {
    assert_eq!(from.len(), to.len());
    move |bytes| {
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).expect("the name is there");
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
}

fn damaged_bytes() {
    let cut = |n: usize| move |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - n);
    let keep = |n: usize| move |bytes: &mut Vec<u8>| bytes.truncate(n);
    let put = |at: usize, value: u64| {
        move |bytes: &mut Vec<u8>| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes())
    };

    let (_dir, path, config) = written(Format::GgufLora);
    refuse_bytes(
        &path,
        &config,
        &[
            (&cut(64), "the file is cut short"),
            (&keep(100), "claims 6 metadata keys, but only 76 bytes follow"),
            (&keep(4), "the file is cut short: it ends at byte 4, inside the version"),
            (&keep(3), "is not a supported adapter, expected a PEFT or mlx-lm folder"),
            (&keep(0), "is not a supported adapter"),
            (&put(8, u64::MAX), "claims 18446744073709551615 tensors"),
            (&put(16, 1 << 40), "claims 1099511627776 metadata keys"),
            (
                &rename("adapter.type", "adapter.typo"),
                "metadata key `adapter.type` is missing, expected a string",
            ),
            (
                &rename("blk.1.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_a"),
                "tensor blk.0.attn_q.weight.lora_a appears twice, expected once",
            ),
        ],
    );

    let (_dir, path, config) = written(Format::RullamaV0);
    refuse_bytes(
        &path,
        &config,
        &[
            (&cut(4), "not a complete safetensors file: incomplete metadata"),
            (&keep(20), "not a complete safetensors file: invalid header length"),
            (&put(0, u64::MAX), "not a complete safetensors file: header too large"),
            (&put(0, 3), "not a complete safetensors file: invalid JSON in header"),
            (
                &|bytes| *bytes = b"version https://git-lfs.github.com/spec/v1\n".to_vec(),
                "is a Git LFS pointer, expected the tensors; run `git lfs pull`",
            ),
        ],
    );

    let (_dir, folder, config) = written(Format::Mlx);
    refuse_bytes(
        &folder.join("adapters.safetensors"),
        &config,
        &[
            (&cut(1), "not a complete safetensors file: incomplete metadata"),
            (&put(0, 1 << 27), "not a complete safetensors file: header too large"),
        ],
    );
    refuse_bytes(
        &folder.join("adapter_config.json"),
        &config,
        &[
            (&keep(30), "adapter_config.json: expected a JSON object: EOF"),
            (&keep(0), "expected a JSON object"),
        ],
    );
}

fn duplicate_names() {
    // Two entries with one name, which the crate's map would merge silently.
    let entry = r#""lora.blk.0.attn_q.A":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    let header = format!(
        r#"{{"__metadata__":{{"format":"rullama-lora-v0","rank":"1","alpha":"1"}},{entry},{entry}}}"#
    );
    let (dir, config) = (tempfile::tempdir().expect("a temporary folder"), dense());
    let path = dir.path().join("twice.safetensors");
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    fs::write(&path, bytes).expect("written");
    refused(&path, &config, "tensor lora.blk.0.attn_q.A appears twice, expected once");
}

fn gguf_loras_that_do_not_fit() {
    let (_dir, path, config) = written(Format::GgufLora);
    let good = GgufWriter::of(&Gguf::open(&path).expect("sound"));
    let text = |s: &str| Value::String(s.into());
    let resize = |w: &mut GgufWriter, name: &str, shape: [u64; 2]| {
        let tensor = w.tensor(name);
        tensor.shape = shape.to_vec();
        tensor.data.resize((shape[0] * shape[1] * 4) as usize, 1);
    };
    let name = |w: &mut GgufWriter, from: &str, to: &str| w.tensor(from).name = to.into();
    let q = "blk.0.attn_q.weight.lora_a";
    let cases: [Case<GgufWriter>; 18] = [
        (&|w| w.set("general.type", text("model")), "general.type is \"model\", expected \"adapter\""),
        (
            &|w| w.set("general.architecture", text("llama")),
            "general.architecture is \"llama\", expected \"gemma4\"",
        ),
        (&|w| w.set("adapter.type", text("control")), "adapter.type is \"control\", expected \"lora\""),
        (&|w| w.set("adapter.lora.alpha", Value::F32(f32::NAN)), "adapter.lora.alpha is NaN"),
        (
            &|w| w.set("adapter.lora.alpha", Value::U32(8)),
            "`adapter.lora.alpha` is the integer 8, expected a float",
        ),
        (
            &|w| w.set("adapter.alora.invocation_tokens", Value::Array(Array::U32(vec![1]))),
            "is an activated LoRA; use a plain LoRA adapter",
        ),
        (&|w| w.remove_tensor(q), "blk.0.attn_q.weight has a lora_b but no lora_a"),
        (
            &|w| w.remove_tensor("blk.2.ffn_up.weight.lora_b"),
            "blk.2.ffn_up.weight has a lora_a but no lora_b",
        ),
        (&|w| w.tensors.clear(), "contains no LoRA matrix of a text layer"),
        (&|w| w.tensors.retain(|t| t.name.contains("nothing")), "contains no LoRA matrix of a text layer"),
        (&|w| resize(w, q, [257, 3]), "blk.0.attn_q.weight.lora_a is [257, 3], expected [in, r] = [256, 3]"),
        (
            &|w| resize(w, q, [256, 4]),
            "blk.0.attn_q.weight.lora_a has rank 4 and blk.0.attn_q.weight.lora_b has rank 3; export",
        ),
        (
            &|w| w.tensors.iter_mut().for_each(|t| (t.shape, t.data) = (vec![0, 0], vec![])),
            "blk.0.attn_q.weight.lora_a has rank 0, expected 1 to 65536",
        ),
        (
            &|w| w.tensor(q).data[8..12].copy_from_slice(&f32::NAN.to_le_bytes()),
            "blk.0.attn_q.weight.lora_a contains NaN at [0, 2]; use an adapter whose training did not diverge",
        ),
        (&|w| w.tensor(q).ty = 26, "blk.0.attn_q.weight.lora_a is I32, expected F32, F16 or BF16"),
        (
            &|w| name(w, q, "blk.8.attn_q.weight.lora_a"),
            "blk.8.attn_q.weight.lora_a (the model has 8 layers, numbered from 0)",
        ),
        (
            &|w| name(w, q, "blk.7.attn_k.weight.lora_a"),
            "blk.7.attn_k.weight.lora_a (layer 7 shares the keys of layer 4 and has no k_proj)",
        ),
        (
            &|w| name(w, q, "per_layer_model_proj.weight.lora_a"),
            "per_layer_model_proj.weight.lora_a (not a LoRA matrix of a text layer)",
        ),
    ];
    for (change, expected) in cases {
        let mut file = good.clone();
        change(&mut file);
        fs::write(&path, file.bytes()).expect("written");
        refused(&path, &config, expected);
    }
    // The base of another model: every tensor has another size, and the first is reported.
    fs::write(&path, good.bytes()).expect("written");
    let tiny = Base::tiny().expect("part of the program");
    refused(&path, tiny.config(), "use an adapter of this model and rank");
}

/// Changes of one tensor that each safetensors format rejects. `a` and `b` are the tensors of the first slot.
fn refuse_tensors(path: &Path, file: &Path, config: &Config, (a, b): (&str, &str), a_shape: &str) {
    let good = SafeFile::read(file);
    let (ty, shape, data) = good.tensors[a].clone();
    let set = |value: f32| {
        let mut data = data.clone();
        data[4..8].copy_from_slice(&value.to_le_bytes());
        (ty, shape.clone(), data)
    };
    let cases: [(Option<SafeTensor>, &str, String); 7] = [
        (
            None,
            a,
            format!(
                "has a {} but no {}",
                b.rsplit('.').next().expect("a half"),
                a.rsplit('.').next().expect("a half")
            ),
        ),
        (Some(set(f32::NAN)), a, format!("{a} contains NaN at [0, 1]")),
        (Some(set(f32::NEG_INFINITY)), a, format!("{a} contains -inf at [0, 1]")),
        (
            Some((ty, vec![shape[1], shape[0]], data.clone())),
            a,
            format!("{a} is [{}, {}], expected {a_shape}", shape[1], shape[0]),
        ),
        (
            Some((ty, vec![data.len() / 4], data.clone())),
            a,
            format!("{a} is [{}], expected {a_shape}", data.len() / 4),
        ),
        (
            Some((Dtype::I32, shape.clone(), data.clone())),
            a,
            format!("{a} is I32, expected F32, F16 or BF16"),
        ),
        (
            Some((ty, shape.clone(), data.clone())),
            "lm_head.lora_a",
            "lm_head.lora_a (not a LoRA matrix of a text layer)".into(),
        ),
    ];
    for (tensor, name, expected) in cases {
        let mut changed = good.clone();
        match tensor {
            Some(tensor) => drop(changed.tensors.insert(name.into(), tensor)),
            None => drop(changed.tensors.remove(name)),
        }
        fs::write(file, changed.bytes()).expect("written");
        refused(path, config, &expected);
    }
    fs::write(file, SafeFile { tensors: BTreeMap::new(), ..good.clone() }.bytes()).expect("written");
    refused(path, config, "contains no LoRA matrices");
    fs::write(file, good.bytes()).expect("written");
    let tiny = Base::tiny().expect("part of the program");
    refused(path, tiny.config(), "use an adapter of this model and rank");
}

fn tensors_that_do_not_fit() {
    let (_dir, path, config) = written(Format::RullamaV0);
    let names = ("lora.blk.0.attn_q.A", "lora.blk.0.attn_q.B");
    refuse_tensors(&path, &path, &config, names, "[r, in] = [3, 256]");
    let (_dir, path, config) = written(Format::Mlx);
    let q = "language_model.model.layers.0.self_attn.q_proj";
    let names = (&*format!("{q}.lora_a"), &*format!("{q}.lora_b"));
    refuse_tensors(&path, &path.join("adapters.safetensors"), &config, names, "[in, r] = [256, 3]");
    for format in [Format::Peft, Format::PeftConditionalGeneration] {
        let (_dir, path, config) = written(format);
        let inside = if format == Format::Peft { "" } else { "language_model." };
        let q = format!("base_model.model.model.{inside}layers.0.self_attn.q_proj");
        let names = (&*format!("{q}.lora_A.weight"), &*format!("{q}.lora_B.weight"));
        let file = path.join("adapter_model.safetensors");
        let good = SafeFile::read(&file);
        let mut half = good.clone();
        half.tensors.remove(names.1);
        fs::write(&file, half.bytes()).expect("written");
        refused(&path, &config, "model.layers.0.self_attn.q_proj has a lora_A but no lora_B");
    }
}

fn wrong_configurations() {
    let (_dir, path, config) = written(Format::RullamaV0);
    let good = SafeFile::read(&path);
    let cases: [(&str, Option<&str>, &str); 10] = [
        ("format", None, "metadata key `format` is missing, expected \"rullama-lora-v0\""),
        ("format", Some("pt"), "metadata key `format` is \"pt\", expected \"rullama-lora-v0\""),
        ("rank", None, "metadata key `rank` is missing, expected a whole number from 1 to 65536"),
        ("rank", Some("4294967299"), "metadata key `rank` is \"4294967299\""),
        ("alpha", Some("3e39"), ", expected one that f32 can hold; use an adapter with another alpha"),
        ("rank", Some("0"), "metadata key `rank` is \"0\""),
        ("rank", Some("4"), "A is [3, 256], expected [r, in] = [4, 256]; lora"),
        ("alpha", Some("0"), "metadata key `alpha` is \"0\", expected a number other than 0"),
        ("alpha", Some("inf"), "metadata key `alpha` is \"inf\""),
        ("alpha", Some("much"), "metadata key `alpha` is \"much\""),
    ];
    for (key, value, expected) in cases {
        let mut file = good.clone();
        match value {
            Some(value) => drop(file.metadata.insert(key.into(), value.into())),
            None => drop(file.metadata.remove(key)),
        }
        fs::write(&path, file.bytes()).expect("written");
        refused(&path, &config, expected);
    }

    let (_dir, folder, config) = written(Format::Mlx);
    let path = folder.join("adapter_config.json");
    let good: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("there")).expect("JSON");
    let cases = [
        ("/fine_tune_type", json!("dora"), "fine_tune_type is \"dora\", expected \"lora\""),
        (
            "/lora_parameters/rank",
            json!(0),
            "lora_parameters.rank is 0, expected a whole number from 1 to 65536",
        ),
        ("/lora_parameters/rank", json!(-3), "lora_parameters.rank is -3"),
        ("/lora_parameters/rank", json!(8), "lora_a is [128, 3], expected [in, r] = [128, 8]"),
        ("/lora_parameters/scale", json!(0), "lora_parameters.scale is 0, expected a number other than 0"),
        ("/lora_parameters/scale", json!(1e308), "expected one that f32 can hold"),
        ("/lora_parameters/scale", json!("10"), "lora_parameters.scale is \"10\""),
        ("/lora_parameters", json!(null), "lora_parameters.rank is missing"),
    ];
    for (pointer, value, expected) in cases {
        let mut config_file = good.clone();
        *config_file.pointer_mut(pointer).expect("there") = value;
        fs::write(&path, config_file.to_string()).expect("written");
        refused(&folder, &config, expected);
    }
    fs::remove_file(&path).expect("there");
    let not_found = std::io::Error::from_raw_os_error(2);
    refused(&folder, &config, &format!("adapter_config.json: {not_found}"));
}

fn no_adapters() {
    let (dir, config) = (tempfile::tempdir().expect("a temporary folder"), dense());
    let at = |name: &str| dir.path().join(name);
    refused(
        &at("nowhere"),
        &config,
        "nowhere: does not exist; give the path of a PEFT or mlx-lm folder, a GGUF LoRA",
    );
    refused(dir.path(), &config, "has no adapter_config.json; a PEFT folder contains");
    refused(&golden("dense/model.gguf"), &config, "general.type is \"model\", expected \"adapter\"");
    fs::write(at("notes.txt"), "my adapter").expect("written");
    refused(&at("notes.txt"), &config, "is not a supported adapter");
    let inside = golden("dense/adapter/adapter_model.safetensors");
    refused(&inside, &config, "is a file of an adapter folder; give the folder");
    for name in ["adapter_model.safetensors", "adapters.safetensors"] {
        fs::write(at(name), "").expect("written");
    }
    refused(
        dir.path(),
        &config,
        "contains both adapter_model.safetensors (PEFT) and adapters.safetensors (mlx-lm)",
    );
}

#[test]
fn missing_slots_are_reported() {
    let config = dense();
    for format in Format::ALL {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let some = adapter(&config, &[Module::AttnQ, Module::AttnK]);
        let path = adapter::write(dir.path(), format, &some, &config, &OPTIONS).expect("written");
        let refused = |modules: &[Module], expected: &str| {
            let wanted = slots(&config, modules);
            let error = read_any(&path, &config, Some(&wanted)).expect_err(expected).to_string();
            assert!(error.contains(expected), "{format:?}: {error}, expected {expected}");
        };
        refused(&[Module::AttnQ], "(not trained by the recipe; add k_proj to lora.target_modules)");
        refused(&[Module::AttnQ, Module::AttnK, Module::FfnUp], "; remove these from lora.target_modules");
    }
}
