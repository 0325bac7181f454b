//! All adapter formats round-trip exactly, have the contents that their consumers expect, and are rejected if something is
//! wrong. The contents of PEFT folders are tested in `tests/export.rs`.

mod delta;
mod experts;
mod latent;
mod malformed;
mod odd;
mod safe_file;
mod shared_expert;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::gguf_writer::GgufWriter;
use half::f16;
use rullama_train::adapter::lora::{Adapter, Slot, slots};
use rullama_train::adapter::{self, AdapterPath, Format, OtherBase, WriteOptions, check, detect, read_any};
use rullama_train::base::Module;
use rullama_train::base::config::Config;
use rullama_train::base::gguf::value::Value;
use rullama_train::base::{Base, Gguf};
use rullama_train::families;
use rullama_train::recipe::{self, Recipe};
use rullama_train::run;
use safe_file::SafeFile;
use safetensors::SafeTensors;
use serde_json::json;
use tempfile::TempDir;

const OPTIONS: WriteOptions =
    WriteOptions { base_model: "google/gemma-4-E2B-it", dropout: 0.05, fingerprint: None, vocabulary: None };
const RANK: usize = 3;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Eight layers with per-layer embeddings. The last three share keys and values.
fn dense_base() -> Base {
    let path = golden("dense/model.gguf");
    Base::open(path.to_str().expect("UTF-8")).expect("the golden model opens")
}

fn dense() -> Config {
    dense_base().config().clone()
}

/// All modules, or those that `rullama-lora-v0` can hold.
fn modules(format: Format) -> &'static [Module] {
    if format == Format::RullamaV0 { &Module::ALL[..7] } else { &Module::ALL }
}

/// An adapter whose `B` has values too, among them the largest f16, a negative zero and values beyond the precision of f16.
fn adapter(config: &Config, modules: &[Module]) -> Adapter {
    let mut adapter = Adapter::init(&slots(config, modules), RANK, 16.0, false, 7);
    for pair in adapter.pairs.values_mut() {
        for (i, b) in pair.b.iter_mut().enumerate() {
            *b = (i as f32).sin();
        }
        // A matrix of one row has fewer values.
        pair.b.iter_mut().zip([65504.0, 1e-7, -0.0, 0.1]).for_each(|(b, value)| *b = value);
    }
    adapter
}

fn bits(adapter: &Adapter, map: fn(f32) -> f32) -> BTreeMap<Slot, [Vec<u32>; 2]> {
    let of = |values: &[f32]| values.iter().map(|v| map(*v).to_bits()).collect();
    adapter.pairs.iter().map(|(slot, pair)| (*slot, [of(&pair.a), of(&pair.b)])).collect()
}

/// Writes a valid adapter.
fn written(format: Format) -> (TempDir, PathBuf, Config) {
    let (dir, config) = (tempfile::tempdir().expect("a temporary folder"), dense());
    let adapter = adapter(&config, modules(format));
    let path = adapter::write(dir.path(), format, &adapter, &config, &OPTIONS).expect("written");
    (dir, path, config)
}

// --- writing ---

#[test]
fn round_trips_are_exact() {
    let config = dense();
    for format in Format::ALL {
        // 0.1 + 0.2 needs all 17 digits. A negative alpha is unusual but valid.
        for (alpha, rslora) in [(16.0, false), (16.0, true), (0.1 + 0.2, true), (-3.5, false)] {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let adapter = Adapter { alpha, rslora, ..adapter(&config, modules(format)) };
            let path = adapter::write(dir.path(), format, &adapter, &config, &OPTIONS)
                .unwrap_or_else(|e| panic!("{format:?}: {e}"));
            assert_eq!(path, format.place(dir.path()));
            let slots: Vec<Slot> = adapter.pairs.keys().copied().collect();
            for wanted in [None, Some(&slots[..])] {
                let read = read_any(&path, &config, wanted).unwrap_or_else(|e| panic!("{format:?}: {e}"));
                let map = if format == Format::GgufLoraF16 { |v| f16::from_f32(v).to_f32() } else { |v| v };
                assert_eq!(bits(&read, |v| v), bits(&adapter, map), "{format:?}");
                assert_eq!(read.rank, RANK);
                let (found, expected) = (read.scale(), adapter.scale());
                // One rounding to f32 if the file stores alpha as f32; otherwise f64 arithmetic.
                let tolerance = if detect(&path).expect("known") == Format::GgufLora { 6e-8 } else { 4e-16 };
                assert!(
                    ((found - expected) / expected).abs() <= tolerance,
                    "{format:?}: {found}, expected {expected}"
                );
            }
        }
    }
}

