//! PEFT folders: written as PEFT writes them, reloaded exactly, and rejected if something is wrong.
//!
//! The golden folders were written by PEFT 0.21.2, for models of transformers' `Gemma4ForCausalLM`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use regex::Regex;
use rullama_train::adapter::Error;
use rullama_train::adapter::formats::peft::{self, Naming};
use rullama_train::adapter::lora::{Adapter, Pair, Slot, slots};
use rullama_train::adapter::read_any;
use rullama_train::adapter::{self, Format, WriteOptions};
use rullama_train::base::Base;
use rullama_train::base::Gguf;
use rullama_train::base::Module;
use rullama_train::base::config::{Config, LayerConfig};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

const NAMINGS: [fn(&Config) -> Naming; 2] = [Naming::causal_lm, Naming::conditional_generation];

const OPTIONS: WriteOptions =
    WriteOptions { base_model: "google/gemma-4-E2B-it", dropout: 0.05, fingerprint: None, vocabulary: None };

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn config_of(name: &str) -> Config {
    let path = golden(name).join("model.gguf");
    Base::open(path.to_str().expect("UTF-8")).expect("the golden model opens").config().clone()
}

/// Four layers with special cases: layer 1 uses its keys as values, layers 2 and 3 share keys and values of layers 0 and 1.
fn odd_config() -> Config {
    let layer = LayerConfig {
        window: Some(8),
        heads: 4,
        kv_heads: 2,
        head_size: 8,
        ffn_width: 24,
        qk_norm: true,
        v_norm: true,
        post_norms: true,
        ..LayerConfig::default()
    };
    let full = LayerConfig { window: None, head_size: 16, k_eq_v: true, ..layer.clone() };
    Config {
        architecture: "gemma4",
        width: 16,
        embedding_scale: 16f32.sqrt(),
        vocab: 32,
        per_layer_width: 4,
        context_length: 64,
        layers: vec![
            layer.clone(),
            full.clone(),
            LayerConfig { kv_donor: Some(0), ffn_width: 48, ..layer },
            LayerConfig { kv_donor: Some(1), ffn_width: 48, ..full },
        ],
        ..Config::default()
    }
}

/// An adapter whose `B` has values too, among them the smallest, the largest, a negative zero and a subnormal.
fn adapter(slots: &[Slot]) -> Adapter {
    let mut adapter = Adapter::init(slots, 3, 16.0, false, 7);
    for pair in adapter.pairs.values_mut() {
        for (i, b) in pair.b.iter_mut().enumerate() {
            *b = (i as f32).sin();
        }
        pair.b[..4].copy_from_slice(&[f32::MAX, f32::MIN_POSITIVE, -0.0, 1e-44]);
    }
    adapter
}

fn bits(adapter: &Adapter) -> BTreeMap<Slot, [Vec<u32>; 2]> {
    let of = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect();
    adapter.pairs.iter().map(|(slot, pair)| (*slot, [of(&pair.a), of(&pair.b)])).collect()
}

// --- writing ---

#[test]
fn a_round_trip_is_exact() {
    let config = odd_config();
    let slots = slots(&config, &Module::ALL);
    for naming in NAMINGS {
        // 0.1 + 0.2 needs all 17 digits.
        for (alpha, rslora) in [(16.0, false), (0.1 + 0.2, true), (-3.5, false)] {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let written = Adapter { alpha, rslora, ..adapter(&slots) };
            peft::write(dir.path(), &written, naming(&config), &OPTIONS).expect("written");
            let read = peft::read(dir.path(), &config, &slots).expect("read");
            assert_eq!((read.rank, read.alpha.to_bits(), read.rslora), (3, alpha.to_bits(), rslora));
            assert_eq!(bits(&read), bits(&written), "{:?}, alpha {alpha}", naming(&config));
        }
    }
}

#[test]
fn golden_adapters_are_written_as_peft_wrote_them() {
    // Modules of the golden adapters. None has k and v of layers that share them.
    let text = &Module::ALL[..7];
    let cases: [(&str, Config, &[Module], [f64; 2]); 10] = [
        ("moe", config_of("moe"), &Module::ALL, [3.0, 6.0]),
        ("dense", config_of("dense"), &Module::ALL, [4.0, 8.0]),
        ("big", config_of("big"), text, [5.0, 8.0]),
        ("ollama", config_of("ollama"), &Module::ALL, [3.0, 4.0]),
        ("chat", Base::tiny().expect("part of the program").config().clone(), &Module::ALL, [8.0, 16.0]),
        ("ernie4_5", config_of("ernie4_5"), &Module::ALL, [2.0, 5.0]),
        ("glm4", config_of("glm4"), &Module::ALL, [2.0, 5.0]),
        ("phi3", config_of("phi3"), &Module::ALL, [2.0, 5.0]),
        ("granite4", config_of("granite4"), &Module::ALL, [2.0, 5.0]),
        ("hunyuan-dense", config_of("hunyuan-dense"), &Module::ALL, [2.0, 5.0]),
    ];
    for (name, config, modules, expected) in cases {
        let folder = golden(name).join("adapter");
        let slots = slots(&config, modules);
        let read = peft::read(&folder, &config, &slots).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(([read.rank as f64, read.alpha], read.rslora), (expected, false), "{name}");
        assert_eq!(read.pairs.len(), slots.len(), "{name}");
        assert!(read.pairs.values().all(|p| p.b.iter().any(|b| *b != 0.0)), "{name}: a B is zero");

        let theirs = fs::read(folder.join("adapter_model.safetensors")).expect("there");
        let [(file, ours), _] = peft::serialize(&read, Naming::causal_lm(&config), &OPTIONS).expect("sound");
        assert_eq!(file, "adapter_model.safetensors");
        assert!(
            ours == theirs,
            "{name}: {} bytes of ours differ from {} of PEFT's",
            ours.len(),
            theirs.len()
        );
    }
}

