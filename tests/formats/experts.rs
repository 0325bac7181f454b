//! Adapters of experts, with one A and one B per expert, in the layouts of PEFT's `target_parameters`, llama.cpp's 3-D tensors and
//! mlx-lm's `LoRASwitchLinear`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rullama_train::adapter::lora::{Adapter, Pair, Slot};
use rullama_train::adapter::{Format, WriteOptions, read_any};
use rullama_train::base::Module;
use rullama_train::base::config::Config;
use rullama_train::base::{Base, Gguf};
use rullama_train::recipe::{self, Recipe};
use rullama_train::run;
use safetensors::Dtype;
use serde_json::{Value as Json, json};

use super::safe_file::{SafeFile, SafeTensor};
use super::{OPTIONS, RANK, adapter, golden};
use crate::gguf_writer::GgufWriter;

const BOTH: [Module; 2] = [Module::FfnGateUpExps, Module::FfnDownExps];

/// Four layers with eight experts each.
fn mixture() -> Base {
    Base::open(golden("moe/model.gguf").to_str().expect("UTF-8")).expect("the golden model opens")
}

fn pair(adapter: &Adapter, layer: usize, module: Module) -> (&Slot, &Pair) {
    adapter.pairs.iter().find(|(s, _)| (s.layer, s.module) == (layer, module)).expect("it has the slot")
}

#[test]
fn adapters_of_experts_are_read_as_they_were_written() {
    let base = mixture();
    let config = base.config();
    for modules in [&Module::ALL[..], &BOTH, &BOTH[..1], &BOTH[1..], &[Module::AttnQ, Module::FfnGateUpExps]]
    {
        let mut written = adapter(config, modules);
        // The largest f16 would overflow when multiplied by an expert's scale.
        written.pairs.values_mut().for_each(|pair| pair.b[0] = 1.5);
        for format in Format::ALL.into_iter().filter(|format| *format != Format::RullamaV0) {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let path = adapter::write(dir.path(), format, &written, config, &OPTIONS);
            let path = path.unwrap_or_else(|e| panic!("{format:?}: {e}"));
            let read = read_any(&path, config, None).unwrap_or_else(|e| panic!("{format:?}: {e}"));
            assert!(read.pairs.keys().eq(written.pairs.keys()), "{format:?} of {modules:?}");
            // GGUF LoRA multiplies B of down by its expert's scale. F16 rounds everything.
            let tolerance = match format {
                Format::GgufLora => 2.0 * f32::EPSILON,
                Format::GgufLoraF16 => 1e-3,
                _ => 0.0,
            };
            for (slot, pair) in &written.pairs {
                let found = &read.pairs[slot];
                for (found, written) in [(&found.a, &pair.a), (&found.b, &pair.b)] {
                    let near = |(f, w): (&f32, &f32)| (f - w).abs() <= tolerance * w.abs() + 1e-7 * tolerance;
                    assert!(found.len() == written.len(), "{format:?}");
                    // Values below the smallest f16 become zero.
                    let small = |w: &f32| format == Format::GgufLoraF16 && w.abs() < 1e-4;
                    assert!(
                        found.iter().zip(written).all(|(f, w)| small(w) || near((f, w))),
                        "{format:?} {slot:?}"
                    );
                }
            }
        }
    }
}

/// Checks the position of a value of an expert that is neither the first nor the last.
#[test]
fn values_of_experts_are_where_peft_and_llama_cpp_read_them() {
    let base = mixture();
    let config = base.config();
    let written = adapter(config, &BOTH);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let dropout = WriteOptions { dropout: 0.1, ..OPTIONS };
    let folder = adapter::write(dir.path(), Format::Peft, &written, config, &dropout).expect("written");
    let file = SafeFile::read(&folder.join("adapter_model.safetensors"));
    let description: Json =
        serde_json::from_slice(&fs::read(folder.join("adapter_config.json")).expect("there")).expect("JSON");
    assert_eq!(description["target_modules"], json!([]));
    assert_eq!(description["target_parameters"][0], "model.layers.0.experts.gate_up_proj");
    assert_eq!(description["target_parameters"].as_array().map(Vec::len), Some(8));
    assert_eq!(description["lora_dropout"], 0.0, "PEFT has no dropout on parameters");

    let gguf = adapter::write(dir.path(), Format::GgufLora, &written, config, &OPTIONS).expect("written");
    let gguf = Gguf::open(&gguf).expect("sound");
    let (e, o, r, i) = (5, 7, 2, 11);
    for (module, name) in [(Module::FfnGateUpExps, "experts.base_layer"), (Module::FfnDownExps, "experts")] {
        let (slot, pair) = pair(&written, 2, module);
        let (n, k, experts) = (slot.out_features, slot.in_features, slot.experts);
        let (a, b) = (pair.a[(e * RANK + r) * k + i], pair.b[(e * n + o) * RANK + r]);
        let value = |half: &str, shape: &[usize], at: usize| {
            let key = format!("base_model.model.model.layers.2.{name}.lora_{half}.weight");
            let (ty, found, data) = &file.tensors[&key];
            assert_eq!((*ty, &found[..]), (Dtype::F32, shape), "{key}");
            f32::from_le_bytes(data[4 * at..4 * at + 4].try_into().expect("4"))
        };
        assert_eq!(value("A", &[experts * RANK, k], (e * RANK + r) * k + i), a);
        // ParamWrapper: weight_B.reshape(out, r, E).
        assert_eq!(value("B", &[n, RANK * experts], (o * RANK + r) * experts + e), b);

        let scale = if module == Module::FfnDownExps { config.layers[2].expert_scales[e] } else { 1.0 };
        assert_ne!(config.layers[2].expert_scales[e], 1.0, "the test would see nothing");
        let value = |half: &str, shape: &[usize], at: usize| {
            let name = format!("blk.2.{}.weight.lora_{half}", module.gguf_name());
            let tensor = gguf.tensor(&name).expect("there");
            assert_eq!(tensor.shape, shape, "{name}");
            f32::from_le_bytes(gguf.data(tensor)[4 * at..4 * at + 4].try_into().expect("4"))
        };
        assert_eq!(value("a", &[k, RANK, experts], (e * RANK + r) * k + i), a);
        assert_eq!(value("b", &[RANK, n, experts], (e * n + o) * RANK + r), b * scale);
    }
}