/// A recipe with these lines, over files that nobody reads.
fn recipe(lines: &str) -> Recipe {
    let required = "model.base = 'tiny'\ndata.train = 'a'\noutput.dir = 'b'\ntrain.learning_rate = 1e-3\nlora.rank = 6\n";
    Recipe::parse(&format!("{required}{lines}"), recipe::Syntax::Toml, "r.toml", &[("", ""); 0])
        .expect("valid")
}

const SOME: &str = "lora.layers = ['1-2', 'last 2']\nlora.target_modules = ['q_proj', 'k_proj', 'down_proj']\n\
                    lora.rank_pattern = { q_proj = 2, 'blk.2.ffn_down' = 9 }";

/// Layers and ranks of a recipe are those of every file, and of the adapter that is read back.
#[test]
fn some_layers_and_ranks_round_trip_in_every_format() {
    let base = dense_base();
    let config = base.config();
    let mut adapter = run::initial_adapter(&recipe(SOME), &base).expect("a sound recipe").adapter;
    let layers: Vec<usize> = adapter.pairs.keys().map(|slot| slot.layer).collect();
    // The last three layers share keys, so 6 and 7 have two modules each.
    assert_eq!(layers, [1, 1, 1, 2, 2, 2, 6, 6, 7, 7]);
    let rank = |slot: &Slot| match (slot.layer, slot.module) {
        (_, Module::AttnQ) => 2,
        (2, Module::FfnDown) => 9,
        _ => 6,
    };
    assert_eq!((adapter.rank, adapter.scale()), (9, 2.0), "the scale is that of lora.rank");
    let slots: Vec<Slot> = adapter.pairs.keys().copied().collect();
    for slot in &slots {
        assert_eq!(adapter.rank_of(slot), rank(slot), "{}", slot.name());
        let pair = adapter.pairs.get_mut(slot).expect("its own");
        let used = |i: usize| i % 9 < rank(slot);
        pair.b
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| used(*i))
            .for_each(|(i, b)| *b = (i as f32 + 1.0).sin());
    }
    let parameters: usize = slots.iter().map(|s| s.len_a(rank(s)) + s.len_b(rank(s))).sum();
    assert_eq!(adapter.parameters(), parameters, "zeros that pad a rank do not count");
    for format in Format::ALL {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = adapter::write(dir.path(), format, &adapter, config, &OPTIONS).expect("written");
        let read = read_any(&path, config, Some(&slots)).unwrap_or_else(|e| panic!("{format:?}: {e}"));
        let map = if format == Format::GgufLoraF16 { |v| f16::from_f32(v).to_f32() } else { |v| v };
        assert_eq!(bits(&read, |v| v), bits(&adapter, map), "{format:?}");
        assert!((read.scale() / 2.0 - 1.0).abs() < 1e-6, "{format:?}: {}", read.scale());
    }
    // PEFT's file has PEFT's patterns, and no zeros.
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = adapter::write(dir.path(), Format::Peft, &adapter, config, &OPTIONS).expect("written");
    let written: serde_json::Value =
        serde_json::from_slice(&fs::read(path.join("adapter_config.json")).expect("read")).expect("JSON");
    let q = "model.layers.1.self_attn.q_proj";
    assert_eq!((&written["r"], &written["lora_alpha"]), (&json!(9), &json!(18)));
    assert_eq!((&written["rank_pattern"][q], &written["alpha_pattern"][q]), (&json!(2), &json!(4.0)));
    assert_eq!(written["rank_pattern"].as_object().map(|all| all.len()), Some(9));
    let bytes = fs::read(path.join("adapter_model.safetensors")).expect("read");
    let tensors = SafeTensors::deserialize(&bytes).expect("sound");
    let shape =
        tensors.tensor(&format!("base_model.model.{q}.lora_A.weight")).expect("there").shape().to_vec();
    assert_eq!(shape, [2, config.width]);
}

