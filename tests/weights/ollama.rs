//! Ollama's store, built in a temporary folder.

use super::assert_says;
use crate::gguf_writer::GgufWriter;
use rullama_train::base::{Base, Error, Gguf, ollama};
use std::path::{Path, PathBuf};

const DIGEST: &str = "4e30e2665218745ef463f722c0bf86be0cab6ee676320f1cfadf91e989107448";

/// Writes a manifest with layers `(kind, digest, size)` for `registry.ollama.ai/library/<name>`.
fn manifest(store: &Path, name: &str, layers: &[(&str, &str, usize)]) {
    let layers: Vec<_> = layers
        .iter()
        .map(|(kind, digest, size)| {
            let media_type = format!("application/vnd.ollama.image.{kind}");
            serde_json::json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size})
        })
        .collect();
    let path = store.join("manifests/registry.ollama.ai/library").join(name.replace(':', "/"));
    std::fs::create_dir_all(path.parent().expect("has one")).expect("created");
    let json = serde_json::json!({"schemaVersion": 2, "config": {"digest": "sha256:0"}, "layers": layers});
    std::fs::write(path, json.to_string()).expect("written");
}

fn blob(store: &Path, digest: &str, bytes: &[u8]) -> PathBuf {
    let path = store.join("blobs").join(format!("sha256-{digest}"));
    std::fs::create_dir_all(store.join("blobs")).expect("created");
    std::fs::write(&path, bytes).expect("written");
    path
}

fn resolve(name: &str, store: &Path) -> Result<PathBuf, Error> {
    ollama::resolve(name, &[store.join("elsewhere"), store.to_path_buf()])
}

#[test]
fn a_tag_leads_to_its_gguf() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = GgufWriter::gemma4().bytes();
    let expected = blob(folder.path(), DIGEST, &bytes);
    let layers = [("license", DIGEST, 1), ("model", DIGEST, bytes.len()), ("params", DIGEST, 1)];
    manifest(folder.path(), "gemma4:e2b", &layers);
    manifest(folder.path(), "gemma4:latest", &layers);
    for name in ["gemma4:e2b", "gemma4", "library/gemma4:e2b", "registry.ollama.ai/library/gemma4:latest"] {
        assert_eq!(resolve(name, folder.path()).expect(name), expected, "{name}");
    }
    let gguf = Gguf::open(&expected).expect("sound");
    assert_eq!(Base::from_gguf(gguf, "gemma4:e2b").expect("a model").config().layers.len(), 4);
}

#[test]
fn unusable_models_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path();
    blob(store, DIGEST, b"GGUF");
    manifest(store, "gemma4:e2b", &[("model", DIGEST, 5)]);
    manifest(store, "gemma4:e4b", &[("model", &DIGEST.replace('4', "5"), 4)]);
    manifest(store, "gemma4:e2b-mlx", &[("tensor", DIGEST, 4), ("tensor", DIGEST, 4)]);
    manifest(store, "mine:latest", &[("model", DIGEST, 4), ("adapter", DIGEST, 4)]);
    manifest(store, "remote:latest", &[("license", DIGEST, 4)]);
    manifest(store, "traversal:latest", &[("model", "../../../etc/passwd", 4)]);
    std::fs::write(store.join("manifests/registry.ollama.ai/library/gemma4/broken"), "{").expect("written");

    assert_says(
        "short blob",
        resolve("gemma4:e2b", store),
        &["gemma4:e2b", "4 bytes", "5", "ollama pull gemma4:e2b"],
    );
    assert_says("no blob", resolve("gemma4:e4b", store), &["sha256-5e30", "cannot be read", "ollama pull"]);
    assert_says("MLX", resolve("gemma4:e2b-mlx", store), &["gemma4:e2b-mlx", "MLX", "safetensors"]);
    assert_says("adapter", resolve("mine", store), &["mine", "adapter"]);
    assert_says("no weights", resolve("remote", store), &["remote", "0 model layers"]);
    assert_says("digest", resolve("traversal", store), &["digest", "etc/passwd", "64 hexadecimal"]);
    assert_says("JSON", resolve("gemma4:broken", store), &["manifest", "broken", "ollama pull"]);
    assert_says(
        "cloud",
        resolve("gemma4:31b-cloud", store),
        &["gemma4:31b-cloud", "cloud", "tag of a local model"],
    );
    assert_says("cloud", resolve("gemma4:cloud", store), &["cloud model"]);
    assert_says("name", resolve("../secrets", store), &["../secrets", "namespace"]);
}

#[test]
fn a_missing_model_lists_what_was_searched_and_what_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path();
    let elsewhere = store.join("elsewhere").display().to_string();
    assert_says(
        "empty",
        resolve("gemma4:e2b", store),
        &[&elsewhere, "no models there", "OLLAMA_MODELS", ".gguf"],
    );
    let advice = "check the path, write hf:meta-llama/Llama-3.2-1B for a repository of the Hugging Face Hub, set OLLAMA_MODELS";
    assert_says("a path", resolve("meta-llama/Llama-3.2-1B", store), &[advice]);
    manifest(store, "aya:latest", &[]);
    manifest(store, "gemma4:e4b", &[]);
    let here = store.display().to_string();
    assert_says(
        "other",
        resolve("gemma4:e2b", store),
        &[&here, "gemma4:e4b, aya:latest", "did you mean gemma4:e4b?", "ollama pull"],
    );
}
