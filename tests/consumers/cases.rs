//! The models and adapters that are exported for the other programs.

use std::path::{Path, PathBuf};

use pollster::block_on;
use rullama_train::adapter::Format;
use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::base::{Base, Gguf, Module};
use rullama_train::gpu::{Gpu, GpuOptions, KernelSetting};
use serde_json::json;

use super::base_file;
use super::golden::KIN;
use super::work::Work;

/// Maximum difference of llama.cpp on the quantized file, where it rounds activations.
const QUANTIZED: f64 = 5e-2;
/// [`QUANTIZED`] for the other families, whose small models have two layers of random weights.
const QUANTIZED_FAMILY: f64 = 1e-1;
/// [`QUANTIZED`] for mixtures: where llama.cpp rounds activations, its router sometimes chooses another expert.
const QUANTIZED_MIXTURE: f64 = 5e-1;

/// The golden models of other families than Gemma 4, beside [`KIN`].
const FAMILIES: [&str; 8] =
    ["qwen2", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "llama", "gemma3", "gpt-oss"];

/// Writes the files for the scripts to one folder per model in the build folder.
pub fn prepare() -> Vec<PathBuf> {
    let families = FAMILIES.into_iter().chain(KIN).map(family);
    [tiny(), mixture()].into_iter().chain(families).collect()
}

/// The model that is part of the program.
fn tiny() -> PathBuf {
    let base = Base::tiny().expect("part of the program");
    let file = std::fs::read("models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf").expect("part of the repository");
    let work = work("consumers", &file, base, QUANTIZED);
    let in_f32 = work.in_f32();

    let trained = work.trained();
    let rslora = Adapter { rslora: true, ..work.random(&Module::ALL, 5, 6.0, 1) };
    let qv = work.random(&[Module::AttnQ, Module::AttnV, Module::Proj], 3, 4.0, 2);
    let sum = Adapter::combine(&[(&trained, 0.7), (&qv, 0.3)]).expect("one model's");
    let (patterns, original) = work.patterns();
    let ids = work.conversation();
    let cases = [
        work.case(&in_f32, "trained", &trained, &ids, json!(null), json!([])),
        work.case(&in_f32, "rslora", &rslora, &ids, json!(null), json!([])),
        work.case(&in_f32, "some-modules", &qv, &ids, json!(null), json!([])),
        work.case(&in_f32, "patterns", &patterns, &ids, original, json!([])),
        work.case(&in_f32, "sum", &sum, &ids, json!(null), json!([["trained", 0.7], ["some-modules", 0.3]])),
    ];
    work.write("cases.json", &json!(cases));
    work.write("replies.json", &work.replies("trained", &trained));
    work.folder
}

/// The small mixture of experts, with adapters of the experts' matrices.
fn mixture() -> PathBuf {
    let golden = Path::new("tests/golden/moe");
    let bytes = std::fs::read(golden.join("model.gguf")).expect("part of the repository");
    let gguf = Gguf::from_bytes(bytes.clone(), "mixture").expect("sound");
    let base = Base::from_gguf(gguf, "mixture").expect("a model");
    let work = work("consumers-mixture", &bytes, base, QUANTIZED_MIXTURE);
    let in_f32 = work.in_f32();
    let every = work.golden_adapter(golden);
    let alone = work.random(&[Module::FfnGateUpExps, Module::FfnDownExps], 2, 3.0, 4);
    let gate_up = Adapter { rslora: true, ..work.random(&[Module::FfnGateUpExps], 5, 2.0, 5) };
    let down = work.random(&[Module::FfnDownExps, Module::AttnQ], 1, 1.0, 6);
    let ids = ids(&work);
    let cases = [
        work.case(&in_f32, "every-matrix", &every, &ids, json!(null), json!([])),
        work.case(&in_f32, "experts-alone", &alone, &ids, json!(null), json!([])),
        work.case(&in_f32, "gate-and-up", &gate_up, &ids, json!(null), json!([])),
        work.case(&in_f32, "down", &down, &ids, json!(null), json!([])),
    ];
    work.write("cases.json", &json!(cases));
    work.without_replies("every-matrix");
    work.folder
}

/// The small model of a family beside Gemma 4.
fn family(name: &str) -> PathBuf {
    let golden = Path::new("tests/golden").join(name);
    let gguf = Gguf::open(&golden.join("model.gguf")).expect("sound");
    let bytes = base_file::for_others(&gguf, name);
    let gguf = Gguf::from_bytes(bytes.clone(), name).expect("just written");
    let base = Base::from_gguf(gguf, name).expect("a model");
    let mut work = work(&format!("consumers-{name}"), &bytes, base, QUANTIZED_FAMILY);
    if work.base.config().layers.iter().any(|layer| layer.experts.is_some()) {
        work.quantized = QUANTIZED_MIXTURE;
    }
    let in_f32 = work.in_f32();
    // Those that mlx-lm refuses are left out.
    let config = work.base.config();
    let taken = |module: &Module| Format::Mlx.unapplied(config, &slots(config, &[*module])).is_none();
    let modules: Vec<Module> = Module::ALL.into_iter().filter(taken).collect();
    let (every, original) = match base_file::is_whole(name) {
        true => (work.golden_adapter(&golden), json!("adapter")),
        false => (work.random(&modules, 4, 4.0, 3), json!(null)),
    };
    let rslora = Adapter { rslora: true, ..work.random(&modules, 5, 1.0, 1) };
    // A layer with a delta net has the last two in their place.
    let mixing = [Module::AttnQ, Module::AttnK, Module::AttnQkv, Module::SsmOut, Module::AttnQB];
    let rotated = work.random(&mixing, 3, 4.0, 2);
    let ids = ids(&work);
    let mut cases = vec![
        work.case(&in_f32, "every-matrix", &every, &ids, original, json!([])),
        work.case(&in_f32, "rslora", &rslora, &ids, json!(null), json!([])),
        work.case(&in_f32, "queries-and-keys", &rotated, &ids, json!(null), json!([])),
    ];
    if Format::GgufLora.unapplied(work.base.config(), every.pairs.keys()).is_some() {
        // llama.cpp applies those of the other matrices alone.
        let others =
            modules.into_iter().filter(|m| *m == Module::AttnOutput || !m.gguf_name().starts_with("attn_"));
        let others = work.random(&others.collect::<Vec<_>>(), 4, 4.0, 4);
        cases.push(work.case(&in_f32, "applied", &others, &ids, json!(null), json!([])));
    }
    work.write("cases.json", &json!(cases));
    work.without_replies("every-matrix");
    work.folder
}

/// Tokens of the golden models.
fn ids(work: &Work) -> Vec<u32> {
    (0..90).map(|i| (267 + i * i * 7 % 245) % work.base.config().vocab as u32).collect()
}

/// A new folder in the build folder with the `file` of the base.
fn work(name: &str, file: &[u8], base: Base, quantized: f64) -> Work {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("created");
    std::fs::write(folder.join("base.gguf"), file).expect("written");
    let gpu = block_on(Gpu::open(GpuOptions::default())).expect("a device");
    let gpu = gpu.running(KernelSetting::F32).expect("every device supports f32");
    Work { gpu, base, folder, quantized }
}