#[test]
fn layers_and_ranks_that_do_not_fit_are_refused() {
    let base = dense_base();
    let refused =
        |lines: &str| run::initial_adapter(&recipe(lines), &base).map(drop).expect_err("refused").to_string();
    assert_eq!(
        refused("lora.layers = [1, '6-8']"),
        "lora.layers names 6-8, but this model has 8 layers, numbered from 0 to 7; name some of these"
    );
    assert_eq!(
        refused("lora.layers = 'last 9'"),
        "lora.layers names last 9, but this model has 8 layers, numbered from 0 to 7; name some of these"
    );
    assert_eq!(
        refused("lora.layers = [7]\nlora.target_modules = ['k_proj']"),
        "lora.layers = [7] has none of the modules of lora.target_modules; name other layers or modules"
    );
    assert_eq!(
        refused(
            "lora.layers = [0]\nlora.target_modules = ['q_proj']\nlora.rank_pattern = { '3.q_proj' = 4 }"
        ),
        "lora.rank_pattern names blk.3.attn_q, which gets no adapter; adapted are attn_q. Remove it, or choose its module and layer \
         with lora.target_modules and lora.layers"
    );
    assert_eq!(
        refused("lora.layers = [1]\nlora.target_modules = ['k_proj']\nlora.rank_pattern = { k_proj = 1000 }"),
        "lora.rank_pattern gives blk.1.attn_k rank 1000, which exceeds the rank of the matrix, at most 32; lower it"
    );
    // An earlier adapter with a higher rank in one of them.
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut earlier = run::initial_adapter(&recipe("lora.layers = [1]"), &base).expect("sound").adapter;
    earlier.pairs.values_mut().for_each(|pair| pair.b.fill(0.5));
    let path = adapter::write(dir.path(), Format::Peft, &earlier, base.config(), &OPTIONS).expect("written");
    let shown = path.display();
    let lines = format!(
        "lora.layers = [1]\nlora.rank_pattern = {{ q_proj = 2 }}\nlora.init_from = '{shown}'\nlora.allow_other_base = true"
    );
    assert_eq!(
        refused(&lines),
        format!(
            "{shown} has rank 6 in blk.1.attn_q, but the recipe has rank 2; make them equal with lora.rank_pattern"
        )
    );
}

#[test]
fn formats_are_detected_and_keep_their_names() {
    for format in Format::ALL {
        let (_dir, path, _) = written(format);
        let expected = match format {
            Format::PeftConditionalGeneration => Format::Peft,
            Format::GgufLoraF16 => Format::GgufLora,
            other => other,
        };
        assert_eq!(detect(&path).expect("known"), expected, "{format:?}");
        assert_eq!(format.name().parse(), Ok(format));
        assert_eq!(json!(format), json!(format.name()), "a recipe calls it something else");
        let origin = adapter::origin(&path).expect("read");
        assert_eq!(origin.base_model.as_deref(), Some(OPTIONS.base_model), "{format:?}");
        let keeps_dropout = !matches!(expected, Format::GgufLora | Format::RullamaV0);
        assert_eq!(origin.dropout, if keeps_dropout { OPTIONS.dropout } else { 0.0 }, "{format:?}");
        assert_eq!(origin.fingerprint, None, "{format:?}");
    }
    let error = "gguf".parse::<Format>().expect_err("no format");
    assert!(error.contains("unknown format \"gguf\", expected one of peft, "), "{error}");
}

#[test]
fn the_same_adapter_gives_the_same_bytes() {
    let config = dense();
    // At least five metadata keys, whose order must not depend on a hash map.
    let options = WriteOptions { fingerprint: Some("v1:of some base"), ..OPTIONS };
    for format in Format::ALL {
        let adapter = adapter(&config, modules(format));
        let bytes = || {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let path = adapter::write(dir.path(), format, &adapter, &config, &options).expect("written");
            let files = ["adapter_model.safetensors", "adapters.safetensors", "adapter_config.json"];
            match path.is_dir() {
                true => files.iter().flat_map(|f| fs::read(path.join(f)).unwrap_or_default()).collect(),
                false => fs::read(&path).expect("there"),
            }
        };
        let first: Vec<u8> = bytes();
        assert!((0..4).all(|_| bytes() == first), "{format:?}");
    }
}

#[test]
fn all_formats_share_one_folder() {
    let (dir, config) = (tempfile::tempdir().expect("a temporary folder"), dense());
    let adapter = adapter(&config, modules(Format::RullamaV0));
    let paths =
        Format::ALL.map(|f| adapter::write(dir.path(), f, &adapter, &config, &OPTIONS).expect("written"));
    for (path, format) in paths.iter().zip(Format::ALL) {
        let read = read_any(path, &config, None).unwrap_or_else(|e| panic!("{format:?}: {e}"));
        assert_eq!(read.pairs.len(), adapter.pairs.len(), "{format:?}");
    }
}