#[test]
fn the_configuration_equals_that_of_peft() {
    let config = odd_config();
    let adapter = adapter(&slots(&config, &[Module::AttnQ, Module::FfnDown]));
    let [_, (file, bytes)] = peft::serialize(&adapter, Naming::causal_lm(&config), &OPTIONS).expect("sound");
    assert_eq!(file, "adapter_config.json");
    let ours: Map<String, Value> = serde_json::from_slice(&bytes).expect("JSON");
    assert!(ours.keys().is_sorted(), "PEFT sorts its keys");
    let path = golden("dense").join("adapter/adapter_config.json");
    let theirs: Map<String, Value> =
        serde_json::from_slice(&fs::read(path).expect("there")).expect("PEFT writes JSON");
    // The keys in which this adapter differs from a plain adapter that PEFT wrote.
    let own = [
        ("base_model_name_or_path", json!("google/gemma-4-E2B-it")),
        ("lora_alpha", json!(16)),
        ("lora_dropout", json!(0.05)),
        ("r", json!(3)),
        ("target_modules", json!(r"model\.layers\.((0|1|2|3)\.(self_attn\.q_proj|mlp\.down_proj))")),
    ];
    for (key, value) in &ours {
        let expected = own.iter().find(|(k, _)| k == key).map_or(&theirs[key], |(_, v)| v);
        assert_eq!(value, expected, "{key}");
    }
    let again = peft::serialize(&adapter, Naming::causal_lm(&config), &OPTIONS).expect("sound");
    assert_eq!(again[1].1, bytes, "the same adapter gives the same bytes");
}