/// Checks the position of a value for mlx-lm: `LoRASwitchLinear` has `lora_a` `[E, r, in]` and `lora_b` `[E, out, r]`, and `Experts` of
/// `gemma4_text` has separate gate, up and down.
#[test]
fn values_of_experts_are_where_mlx_lm_reads_them() {
    let base = mixture();
    let config = base.config();
    let written = adapter(config, &Module::ALL);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let folder = adapter::write(dir.path(), Format::Mlx, &written, config, &OPTIONS).expect("written");
    let description: Json =
        serde_json::from_slice(&fs::read(folder.join("adapter_config.json")).expect("there")).expect("JSON");
    let keys = description["lora_parameters"]["keys"].as_array().expect("a list").clone();
    let experts =
        ["gate_proj", "up_proj", "down_proj"].map(|last| json!(format!("experts.switch_glu.{last}")));
    assert!(experts.iter().all(|key| keys.contains(key)) && keys.contains(&json!("router.proj")), "{keys:?}");

    let path = folder.join("adapters.safetensors");
    let file = SafeFile::read(&path);
    let name = |last: &str| format!("language_model.model.layers.2.experts.switch_glu.{last}");
    let value = |last: &str, shape: [usize; 3], at: [usize; 3]| {
        let (ty, found, data) = &file.tensors[&name(last)];
        assert_eq!((*ty, &found[..]), (Dtype::F32, &shape[..]), "{last}");
        let at = 4 * ((at[0] * shape[1] + at[1]) * shape[2] + at[2]);
        f32::from_le_bytes(data[at..at + 4].try_into().expect("4"))
    };
    let (e, o, r, i) = (5, 7, 2, 11);
    let (slot, gate_up) = pair(&written, 2, Module::FfnGateUpExps);
    let (n, k, f) = (slot.out_features, slot.in_features, slot.out_features / 2);
    for (last, first_row) in [("gate_proj", 0), ("up_proj", f)] {
        let [a, b] = ["a", "b"].map(|half| format!("{last}.lora_{half}"));
        assert_eq!(value(&a, [8, RANK, k], [e, r, i]), gate_up.a[(e * RANK + r) * k + i]);
        assert_eq!(value(&b, [8, f, RANK], [e, o, r]), gate_up.b[(e * n + first_row + o) * RANK + r]);
    }
    let (slot, down) = pair(&written, 2, Module::FfnDownExps);
    let (n, k) = (slot.out_features, slot.in_features);
    assert_eq!(value("down_proj.lora_a", [8, RANK, k], [e, r, i]), down.a[(e * RANK + r) * k + i]);
    assert_eq!(value("down_proj.lora_b", [8, n, RANK], [e, o, r]), down.b[(e * n + o) * RANK + r]);

    // Different A for gate and up, which mlx-lm can train, cannot become one adapter.
    let change = |change: &dyn Fn(&mut BTreeMap<String, SafeTensor>), expected: &str| {
        let mut bad = file.clone();
        change(&mut bad.tensors);
        fs::write(&path, bad.bytes()).expect("written");
        refuse(&folder, config, expected);
    };
    let up = name("up_proj.lora_a");
    change(
        &|t| t.get_mut(&up).expect("there").2[0] ^= 1,
        "up_proj.lora_a differ, but must be one matrix here; fuse",
    );
    change(&|t| drop(t.remove(&up)), "gate_proj.lora_a (not a LoRA matrix of a text layer)");
    change(
        &|t| {
            let (_, shape, data) = t.get_mut(&up).expect("there");
            shape[0] -= 1;
            data.truncate(4 * shape.iter().product::<usize>());
        },
        "up_proj.lora_a is F32 [7, 3, 256], expected equal types and shapes",
    );
    change(
        &|t| {
            for last in ["gate_proj.lora_b", "up_proj.lora_b"] {
                let (_, shape, data) = t.get_mut(&name(last)).expect("there");
                shape[1] -= 1;
                data.truncate(4 * shape.iter().product::<usize>());
            }
        },
        "lora_b is [8, 190, 3], expected [E, out, r] = [8, 192, 3]",
    );
}