#[test]
fn a_gguf_lora_has_the_contents_that_llama_cpp_reads() {
    let (dir, config) = (tempfile::tempdir().expect("a temporary folder"), dense());
    let adapter = Adapter { rslora: true, ..adapter(&config, &Module::ALL) };
    let path = adapter::write(dir.path(), Format::GgufLora, &adapter, &config, &OPTIONS).expect("written");
    let gguf = Gguf::open(&path).expect("sound");
    for (key, expected) in
        [("general.type", "adapter"), ("general.architecture", "gemma4"), ("adapter.type", "lora")]
    {
        assert_eq!(gguf.require::<&str>(key).expect("there"), expected);
    }
    // llama.cpp's scale is alpha / rank: 16·√3 / 3 is 16 / √3. It accepts alpha only as f32.
    assert_eq!(gguf.value("adapter.lora.alpha"), Some(&Value::F32(27.712812)));
    assert_eq!(gguf.tensors().len(), 2 * adapter.pairs.len());
    for (slot, pair) in &adapter.pairs {
        let name = format!("blk.{}.{}.weight", slot.layer, slot.module.gguf_name());
        for (half, shape, values) in
            [("lora_a", [slot.in_features, RANK], &pair.a), ("lora_b", [RANK, slot.out_features], &pair.b)]
        {
            let tensor = gguf.tensor(&format!("{name}.{half}")).unwrap_or_else(|| panic!("no {name}.{half}"));
            assert_eq!(tensor.shape, shape, "{name}.{half}");
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            assert_eq!(gguf.data(tensor), bytes, "{name}.{half}");
        }
    }
}

#[test]
fn an_mlx_folder_has_transposes_and_the_scale() {
    let (dir, config) = (tempfile::tempdir().expect("a temporary folder"), dense());
    let adapter = Adapter { rslora: true, ..adapter(&config, &[Module::AttnQ, Module::FfnDown]) };
    let path = adapter::write(dir.path(), Format::Mlx, &adapter, &config, &OPTIONS).expect("written");
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(path.join("adapter_config.json")).expect("there")).expect("JSON");
    let expected = json!({
        "fine_tune_type": "lora", "model": OPTIONS.base_model, "num_layers": -1,
        "lora_parameters": {
            "rank": 3, "scale": 16.0 / 3f64.sqrt(), "dropout": 0.05, "keys": ["self_attn.q_proj", "mlp.down_proj"],
        },
    });
    assert_eq!(json, expected);
    let bytes = fs::read(path.join("adapters.safetensors")).expect("there");
    let file = SafeTensors::deserialize(&bytes).expect("sound");
    assert_eq!(file.len(), 2 * adapter.pairs.len());
    for (slot, pair) in &adapter.pairs {
        let name = format!(
            "language_model.model.layers.{}.{}",
            slot.layer,
            (families::of(&config).names.peft)(slot.module)
        );
        for (half, rows, columns, ours) in
            [("lora_a", slot.in_features, RANK, &pair.a), ("lora_b", RANK, slot.out_features, &pair.b)]
        {
            let tensor = file.tensor(&format!("{name}.{half}")).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(tensor.shape(), [rows, columns], "{name}.{half}");
            let theirs: Vec<f32> =
                tensor.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            for (row, column) in [(0, 0), (1, 0), (0, 2), (rows - 1, columns - 1)] {
                assert_eq!(theirs[row * columns + column], ours[column * rows + row], "{name}.{half}");
            }
        }
    }
}