#[test]
fn an_invalid_adapter_is_not_written() {
    let mut bad = adapter(&slots(&odd_config(), &[Module::Proj]));
    bad.pairs.values_mut().nth(2).expect("four layers").b[5] = f32::NAN;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let error = peft::write(dir.path(), &bad, Naming::causal_lm(&odd_config()), &OPTIONS)
        .expect_err("NaN")
        .to_string();
    assert!(error.contains("lora_B of model.layers.2.per_layer_projection contains NaN"), "{error}");
    let empty = Adapter { pairs: BTreeMap::new(), ..bad };
    let error = peft::write(dir.path(), &empty, Naming::causal_lm(&odd_config()), &OPTIONS)
        .expect_err("empty")
        .to_string();
    assert!(error.contains("it has no matrices"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 0, "nothing was written");
}

// --- target_modules ---

/// Linear modules and their parents in one text layer of transformers 5.23; some layers have fewer.
const IN_LAYER: [&str; 20] = [
    "",
    ".self_attn",
    ".self_attn.q_proj",
    ".self_attn.q_norm",
    ".self_attn.k_proj",
    ".self_attn.k_norm",
    ".self_attn.v_proj",
    ".self_attn.v_norm",
    ".self_attn.o_proj",
    ".mlp",
    ".mlp.gate_proj",
    ".mlp.up_proj",
    ".mlp.down_proj",
    ".mlp.act_fn",
    ".per_layer_input_gate",
    ".per_layer_projection",
    ".act_fn",
    ".input_layernorm",
    ".post_attention_layernorm",
    ".post_per_layer_input_norm",
];

/// Modules of `Gemma4ForConditionalGeneration` outside the text layers, `0` for each layer (transformers 5.23, printed
/// by `named_modules`).
const TOWERS: [&str; 34] = [
    "lm_head",
    "model",
    "model.audio_tower",
    "model.audio_tower.layers.0.feed_forward1.ffw_layer_1.linear",
    "model.audio_tower.layers.0.feed_forward2.ffw_layer_2",
    "model.audio_tower.layers.0.lconv1d.linear_start",
    "model.audio_tower.layers.0.lconv1d.linear_start.linear",
    "model.audio_tower.layers.0.self_attn.k_proj",
    "model.audio_tower.layers.0.self_attn.k_proj.linear",
    "model.audio_tower.layers.0.self_attn.post",
    "model.audio_tower.layers.0.self_attn.q_proj",
    "model.audio_tower.layers.0.self_attn.q_proj.linear",
    "model.audio_tower.layers.0.self_attn.relative_k_proj",
    "model.audio_tower.layers.0.self_attn.v_proj",
    "model.audio_tower.layers.0.self_attn.v_proj.linear",
    "model.audio_tower.output_proj",
    "model.embed_audio.embedding_projection",
    "model.embed_vision.embedding_projection",
    "model.vision_tower",
    "model.vision_tower.encoder.layers.0",
    "model.vision_tower.encoder.layers.0.mlp.down_proj",
    "model.vision_tower.encoder.layers.0.mlp.down_proj.linear",
    "model.vision_tower.encoder.layers.0.mlp.gate_proj",
    "model.vision_tower.encoder.layers.0.mlp.gate_proj.linear",
    "model.vision_tower.encoder.layers.0.mlp.up_proj",
    "model.vision_tower.encoder.layers.0.mlp.up_proj.linear",
    "model.vision_tower.encoder.layers.0.self_attn.k_proj",
    "model.vision_tower.encoder.layers.0.self_attn.k_proj.linear",
    "model.vision_tower.encoder.layers.0.self_attn.o_proj",
    "model.vision_tower.encoder.layers.0.self_attn.o_proj.linear",
    "model.vision_tower.encoder.layers.0.self_attn.q_proj",
    "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear",
    "model.vision_tower.encoder.layers.0.self_attn.v_proj",
    "model.vision_tower.encoder.layers.0.self_attn.v_proj.linear",
];

/// Modules of the text model outside its layers.
const TEXT: [&str; 6] =
    ["", ".embed_tokens", ".embed_tokens_per_layer", ".layers", ".norm", ".per_layer_model_projection"];

/// Every name that a module of either class could have, with `layers` layers.
fn every_module(layers: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for layer in 0..layers {
        names.extend(TOWERS.map(|name| name.replace(".0", &format!(".{layer}"))));
        for text in ["model", "model.language_model"] {
            names.extend(TEXT.map(|name| format!("{text}{name}")));
            names.extend(IN_LAYER.map(|name| format!("{text}.layers.{layer}{name}")));
        }
    }
    names
}

#[test]
fn target_modules_match_exactly_the_slots() {
    // 24 layers, so that 1, 2, 12 and 21 could be confused. The last four share keys and values.
    let mut config = odd_config();
    config.layers = (0..24).map(|i| config.layers[if i < 20 { i % 2 } else { 2 + i % 2 }].clone()).collect();
    let all = slots(&config, &Module::ALL);
    let odd: Vec<Slot> = all
        .iter()
        .copied()
        .filter(|s| match s.module {
            Module::AttnQ => s.layer % 3 == 0,
            Module::FfnUp => s.layer == 2 || s.layer > 11,
            Module::Proj => s.layer == 21,
            _ => false,
        })
        .collect();
    let only = |modules: &[Module]| slots(&config, modules);
    let cases = [
        all.clone(),
        odd,
        all[5..6].to_vec(),
        only(&[Module::AttnK, Module::AttnV]),
        only(&[Module::FfnGate]),
    ];
    let names = every_module(24);
    // 24 layers × 20 names × 2 classes, 2 × 6 names beside them, and the towers.
    assert!(names.len() > 960 + 12 + 24 * 20, "only {} names", names.len());
    for slots in &cases {
        for naming in NAMINGS {
            let pattern = naming(&config).target_modules(slots);
            // PEFT uses re.fullmatch.
            let whole = Regex::new(&format!("^(?:{pattern})$")).expect("a regular expression");
            let found: BTreeSet<&String> = names.iter().filter(|name| whole.is_match(name)).collect();
            let expected: BTreeSet<String> = slots.iter().map(|s| naming(&config).module(s)).collect();
            assert_eq!(found, expected.iter().collect(), "{pattern}");
        }
    }
}

// --- errors ---

/// A valid folder with q and k of the model with special cases, to be damaged.
struct Folder {
    dir: tempfile::TempDir,
    config: Config,
    slots: Vec<Slot>,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Folder {
    fn new() -> Folder {
        let config = odd_config();
        let slots = slots(&config, &[Module::AttnQ, Module::AttnK]);
        let dir = tempfile::tempdir().expect("a temporary folder");
        peft::write(dir.path(), &adapter(&slots), Naming::causal_lm(&config), &OPTIONS).expect("written");
        let bytes = fs::read(dir.path().join("adapter_model.safetensors")).expect("there");
        let file = SafeTensors::deserialize(&bytes).expect("sound");
        let copy = |(name, t): (&str, TensorView)| {
            (name.to_owned(), (t.dtype(), t.shape().to_vec(), t.data().to_vec()))
        };
        Folder { dir, config, slots, tensors: file.iter().map(copy).collect() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write_tensors(&self) {
        let views = self.tensors.iter().map(|(name, (dtype, shape, data))| {
            (name, TensorView::new(*dtype, shape.clone(), data).expect("a sound tensor"))
        });
        fs::write(
            self.path("adapter_model.safetensors"),
            safetensors::serialize(views, None).expect("sound"),
        )
        .expect("written");
    }

    fn read(&self) -> Result<Adapter, Error> {
        peft::read(self.dir.path(), &self.config, &self.slots)
    }

    /// The error must name the file, what was found and what to do.
    fn assert_refused(&self, expected: &[&str]) {
        let error = self.read().expect_err(&format!("expected {expected:?}")).to_string();
        for part in expected {
            assert!(error.contains(part), "expected {part:?} in: {error}");
        }
        assert!(error.contains(&*self.dir.path().to_string_lossy()), "no path in: {error}");
        assert!(!error.contains('\n'), "more than one line: {error}");
    }
}

const Q0: &str = "base_model.model.model.layers.0.self_attn.q_proj";

#[test]
fn wrong_configurations_are_refused() {
    let file = "adapter_config.json: ";
    let cases: &[(&str, Value, &str)] = &[
        ("peft_type", json!("LOHA"), "peft_type is \"LOHA\", expected \"LORA\""),
        ("peft_type", Value::Null, "peft_type is null, expected \"LORA\""),
        ("r", json!(0), "r is 0, expected a whole number from 1 to 65536"),
        ("r", json!(-4), "r is -4, expected a whole number from 1 to 65536"),
        ("r", json!("8"), "r is \"8\", expected a whole number from 1 to 65536"),
        ("r", json!((1u64 << 61) + 3), "r is 2305843009213693955, expected a whole number from 1 to 65536"),
        ("lora_alpha", json!(0), "lora_alpha is 0, expected a number other than 0"),
        ("lora_alpha", json!("16"), "lora_alpha is \"16\", expected a number other than 0"),
        ("use_rslora", json!("yes"), "use_rslora is \"yes\", expected true or false"),
        ("use_dora", json!(true), "use_dora is true: DoRA is not supported; use a plain LoRA adapter"),
        (
            "rank_pattern",
            json!({"q_proj": 0}),
            "rank_pattern has 0 for \"q_proj\", expected a whole number from 1 to 65536",
        ),
        ("rank_pattern", json!([4]), "rank_pattern is [4], expected an object of module names"),
        (
            "alpha_pattern",
            json!({"q_proj": "4"}),
            "alpha_pattern has \"4\" for \"q_proj\", expected a number other than 0",
        ),
        (
            "alpha_pattern",
            json!({"q_proj(": 4}),
            "alpha_pattern has \"q_proj(\", expected a module's name or a regular expression",
        ),
        (
            "rank_pattern",
            json!({"\\pL{60}N": 4}),
            "rank_pattern has \"\\\\pL{60}N\", which is too large; expected a module's name",
        ),
        (
            "alpha_pattern",
            (0..1025).map(|n| (n.to_string(), json!(1))).collect::<Map<_, _>>().into(),
            "alpha_pattern has 1025 entries, expected at most 1024",
        ),
        (
            "target_parameters",
            json!(["mlp.experts.weight"]),
            "target_parameters has \"mlp.experts.weight\", expected \"experts.gate_up_proj\" or \"experts.down_proj\"",
        ),
        ("trainable_token_indices", json!([5]), "trained token embeddings is not supported"),
        ("modules_to_save", json!(["lm_head"]), "modules_to_save is [\"lm_head\"]: fully trained modules"),
        (
            "layer_replication",
            json!([[0, 4], [2, 5]]),
            "layer_replication is [[0,4],[2,5]]: replicated layers is not",
        ),
        ("lora_bias", json!(true), "lora_bias is true: a bias on lora_B"),
        ("bias", json!("lora_only"), "bias is \"lora_only\", expected \"none\""),
        ("init_lora_weights", json!("pissa_niter_16"), "\"pissa_niter_16\", which also changed the base"),
    ];
    for (key, value, expected) in cases {
        let folder = Folder::new();
        let path = folder.path("adapter_config.json");
        let mut config: Map<String, Value> =
            serde_json::from_slice(&fs::read(&path).expect("there")).expect("JSON");
        config.insert((*key).into(), value.clone());
        fs::write(&path, serde_json::to_vec(&config).expect("JSON")).expect("written");
        folder.assert_refused(&[file, expected]);
    }
    for (text, expected) in [
        (&b"{\"peft_type\": \"LORA\", \"r\": 4"[..], "expected a JSON object: EOF"),
        (b"[]", "expected a JSON object: invalid type"),
        (b"\xff\xfe", "expected a JSON object"),
        (b"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": NaN}", "expected a JSON object"),
        (b"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 1e999}", "expected a JSON object"),
        (
            b"{\"peft_type\": \"LORA\", \"lora_alpha\": 4}",
            "r is missing, expected a whole number from 1 to 65536",
        ),
        (b"{\"peft_type\": \"LORA\", \"r\": 4}", "lora_alpha is missing, expected a number"),
    ] {
        let folder = Folder::new();
        fs::write(folder.path("adapter_config.json"), text).expect("written");
        folder.assert_refused(&[file, expected]);
    }
}

#[test]
fn wrong_tensors_are_refused() {
    type Damage = fn(&mut Folder);
    fn rename(folder: &mut Folder, from: &str, to: &str) {
        let tensor = folder.tensors.remove(&format!("{Q0}.{from}")).expect("there");
        folder.tensors.insert(to.into(), tensor);
    }
    fn copy(folder: &mut Folder, to: &str) {
        let tensor = folder.tensors[&format!("{Q0}.lora_A.weight")].clone();
        folder.tensors.insert(to.into(), tensor);
    }
    fn set(folder: &mut Folder, index: usize, value: f32) {
        let tensor = folder.tensors.get_mut(&format!("{Q0}.lora_A.weight")).expect("there");
        tensor.2[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes());
    }
    fn shape(folder: &mut Folder, shape: &[usize]) {
        folder.tensors.get_mut(&format!("{Q0}.lora_A.weight")).expect("there").1 = shape.into();
    }
    let cases: &[(Damage, &[&str])] = &[
        (
            |f| shape(f, &[16, 3]),
            &["q_proj.lora_A.weight is [16, 3], expected [r, in] = [3, 16]; use an adapter of this model"],
        ),
        (|f| shape(f, &[48]), &["is [48], expected [r, in] = [3, 16]"]),
        (
            |f| {
                let tensor = f.tensors.get_mut(&format!("{Q0}.lora_B.weight")).expect("there");
                tensor.1 = vec![16, 3];
                tensor.2.truncate(16 * 3 * 4);
            },
            &["q_proj.lora_B.weight is [16, 3], expected [out, r] = [32, 3]"],
        ),
        (
            |f| f.tensors.get_mut(&format!("{Q0}.lora_A.weight")).expect("there").0 = Dtype::I32,
            &["q_proj.lora_A.weight is I32, expected F32, F16 or BF16; convert the adapter"],
        ),
        (|f| set(f, 17, f32::NAN), &["q_proj.lora_A.weight contains NaN at [1, 1]"]),
        (|f| set(f, 47, f32::NEG_INFINITY), &["q_proj.lora_A.weight contains -inf at [2, 15]"]),
        (
            |f| drop(f.tensors.remove(&format!("{Q0}.lora_B.weight"))),
            &["model.layers.0.self_attn.q_proj has a lora_A but no lora_B; export"],
        ),
        (
            |f| drop(f.tensors.remove(&format!("{Q0}.lora_A.weight"))),
            &["model.layers.0.self_attn.q_proj has a lora_B but no lora_A"],
        ),
        (
            |f| f.tensors.retain(|name, _| !name.contains("q_proj") || name.contains("layers.0.")),
            &[
                "no tensors for model.layers.1.self_attn.q_proj, model.layers.2.self_attn.q_proj, model.layers.3.self",
            ],
        ),
        (|f| f.tensors.clear(), &["no tensors for model.layers.0.self_attn.q_proj, "]),
        (
            |f| copy(f, "base_model.model.model.layers.2.self_attn.k_proj.lora_A.weight"),
            &[
                "layers.2.self_attn.k_proj.lora_A.weight (layer 2 shares the keys of layer 0 and has no k_proj)",
            ],
        ),
        (
            |f| copy(f, "base_model.model.model.layers.3.self_attn.v_proj.lora_A.weight"),
            &["(layer 3 shares the values of layer 1 and has no v_proj)"],
        ),
        (
            |f| copy(f, "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"),
            &["(layer 1 uses its keys as values and has no v_proj)"],
        ),
        (
            |f| copy(f, "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"),
            &["(not trained by the recipe; add up_proj to lora.target_modules)"],
        ),
        (
            |f| copy(f, "base_model.model.model.layers.4.mlp.up_proj.lora_A.weight"),
            &["layers.4.mlp.up_proj.lora_A.weight (the model has 4 layers, numbered from 0)"],
        ),
        (
            |f| {
                f.config.per_layer_width = 0;
                copy(f, "base_model.model.model.layers.0.per_layer_projection.lora_A.weight");
            },
            &["(this model has no per-layer embeddings and no per_layer_projection)"],
        ),
        (
            |f| copy(f, "base_model.model.lm_head.lora_A.weight"),
            &["lm_head.lora_A.weight (not a LoRA matrix"],
        ),
        (
            |f| copy(f, "base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight"),
            &["layers.00.self_attn.q_proj.lora_A.weight (not a LoRA matrix"],
        ),
        (
            |f| copy(f, "base_model.model.model.layers.99999999999999999999.mlp.up_proj.lora_A.weight"),
            &["(not a LoRA matrix of a text layer)"],
        ),
        (
            |f| rename(f, "lora_A.weight", "blk.0.attn_q.weight.lora_a"),
            &["blk.0.attn_q.weight.lora_a (not a LoRA"],
        ),
        (
            |f| copy(f, &format!("{Q0}.lora_A.default.weight")),
            &["present twice, under two names: lora_A of model.layers.0.self_attn.q_proj; keep one"],
        ),
        (
            |f| copy(f, "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight"),
            &["present twice, under two names: lora_A of model.layers.0.self_attn.q_proj"],
        ),
    ];
    let all_at_once: (Damage, &[&str]) = (
        |f| {
            shape(f, &[16, 3]);
            f.tensors.get_mut(&format!("{Q0}.lora_B.weight")).expect("there").0 = Dtype::I32;
            copy(f, "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight");
            copy(f, "base_model.model.lm_head.lora_A.weight");
            drop(f.tensors.remove("base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"));
            f.tensors.retain(|name, _| !name.contains("layers.3.self_attn.q_proj"));
        },
        &[
            "tensors that match no trained module: base_model.model.lm_head.lora_A.weight (not a LoRA matrix of a text \
             layer), base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight (the model has 4 layers, numbered from 0)",
            "q_proj.lora_A.weight is [16, 3], expected [r, in] = [3, 16]; use an adapter",
            "q_proj.lora_B.weight is I32, expected F32, F16 or BF16; convert",
            "model.layers.1.self_attn.q_proj has a lora_A but no lora_B; export",
            "no tensors for model.layers.3.self_attn.q_proj; remove",
        ],
    );
    for (damage, expected) in cases.iter().chain([&all_at_once]) {
        let mut folder = Folder::new();
        damage(&mut folder);
        folder.write_tensors();
        folder.assert_refused(&[&["adapter_model.safetensors: "], *expected].concat());
    }
}

#[test]
fn damaged_files_are_refused() {
    let sound = fs::read(Folder::new().path("adapter_model.safetensors")).expect("there");
    let header = |length: u64| [&length.to_le_bytes()[..], &sound[8..]].concat();
    let cases = [
        (sound[..sound.len() - 1].to_vec(), "not a complete safetensors file: incomplete metadata"),
        ([&sound[..], b"x"].concat(), "not a complete safetensors file: incomplete metadata"),
        (sound[..100].to_vec(), "not a complete safetensors file: invalid header length"),
        (sound[..5].to_vec(), "not a complete safetensors file: header too small"),
        (vec![], "not a complete safetensors file: header too small"),
        (header(u64::MAX), "not a complete safetensors file: header too large"),
        (header(1 << 40), "not a complete safetensors file: header too large"),
        (header(90_000_000), "not a complete safetensors file: invalid header length"),
        (header(10), "not a complete safetensors file: invalid JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "is a Git LFS pointer"),
        (b"PK\x03\x04 a pickle, renamed".to_vec(), "not a complete safetensors file"),
    ];
    for (bytes, expected) in cases {
        let folder = Folder::new();
        fs::write(folder.path("adapter_model.safetensors"), bytes).expect("written");
        folder.assert_refused(&["adapter_model.safetensors: ", expected]);
    }
    // Truncation anywhere, and any wrong byte in the header, gives an error or an adapter, but never a panic.
    let folder = Folder::new();
    let end = 8 + u64::from_le_bytes(sound[..8].try_into().expect("eight bytes")) as usize;
    for i in (0..end).step_by(3) {
        let mut bytes = sound.clone();
        bytes[i] ^= 0x11;
        fs::write(folder.path("adapter_model.safetensors"), bytes).expect("written");
        let _ = folder.read();
        fs::write(folder.path("adapter_model.safetensors"), &sound[..i]).expect("written");
        assert!(folder.read().is_err(), "a file cut at {i} was read");
    }
}

#[test]
fn missing_files_are_named() {
    let folder = Folder::new();
    let (dir, config, slots) = (folder.dir.path(), &folder.config, &folder.slots[..]);
    let read = |dir: &Path| peft::read(dir, config, slots).expect_err("nothing to read").to_string();
    let error = read(&dir.join("nowhere"));
    assert!(
        error.contains("nowhere: does not exist; give a folder that contains adapter_config.json"),
        "{error}"
    );
    let error = read(&dir.join("adapter_model.safetensors"));
    assert!(error.contains("adapter_model.safetensors: is a file; give the folder"), "{error}");
    fs::remove_file(folder.path("adapter_model.safetensors")).expect("removed");
    folder.assert_refused(&["has no adapter_model.safetensors; a PEFT folder contains"]);
    fs::write(folder.path("adapter_model.bin"), "x").expect("written");
    folder.assert_refused(&["contains adapter_model.bin, a pickle, which may run code and is not read"]);
    let found = rullama_train::adapter::detect(dir).expect_err("a pickle").to_string();
    assert!(found.contains("contains adapter_model.bin, a pickle"), "{found}");
    fs::remove_file(folder.path("adapter_config.json")).expect("removed");
    folder.assert_refused(&["has no adapter_config.json"]);
}

// --- folders written by other programs ---

#[test]
fn different_ranks_and_alphas_become_one_adapter() {
    let mut folder = Folder::new();
    let halves = folder.tensors.iter_mut().filter(|(name, _)| name.contains("lora_B"));
    halves
        .flat_map(|(_, b)| b.2.as_chunks_mut().0)
        .enumerate()
        .for_each(|(i, b)| *b = (i as f32).sin().to_le_bytes());
    folder.write_tensors();
    let whole = folder.read().expect("sound");
    // Layer 1's q has rank 1: the first row of A and the first column of B.
    let q1 = "base_model.model.model.layers.1.self_attn.q_proj";
    let a = folder.tensors.get_mut(&format!("{q1}.lora_A.weight")).expect("there");
    (a.1[0], a.2) = (1, a.2[..4 * a.1[1]].to_vec());
    let b = folder.tensors.get_mut(&format!("{q1}.lora_B.weight")).expect("there");
    (b.1[1], b.2) = (1, b.2.chunks_exact(12).flat_map(|row| row[..4].to_vec()).collect());
    folder.write_tensors();
    let set = |patterns: &[(&str, Value)]| {
        let path = folder.path("adapter_config.json");
        let mut config: Map<String, Value> =
            serde_json::from_slice(&fs::read(&path).expect("there")).expect("JSON");
        config.extend(patterns.iter().map(|(key, value)| (key.to_string(), value.clone())));
        fs::write(&path, serde_json::to_vec(&config).expect("JSON")).expect("written");
    };
    folder
        .assert_refused(&["layers.1.self_attn.q_proj.lora_A.weight is [1, 16], expected [r, in] = [3, 16]"]);
    // PEFT uses the first pattern that matches from the start, or from after a dot, to the end.
    let rank = json!({"attn.q_proj": 7, r"layers\.1\.self_attn\.q_proj": 1, "q_proj": 3});
    set(&[
        ("rank_pattern", rank),
        ("alpha_pattern", json!({"model.layers.[03].self_attn.q_proj": 5, "layers.0.self_attn.k_proj": 48})),
    ]);
    for rslora in [false, true] {
        set(&[("use_rslora", json!(rslora)), ("lora_alpha", json!(16))]);
        let read = folder.read().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((read.rank, read.pairs.len()), (3, whole.pairs.len()));
        for (slot, pair) in &read.pairs {
            let q = slot.module == Module::AttnQ;
            let (r, alpha): (usize, f64) = match slot.layer {
                1 if q => (1, 16.0),
                0 | 3 if q => (3, 5.0),
                0 => (3, 48.0),
                _ => (3, 16.0),
            };
            let scale = alpha / if rslora { (r as f64).sqrt() } else { r as f64 };
            let from = &whole.pairs[slot];
            for (n, row) in pair.b.chunks_exact(3).enumerate() {
                for (j, &b) in row.iter().enumerate() {
                    let expected = if j < r { scale * f64::from(from.b[3 * n + j]) } else { 0.0 };
                    let found = read.scale() * f64::from(b);
                    assert!(
                        (found - expected).abs() <= 1e-6 * expected.abs(),
                        "{slot:?}: {found}, expected {expected}"
                    );
                }
            }
            let (kept, filled) = pair.a.split_at(r * slot.in_features);
            assert!(kept == &from.a[..kept.len()] && filled.iter().all(|a| *a == 0.0), "{slot:?}");
        }
    }
}

#[test]
fn other_spellings_and_half_precision_are_read() {
    let mut folder = Folder::new();
    let expected = folder.read().expect("sound");
    let half_of = |x: f32| f16::from_f32(x).to_f32();
    let mut renamed = BTreeMap::new();
    for (i, (name, (_, shape, data))) in std::mem::take(&mut folder.tensors).into_iter().enumerate() {
        let name = name.replace("model.model.layers", "model.model.language_model.layers");
        let values = data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b).clamp(-1.0, 1.0));
        let (dtype, data): (Dtype, Vec<u8>) = match i % 2 {
            0 => (Dtype::F16, values.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect()),
            _ => (Dtype::BF16, values.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect()),
        };
        renamed.insert(name.replace("lora_A.weight", "lora_A.default.weight"), (dtype, shape, data));
    }
    folder.tensors = renamed;
    folder.write_tensors();
    let read = folder.read().unwrap_or_else(|e| panic!("{e}"));
    for (slot, Pair { a, b }) in &read.pairs {
        // Names alternate A, B in sorted order: A is F16 and B BF16.
        let (full_a, full_b) = (&expected.pairs[slot].a, &expected.pairs[slot].b);
        assert!(a.iter().zip(full_a).all(|(x, full)| *x == half_of(*full)), "{slot:?}: A");
        let half_b = |full: f32| bf16::from_f32(full.clamp(-1.0, 1.0)).to_f32();
        assert!(b.iter().zip(full_b).all(|(x, full)| *x == half_b(*full)), "{slot:?}: B");
    }
    assert_eq!(read.pairs.len(), 6, "q of four layers, k of two");
}

/// mlx-lm has the rows of transformers, transposed. It has gate and up of Granite 4 apart: the same `A` for both, and halves of `B`.
#[test]
fn mlx_lm_files_have_the_rows_of_transformers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["ernie4_5", "glm4", "phi3", "granite4", "hunyuan-dense"] {
        let (config, theirs) = (config_of(name), golden(name).join("adapter"));
        let adapter = read_any(&theirs, &config, None).expect("PEFT's adapter");
        let options = WriteOptions { base_model: name, dropout: 0.0, fingerprint: None, vocabulary: None };
        let path = adapter::write(&folder.path().join(name), Format::Mlx, &adapter, &config, &options);
        let ours = fs::read(path.expect("it is read back").join("adapters.safetensors")).expect("there");
        let ours = SafeTensors::deserialize(&ours).expect("sound");
        let theirs = fs::read(theirs.join("adapter_model.safetensors")).expect("there");
        let theirs = SafeTensors::deserialize(&theirs).expect("sound");
        let mut count = 0;
        for (key, tensor) in theirs.tensors() {
            let floats: Vec<[u8; 4]> = tensor.data().as_chunks::<4>().0.to_vec();
            let columns = tensor.shape()[1];
            let key = key.trim_start_matches("base_model.model.").trim_end_matches(".weight");
            let (module, is_a) = (&key[..key.len() - 7], key.ends_with('A'));
            let (paths, rows) = match name == "granite4" {
                true if module.ends_with("input_linear") => {
                    let path = |name: &str| module.replace("shared_mlp.input_linear", name);
                    (vec![path("mlp.gate_proj"), path("mlp.up_proj")], floats.len() / columns)
                }
                _ => (
                    vec![module.replace("shared_mlp.output_linear", "mlp.down_proj")],
                    floats.len() / columns,
                ),
            };
            for (i, path) in paths.iter().enumerate() {
                let part = rows / paths.len();
                let own = if is_a { 0..rows } else { i * part..(i + 1) * part };
                let row = |c: usize| own.clone().map(move |r| r * columns + c);
                let expected: Vec<u8> = (0..columns).flat_map(row).flat_map(|at| floats[at]).collect();
                let found = ours.tensor(&format!("{path}.lora_{}", if is_a { 'a' } else { 'b' }));
                let found = found.unwrap_or_else(|_| panic!("{name} has no {path}"));
                assert!(found.data() == expected, "{name}: {path}");
                count += 1;
            }
        }
        assert_eq!(ours.len(), count, "{name}");
    }
}

/// llama.cpp applies these files to the logits that PyTorch gives: rows of queries and keys in the base's order, gate and up of
/// experts as two tensors.
#[test]
fn gguf_lora_files_equal_those_that_llama_cpp_applies() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let further = [
        "qwen3vl",
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
        "ernie4_5",
        "glm4",
        "phi3",
        "hunyuan-dense",
        "lfm2",
        "lfm2moe",
        "deepseek2",
        "glm4moelite",
    ];
    for name in ["llama", "qwen35", "qwen35moe", "qwen3moe", "gpt-oss"].into_iter().chain(further) {
        let config = config_of(name);
        let adapter = read_any(&golden(name).join("adapter"), &config, None).expect("PEFT's adapter");
        let expected = Gguf::open(&golden(name).join("lora-f32.gguf")).expect("an adapter");
        let options = WriteOptions { base_model: name, dropout: 0.0, fingerprint: None, vocabulary: None };
        let write = |format| adapter::write(&folder.path().join(name), format, &adapter, &config, &options);
        write(Format::GgufLoraF16).expect("it is read back");
        let path = write(Format::GgufLora).expect("it is read back");
        let found = Gguf::open(&path).expect("an adapter");
        assert_eq!(found.tensors().len(), expected.tensors().len());
        for tensor in expected.tensors() {
            let own = found.tensor(&tensor.name).unwrap_or_else(|| panic!("{name} has no {}", tensor.name));
            assert_eq!(own.shape, tensor.shape, "{name}: {}", tensor.name);
            assert!(found.data(own) == expected.data(tensor), "{name}: {}", tensor.name);
        }
        let read = read_any(&golden(name).join("lora-f32.gguf"), &config, None).expect("an adapter");
        assert_eq!(bits(&read), bits(&adapter), "{name}");
    }
}
