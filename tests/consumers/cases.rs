//! The models and adapters that are exported for the other programs.

use std::path::{Path, PathBuf};

use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::base::{Base, Gguf, Module};
use rullama_train::gpu::{Backend, Gpu, KernelSetting};
use serde_json::json;

use super::work::Work;

/// Maximum difference of llama.cpp on the quantized file, where it rounds activations.
const QUANTIZED: f64 = 5e-2;
/// [`QUANTIZED`] for the other families, whose small models have two layers of random weights.
const QUANTIZED_FAMILY: f64 = 1e-1;
/// [`QUANTIZED`] for mixtures: where llama.cpp rounds activations, its router sometimes chooses another expert.
const QUANTIZED_MIXTURE: f64 = 5e-1;

/// Writes the files for the scripts to one folder per model in the build folder.
pub fn prepare() -> Vec<PathBuf> {
    let families =
        ["qwen2", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "llama", "gemma3", "gpt-oss"].map(family);
    [tiny(), mixture()].into_iter().chain(families).collect()
}

/// The model that is part of the program.
fn tiny() -> PathBuf {
    let base = Base::tiny().expect("part of the program");
    let work = work("consumers", Path::new("models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf"), base, QUANTIZED);
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
    let work = golden_work("consumers-mixture", golden, QUANTIZED_MIXTURE);
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
    let quantized = if ["qwen35moe", "qwen3moe", "gpt-oss"].contains(&name) {
        QUANTIZED_MIXTURE
    } else {
        QUANTIZED_FAMILY
    };
    let work = golden_work(&format!("consumers-{name}"), &golden, quantized);
    let in_f32 = work.in_f32();
    let every = work.golden_adapter(&golden);
    let rslora = Adapter { rslora: true, ..work.random(&Module::ALL, 5, 1.0, 1) };
    // A layer with a delta net has the last two in their place.
    let mixing = [Module::AttnQ, Module::AttnK, Module::AttnQkv, Module::SsmOut];
    let rotated = work.random(&mixing, 3, 4.0, 2);
    let ids = ids(&work);
    let cases = [
        work.case(&in_f32, "every-matrix", &every, &ids, json!("adapter"), json!([])),
        work.case(&in_f32, "rslora", &rslora, &ids, json!(null), json!([])),
        work.case(&in_f32, "queries-and-keys", &rotated, &ids, json!(null), json!([])),
    ];
    work.write("cases.json", &json!(cases));
    work.without_replies("every-matrix");
    work.folder
}

/// Tokens of the golden models.
fn ids(work: &Work) -> Vec<u32> {
    (0..90).map(|i| (267 + i * i * 7 % 245) % work.base.config().vocab as u32).collect()
}

fn golden_work(name: &str, golden: &Path, quantized: f64) -> Work {
    let file = golden.join("model.gguf");
    let base = Base::from_gguf(Gguf::open(&file).expect("sound"), name).expect("a model");
    work(name, &file, base, quantized)
}

/// A new folder in the build folder with a copy of the base's `file`.
fn work(name: &str, file: &Path, base: Base, quantized: f64) -> Work {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("created");
    std::fs::copy(file, folder.join("base.gguf")).expect("copied");
    let gpu = block_on(Gpu::open(Backend::Auto, None, false)).expect("a device");
    let gpu = gpu.running(KernelSetting::F32).expect("every device supports f32");
    Work { gpu, base, folder, quantized }
}