#[test]
fn a_rullama_file_has_its_names_and_metadata() {
    let (dir, config) = (tempfile::tempdir().expect("a temporary folder"), dense());
    let adapter = Adapter { rslora: true, ..adapter(&config, &[Module::AttnOutput, Module::FfnUp]) };
    let path = adapter::write(dir.path(), Format::RullamaV0, &adapter, &config, &OPTIONS).expect("written");
    let file = SafeFile::read(&path);
    let expected = [
        ("format", "rullama-lora-v0"),
        ("rank", "3"),
        ("alpha", "27.712812921102035"),
        ("target_modules", "attn_o,ffn_up"),
        ("dtype", "f32"),
        // rullama ignores unknown keys.
        ("rullama_train.base_model", OPTIONS.base_model),
    ];
    assert_eq!(file.metadata, expected.map(|(k, v)| (k.to_string(), v.to_string())).into());
    let q = &file.tensors["lora.blk.7.attn_o.A"];
    let slot = adapter.pairs.keys().rfind(|s| s.module == Module::AttnOutput).expect("there");
    assert_eq!(q.1, [RANK, slot.in_features]);
    assert_eq!(file.tensors["lora.blk.7.attn_o.B"].1, [slot.out_features, RANK]);
    assert_eq!(file.tensors.len(), 2 * adapter.pairs.len());
}

#[test]
fn adapters_without_effect_or_that_diverged_are_not_written() {
    let config = dense();
    let good = adapter(&config, &Module::ALL);
    let refuse = |format: Format, change: &dyn Fn(&mut Adapter), expected: &str| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut bad = good.clone();
        change(&mut bad);
        let error =
            adapter::write(dir.path(), format, &bad, &config, &OPTIONS).expect_err(expected).to_string();
        assert!(error.starts_with("the adapter was not written: "), "{error}");
        assert!(error.contains(expected), "{format:?}: {error}, expected {expected}");
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 0, "{format:?}: {expected}");
    };
    for format in Format::ALL {
        let zero = |a: &mut Adapter| a.pairs.values_mut().for_each(|p| p.b.fill(-0.0));
        refuse(format, &zero, "every B is zero, so it has no effect; train it first");
        refuse(format, &|a| a.alpha = 0.0, "its scale is 0, expected a number other than 0");
        refuse(format, &|a| a.alpha = f64::NAN, "its scale is NaN");
        refuse(format, &|a| a.pairs.clear(), "it has no matrices");
        for value in [f32::NAN, f32::INFINITY] {
            let expected = format!("A of blk.0.attn_q contains {value}: training diverged");
            refuse(format, &|a| a.pairs.values_mut().next().expect("one").a[5] = value, &expected);
        }
    }
    let tiny = |a: &mut Adapter| a.alpha = 1e-60;
    refuse(Format::GgufLora, &tiny, "which is 0 in a GGUF file; train with another alpha");
    let large = |a: &mut Adapter| a.pairs.values_mut().next().expect("one").b[1] = 1e5;
    refuse(
        Format::GgufLoraF16,
        &large,
        "blk.0.attn_q.weight.lora_b contains 100000, which exceeds the range of F16",
    );
    refuse(Format::RullamaV0, &|_| {}, "rullama-lora-v0 cannot hold inp_gate and proj; remove them");
    check(&good).expect("the adapter that all this was made from is sound");
}

#[test]
fn a_folder_of_another_format_is_not_overwritten() {
    let (_dir, path, config) = written(Format::Mlx);
    let good = adapter(&config, &Module::ALL);
    let error =
        adapter::write(&path, Format::Peft, &good, &config, &OPTIONS).expect_err("theirs").to_string();
    assert!(
        error.contains("contains adapters.safetensors, whose adapter_config.json would be overwritten"),
        "{error}"
    );
    assert_eq!(detect(&path).expect("as before"), Format::Mlx);
}

#[test]
fn an_adapter_too_small_for_f16_is_detected_on_reload() {
    let (dir, config) = (tempfile::tempdir().expect("a temporary folder"), dense());
    let mut small = adapter(&config, &Module::ALL);
    small.pairs.values_mut().for_each(|p| p.b.fill(1e-9));
    let error =
        adapter::write(dir.path(), Format::GgufLoraF16, &small, &config, &OPTIONS).expect_err("zeros");
    assert!(error.to_string().contains("only zeros in every B"), "{error}");
}

// --- adapters in recipes and on the command line ---