#[test]
fn formats_without_experts_reject_them() {
    let base = mixture();
    let text = json!({
        "model": {"base": "tiny"}, "data": {"train": "x"}, "output": {"dir": "y", "export": ["peft"]},
        "lora": {"target_modules": ["attn_q", "experts.down_proj"]},
    });
    let recipe = |overrides: &[(&str, &str)]| {
        Recipe::parse(&text.to_string(), recipe::Syntax::Json, "r.json", overrides).expect("sound")
    };
    let refused = |base: &Base, overrides: &[(&str, &str)], expected: &str| {
        let error = run::initial_adapter(&recipe(overrides), base).map(drop).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    };
    run::initial_adapter(&recipe(&[]), &base).map(drop).unwrap_or_else(|e| panic!("{e}"));
    refused(
        &base,
        &[("output.export", "['rullama-v0']")],
        "\"rullama-v0\", which cannot store adapters of ffn_down_exps",
    );
    run::initial_adapter(&recipe(&[("lora.dropout", "0.1")]), &base)
        .map(drop)
        .unwrap_or_else(|e| panic!("{e}"));

    let (dir, written) = (tempfile::tempdir().expect("a temporary folder"), adapter(base.config(), &BOTH));
    let expected = "rullama-lora-v0 cannot hold ffn_gate_up_exps and ffn_down_exps";
    let error = adapter::write(dir.path(), Format::RullamaV0, &written, base.config(), &OPTIONS);
    let error = error.expect_err(expected).to_string();
    assert!(error.contains(expected), "{error}");
    assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 0, "nothing was written");
}

/// Checks that the adapter at `path` is rejected with a one-line error that contains `expected`.
fn refuse(path: &Path, config: &Config, expected: &str) {
    let error = read_any(path, config, None).expect_err(expected).to_string();
    assert!(error.contains(expected), "expected {expected:?} in: {error}");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn malformed_adapters_of_experts_are_refused() {
    let base = mixture();
    let (config, written) = (base.config(), adapter(base.config(), &BOTH));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let folder = adapter::write(dir.path(), Format::Peft, &written, config, &OPTIONS).expect("written");
    let path = folder.join("adapter_model.safetensors");
    let a = "base_model.model.model.layers.1.experts.lora_A.weight";
    let change = |change: &dyn Fn(&mut BTreeMap<String, SafeTensor>), expected: &str| {
        let good = SafeFile::read(&path);
        let mut bad = SafeFile::read(&path);
        change(&mut bad.tensors);
        fs::write(&path, bad.bytes()).expect("written");
        refuse(&folder, config, expected);
        fs::write(&path, good.bytes()).expect("written");
    };
    change(&|t| drop(t.remove(a)), "model.layers.1.experts.down_proj has a lora_B but no lora_A");
    // Tensors for seven of eight experts.
    change(
        &|t| {
            let (_, shape, data) = t.get_mut(a).expect("there");
            shape[0] -= RANK;
            data.truncate(4 * shape[0] * shape[1]);
        },
        "lora_A.weight is [21, 96], expected [E·r, in] = [24, 96]",
    );
    change(
        &|t| {
            let (_, shape, _) = t.get_mut(&a.replace("lora_A", "lora_B")).expect("there");
            *shape = vec![shape[0] / 2, shape[1] * 2];
        },
        "lora_B.weight is [128, 48], expected [out, r·E] = [256, 24]",
    );
    let description = folder.join("adapter_config.json");
    let good = fs::read_to_string(&description).expect("there");
    fs::write(&description, good.replace("experts.down_proj", "experts.weight")).expect("written");
    refuse(
        &folder,
        config,
        "target_parameters has \"model.layers.0.experts.weight\", expected \"experts.gate_up_proj\" or",
    );

    let path = adapter::write(dir.path(), Format::GgufLora, &written, config, &OPTIONS).expect("written");
    let mut bad = GgufWriter::of(&Gguf::open(&path).expect("sound"));
    let name = "blk.3.ffn_gate_up_exps.weight.lora_a";
    let changed = bad.tensor(name);
    changed.shape = vec![256, 3, 4];
    changed.data.truncate(256 * 3 * 4 * 4);
    let path = dir.path().join("bad.gguf");
    fs::write(&path, bad.bytes()).expect("written");
    refuse(&path, config, "lora_a is [256, 3, 4], expected [in, r, E] = [256, 3, 8]");
}