#[test]
fn training_starts_from_every_format_and_checks_rank_and_scale() {
    let (dir, base) = (tempfile::tempdir().expect("a temporary folder"), dense_base());
    let config = base.config().clone();
    let adapter = Adapter { rslora: true, ..adapter(&config, &Module::ALL[..7]) };
    let names = "[\"attn_q\",\"attn_k\",\"attn_v\",\"attn_output\",\"ffn_gate\",\"ffn_up\",\"ffn_down\"]";
    for format in Format::ALL {
        let path = adapter::write(dir.path(), format, &adapter, &config, &OPTIONS).expect("written");
        let recipe = |alpha: f64, rank: usize| {
            let text = json!({
                "model": {"base": "tiny"}, "data": {"train": "x"}, "output": {"dir": "y"},
                "lora": {
                    "rank": rank, "alpha": alpha, "rslora": true, "init_from": path,
                    "target_modules": serde_json::from_str::<serde_json::Value>(names).expect("JSON"),
                },
            });
            Recipe::parse::<&str>(&text.to_string(), recipe::Syntax::Json, "r.json", &[]).expect("sound")
        };
        let initial =
            run::initial_adapter(&recipe(16.0, RANK), &base).unwrap_or_else(|e| panic!("{e}")).adapter;
        assert_eq!((initial.alpha, initial.rslora), (16.0, true), "{format:?}: the recipe's own");
        assert_eq!(initial.pairs.len(), adapter.pairs.len(), "{format:?}");
        for (alpha, rank) in [(8.0, RANK), (16.0, 4)] {
            let error = run::initial_adapter(&recipe(alpha, rank), &base)
                .map(|_| ())
                .expect_err("differs")
                .to_string();
            assert!(error.contains("has rank = 3, ") && error.contains("make them equal"), "{error}");
        }
    }
}

#[test]
fn a_format_that_cannot_hold_the_modules_is_refused_before_training() {
    let text = json!({
        "model": {"base": "tiny"}, "data": {"train": "x"}, "output": {"dir": "y", "export": ["peft", "rullama-v0"]},
    });
    let recipe = |overrides: &[(&str, &str)]| {
        Recipe::parse(&text.to_string(), recipe::Syntax::Json, "r.json", overrides).expect("sound")
    };
    let error =
        run::initial_adapter(&recipe(&[]), &dense_base()).map(|_| ()).expect_err("no place").to_string();
    assert!(
        error.contains("\"rullama-v0\", which cannot store adapters of inp_gate, proj; remove these modules"),
        "{error}"
    );
    run::initial_adapter(&recipe(&[("lora.target_modules", "['attn_q', 'o_proj']")]), &dense_base())
        .map(drop)
        .unwrap_or_else(|e| panic!("{e}"));
}

// --- adapters for a base, and several of them ---

/// The dense model with one byte changed in a norm or a matrix.
fn relative_of_dense(tensor: &str) -> Base {
    let mut bytes = fs::read(golden("dense/model.gguf")).expect("there");
    let start = dense_base().gguf().tensor(tensor).expect("there").range.start;
    bytes[start as usize] ^= 1;
    Base::from_gguf(Gguf::from_bytes(bytes, "other.gguf").expect("sound"), "other").expect("a model")
}

#[test]
fn an_adapter_knows_its_base() {
    let (dense, requantized) = (dense_base(), relative_of_dense("blk.3.ffn_up.weight"));
    let other = relative_of_dense("blk.3.attn_norm.weight");
    let digests = dense.fingerprint().to_string();
    for format in Format::ALL {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let options = WriteOptions { fingerprint: Some(&digests), ..OPTIONS };
        let adapter = adapter(dense.config(), modules(format));
        let path = adapter::write(dir.path(), format, &adapter, dense.config(), &options).expect("written");
        let load = |base: &Base, other| adapter::load(&[AdapterPath::whole(&path)], base, None, other);
        let found = load(&dense, OtherBase::Refuse).unwrap_or_else(|e| panic!("{format:?}: {e}"));
        assert_eq!(found.origin.fingerprint.as_deref(), Some(&*digests), "{format:?}");
        assert_eq!(
            (found.adapter.pairs.len(), &found.notices[..]),
            (adapter.pairs.len(), &[][..]),
            "{format:?}"
        );

        let notices = load(&requantized, OtherBase::Refuse).unwrap_or_else(|e| panic!("{e}")).notices;
        let expected = "was trained on google/gemma-4-E2B-it; other is the same model with different weights";
        assert!(notices.len() == 1 && notices[0].contains(expected), "{notices:?}");

        let error = load(&other, OtherBase::Refuse).expect_err("another model").to_string();
        let expected = format!(
            "{} was trained on google/gemma-4-E2B-it ({digests}), but other ({}) is a different model; use the base",
            path.display(),
            other.fingerprint()
        );
        assert!(error.starts_with(&expected), "{error}\nexpected {expected}");
        let notices = load(&other, OtherBase::Allow).unwrap_or_else(|e| panic!("{e}")).notices;
        assert!(
            notices.len() == 1
                && notices[0].contains("other is a different model; loaded because this is allowed"),
            "{notices:?}"
        );
    }
    // Another vocabulary gives a notice, whatever the weights are.
    let others = "0".repeat(64);
    for (vocabulary, expected) in [(dense.vocabulary(), 0), (&*others, 1)] {
        for format in Format::ALL {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let options = WriteOptions { vocabulary: Some(vocabulary), ..OPTIONS };
            let adapter = adapter(dense.config(), modules(format));
            let path =
                adapter::write(dir.path(), format, &adapter, dense.config(), &options).expect("written");
            let found = adapter::load(&[AdapterPath::whole(&path)], &dense, None, OtherBase::Refuse);
            let found = found.unwrap_or_else(|e| panic!("{format:?}: {e}"));
            assert_eq!(found.origin.vocabulary.as_deref(), Some(vocabulary), "{format:?}");
            let told = found.notices.iter().filter(|n| n.contains("other tokens or merges than those of"));
            assert_eq!(told.count(), expected, "{format:?}: {:?}", found.notices);
        }
    }
    // A fingerprint of a future version gives a notice.
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = WriteOptions { fingerprint: Some("v7:abc"), ..OPTIONS };
    let path = adapter::write(
        dir.path(),
        Format::GgufLora,
        &adapter(dense.config(), &Module::ALL),
        dense.config(),
        &options,
    );
    let found = adapter::load(&[AdapterPath::whole(path.expect("written"))], &dense, None, OtherBase::Refuse);
    let notices = found.unwrap_or_else(|e| panic!("{e}")).notices;
    assert!(
        notices[0].contains("has the base fingerprint v7:abc, which this version cannot compare"),
        "{notices:?}"
    );
}

#[test]
fn a_gguf_lora_may_have_a_rank_for_each_matrix() {
    let (dir, config) = (tempfile::tempdir().expect("a temporary folder"), dense());
    let write = |name: &str, modules: &[Module], rank: usize| {
        let slots = slots(&config, modules);
        let mut adapter = Adapter::init(&slots, rank, 12.0, false, 7);
        adapter
            .pairs
            .values_mut()
            .flat_map(|p| &mut p.b)
            .enumerate()
            .for_each(|(i, b)| *b = (i as f32).sin());
        let dir = dir.path().join(name);
        let path = adapter::write(&dir, Format::GgufLora, &adapter, &config, &OPTIONS).expect("written");
        (adapter, Gguf::open(&path).expect("sound"))
    };
    let (q, q_file) = write("q", &[Module::AttnQ], 2);
    let (down, down_file) = write("down", &[Module::FfnDown], 3);
    let mut both = GgufWriter::of(&q_file);
    both.tensors.extend(GgufWriter::of(&down_file).tensors);
    let path = dir.path().join("both.gguf");
    fs::write(&path, both.bytes()).expect("written");
    let read = read_any(&path, &config, None).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((read.rank, read.pairs.len()), (3, q.pairs.len() + down.pairs.len()));
    // alpha / rank of each: 6 and 4.
    assert_eq!((q.scale(), down.scale()), (6.0, 4.0));
    for (slot, pair) in q.pairs.iter().chain(&down.pairs) {
        let (found, rank) = (&read.pairs[slot], pair.a.len() / slot.in_features);
        let scale = if rank == 2 { 6.0 } else { 4.0 };
        assert_eq!(found.a[..pair.a.len()], pair.a, "{slot:?}");
        for (row, expected) in found.b.chunks_exact(3).zip(pair.b.chunks_exact(rank)) {
            for (j, b) in row.iter().enumerate() {
                let expected = scale * expected.get(j).map_or(0.0, |b| f64::from(*b));
                let found = read.scale() * f64::from(*b);
                assert!((found - expected).abs() < 1e-6, "{slot:?}: {found}, expected {expected}");
            }
        }
    }
}

#[test]
fn several_adapters_are_loaded_as_one() {
    let (dir, base) = (tempfile::tempdir().expect("a temporary folder"), dense_base());
    let config = base.config();
    let digests = base.fingerprint().to_string();
    let write = |name: &str, format, modules: &[Module], options: &WriteOptions| {
        let adapter = adapter(config, modules);
        let path =
            adapter::write(&dir.path().join(name), format, &adapter, config, options).expect("written");
        (adapter, path)
    };
    let known = WriteOptions { fingerprint: Some(&digests), ..OPTIONS };
    let (q, q_path) = write("q", Format::Peft, &[Module::AttnQ, Module::FfnUp], &known);
    let (k, k_path) = write("k", Format::GgufLora, &[Module::AttnK, Module::FfnUp], &known);
    let paths = [(q_path, 0.75), (k_path, -0.5)].map(|(path, weight)| AdapterPath { path, weight });
    let load =
        |paths: &[AdapterPath], slots: Option<&[Slot]>| adapter::load(paths, &base, slots, OtherBase::Refuse);
    let sum = load(&paths, None).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(sum.adapter, Adapter::combine(&[(&q, 0.75), (&k, -0.5)]).expect("they fit"));
    assert_eq!(sum.origin.fingerprint.as_deref(), Some(&*digests), "both are of this base");
    assert_eq!((sum.origin.dropout, sum.origin.base_model.as_deref()), (0.0, Some(OPTIONS.base_model)));
    let half = load(&[AdapterPath { weight: 0.5, ..paths[0].clone() }], None).expect("one is a sum too");
    assert_eq!((half.adapter.pairs, half.adapter.alpha), (q.pairs, 8.0));

    let wanted = slots(config, &[Module::AttnQ, Module::AttnK, Module::FfnUp]);
    assert_eq!(load(&paths, Some(&wanted)).expect("all there").adapter.pairs.len(), wanted.len());
    let refused = |modules: &[Module], expected: &str| {
        let error = load(&paths, Some(&slots(config, modules))).expect_err(expected).to_string();
        assert!(error.starts_with("the sum of the adapters: ") && error.contains(expected), "{error}");
    };
    refused(&[Module::AttnQ, Module::FfnUp], "blk.0.attn_k (not trained by the recipe; add k_proj to");
    refused(&Module::ALL, "no tensors for blk.0.attn_v, blk.0.attn_output, ");
    // Training that starts from a sum uses the alpha of the recipe.
    let warm = |rank: usize| {
        let init = paths.each_ref().map(ToString::to_string);
        let text = json!({
            "model": {"base": "x"}, "data": {"train": "x"}, "output": {"dir": "y"},
            "lora": {"rank": rank, "alpha": 5, "init_from": init, "target_modules": ["attn_q", "attn_k", "ffn_up"]},
        });
        let recipe = Recipe::parse::<&str>(&text.to_string(), recipe::Syntax::Json, "r.json", &[]);
        run::initial_adapter(&recipe.expect("sound"), &base)
    };
    let start = warm(2 * RANK).unwrap_or_else(|e| panic!("{e}")).adapter;
    assert_eq!((start.alpha, &start), (5.0, &sum.adapter.rescaled(5.0, false)));
    let error = warm(RANK).map(drop).expect_err("the ranks add up").to_string();
    assert!(
        error.contains("have a total rank of 6, but the recipe has rank = 3; make them equal"),
        "{error}"
    );
}

#[test]
fn an_adapter_path_may_have_a_weight() {
    let parsed = |text: &str| text.parse::<AdapterPath>().map(|p| (p.path.display().to_string(), p.weight));
    for (text, path, weight) in [
        ("runs/a", "runs/a", 1.0),
        ("runs/a=0.7", "runs/a", 0.7),
        ("runs/a=-1e-3", "runs/a", -1e-3),
        ("runs/rate=fast", "runs/rate=fast", 1.0),
        ("runs/rate=0.1=1", "runs/rate=0.1", 1.0),
    ] {
        assert_eq!(parsed(text), Ok((path.to_string(), weight)), "{text}");
        let written = text.parse::<AdapterPath>().expect("parsed above").to_string();
        assert_eq!(parsed(&written), parsed(text), "{written}");
    }
    for (text, expected) in [
        ("", "\"\" has no path, expected PATH or PATH=WEIGHT"),
        ("=0.5", "has no path, expected PATH or PATH=WEIGHT"),
        ("a=0", "\"a=0\" has the weight 0, expected a finite number other than 0"),
        ("a=inf", "\"a=inf\" has the weight inf"),
        ("a=nan", "\"a=nan\" has the weight NaN"),
    ] {
        let error = parsed(text).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}
