//! Finds a model's GGUF in Ollama's store: `name` → manifest → blob.
//!
//! Layout (ollama `manifest/paths.go`): `manifests/<host>/<namespace>/<model>/<tag>` is JSON that lists layers, and
//! the layer with digest `sha256:…` is the file `blobs/sha256-…`.

use super::Error;
use std::path::{Path, PathBuf};

const HOST: &str = "registry.ollama.ai";
const NAMESPACE: &str = "library";
const LAYER: &str = "application/vnd.ollama.image.";
/// Largest template, system message or config, in bytes.
const MAX_TEXT: u64 = 1 << 20;

/// Folders in which Ollama keeps models on this machine, most likely first: `$OLLAMA_MODELS`, the user's folder, and the folder
/// of the Linux service.
pub fn stores() -> Vec<PathBuf> {
    let chosen = std::env::var_os("OLLAMA_MODELS").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = std::env::home_dir().map(|home| home.join(".ollama").join("models"));
    let service = cfg!(target_os = "linux").then(|| PathBuf::from("/usr/share/ollama/.ollama/models"));
    [chosen, home, service].into_iter().flatten().collect()
}

/// The GGUF file of the model `name` (`model:tag`) in the first of `stores` that has it.
pub fn resolve(name: &str, stores: &[PathBuf]) -> Result<PathBuf, Error> {
    let fail = |problem: String| Error::Ollama { name: name.into(), problem };
    let parts = Name::parse(name).map_err(fail)?;
    if parts.tag == "cloud" || parts.tag.ends_with("-cloud") {
        return Err(fail(
            "is a cloud model, its weights are not on this machine; use the tag of a local model".into(),
        ));
    }
    for store in stores {
        let manifest = parts.manifest(store);
        match std::fs::read(&manifest) {
            Ok(json) => return blob(name, &manifest, &json, store).map_err(fail),
            // NotADirectory: a file stands where the path expects a folder, so this model does not exist either.
            Err(e)
                if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {}
            Err(e) => {
                return Err(fail(format!(
                    "cannot read {}: {e}; run as a user who may read it",
                    manifest.display()
                )));
            }
        }
    }
    Err(fail(not_found(name, &parts, stores)))
}

/// Ollama's settings for conversations with a model of its store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chat {
    /// The Go template with which conversations are rendered.
    pub template: Option<String>,
    /// The system message of conversations without one.
    pub system: Option<String>,
    /// Name of the code of Ollama that renders conversations instead of a template.
    pub renderer: Option<String>,
    /// Name of the code of Ollama that reads replies.
    pub parser: Option<String>,
    /// Sampling and stops: a JSON object.
    pub parameters: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Ollama's settings for conversations with the model `name`; `None` if no store has it.
pub fn chat(name: &str, stores: &[PathBuf]) -> Option<Chat> {
    let parts = Name::parse(name).ok()?;
    let of_store = |store: &PathBuf| Some((store.clone(), std::fs::read(parts.manifest(store)).ok()?));
    let (store, json) = stores.iter().find_map(of_store)?;
    let manifest: Manifest = serde_json::from_slice(&json).ok()?;
    let text = |layer: &Layer| {
        let hash = layer.digest.strip_prefix("sha256:").filter(|hash| is_sha256(hash))?;
        let path = store.join("blobs").join(format!("sha256-{hash}"));
        let len = std::fs::metadata(&path).ok()?.len();
        (len <= MAX_TEXT).then(|| std::fs::read_to_string(path).ok())?
    };
    let layer = |kind: &str| {
        manifest.layers.iter().find(|layer| layer.media_type.strip_prefix(LAYER) == Some(kind)).and_then(text)
    };
    let config = manifest.config.as_ref().and_then(text);
    let config: Option<Code> = config.and_then(|config| serde_json::from_str(&config).ok());
    let Code { renderer, parser } = config.unwrap_or_default();
    Some(Chat {
        template: layer("template"),
        system: layer("system"),
        renderer: renderer.filter(|name| !name.is_empty()),
        parser: parser.filter(|name| !name.is_empty()),
        parameters: layer("params").and_then(|text| serde_json::from_str(&text).ok()),
    })
}

/// The full name of a model, `host/namespace/model:tag`, by which two names can be compared. Fails if `name` is not a name of
/// Ollama's form; the error is the rest of a sentence about it.
pub fn full_name(name: &str) -> Result<String, String> {
    let form = "is not a name in Ollama's form [host/][namespace/]model[:tag]; use letters, digits, `.`, `_` and `-`";
    let Name { host, namespace, model, tag } = Name::parse(name).map_err(|_| form)?;
    Ok(format!("{host}/{namespace}/{model}:{tag}"))
}

#[derive(Debug, PartialEq)]
struct Name {
    host: String,
    namespace: String,
    model: String,
    tag: String,
}

impl Name {
    /// Parses `[host/][namespace/]model[:tag]`. Every part starts with a letter, a digit or `_`, so no path can leave the store.
    fn parse(name: &str) -> Result<Name, String> {
        // A colon before the last slash belongs to the host's port.
        let (path, tag) = match name.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, tag),
            _ => (name, "latest"),
        };
        let pieces: Vec<&str> = path.split('/').collect();
        let (host, namespace, model) = match pieces[..] {
            [model] => (HOST, NAMESPACE, model),
            [namespace, model] => (HOST, namespace, model),
            [host, namespace, model] => (host, namespace, model),
            _ => return Err(bad_name()),
        };
        let sound = |part: &str, also: &str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c) || also.contains(c))
        };
        if !sound(host, ":") || ![namespace, model, tag].iter().all(|part| sound(part, "")) {
            return Err(bad_name());
        }
        Ok(Name { host: host.into(), namespace: namespace.into(), model: model.into(), tag: tag.into() })
    }

    fn manifest(&self, store: &Path) -> PathBuf {
        store.join("manifests").join(&self.host).join(&self.namespace).join(&self.model).join(&self.tag)
    }
}

fn bad_name() -> String {
    "is neither an existing file nor a name in Ollama's form [host/][namespace/]model[:tag]; \
     name a .gguf file or a model that `ollama list` shows"
        .into()
}

#[derive(serde::Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
    config: Option<Layer>,
}

/// The keys of a model's config that name code of Ollama.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Code {
    renderer: Option<String>,
    parser: Option<String>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: Option<u64>,
}

/// The blob of the one layer that is a GGUF model.
fn blob(name: &str, path: &Path, json: &[u8], store: &Path) -> Result<PathBuf, String> {
    let file = path.display();
    let manifest: Manifest = serde_json::from_slice(json).map_err(|e| {
        format!("the manifest {file} is not what Ollama writes ({e}); run `ollama pull {name}`")
    })?;
    let of_kind = |kind: &str| -> Vec<&Layer> {
        manifest.layers.iter().filter(|layer| layer.media_type.strip_prefix(LAYER) == Some(kind)).collect()
    };
    if !of_kind("tensor").is_empty() {
        return Err("is an MLX build (its layers are safetensors), expected a GGUF; use a tag without -mlx, -mxfp8 or \
                    -nvfp4"
            .into());
    }
    if !of_kind("adapter").is_empty() {
        return Err(
            "already has an adapter, expected a plain base; use the model that it was made from".into()
        );
    }
    let models = of_kind("model");
    let [layer] = models[..] else {
        return Err(format!(
            "has {} model layers in {file}, expected one GGUF; use another tag",
            models.len()
        ));
    };
    let Some(hash) = layer.digest.strip_prefix("sha256:").filter(|hash| is_sha256(hash)) else {
        return Err(format!(
            "has a model layer with digest {:?} in {file}, expected sha256: and 64 hexadecimal digits; \
             run `ollama pull {name}`",
            layer.digest
        ));
    };
    let blob = store.join("blobs").join(format!("sha256-{hash}"));
    let found = match std::fs::metadata(&blob) {
        Ok(found) => found.len(),
        Err(e) => {
            return Err(format!(
                "its weights {} cannot be read ({e}); run `ollama pull {name}`",
                blob.display()
            ));
        }
    };
    match layer.size {
        Some(size) if size != found => Err(format!(
            "its weights {} have {found} bytes, expected {size}; run `ollama pull {name}`",
            blob.display()
        )),
        _ => Ok(blob),
    }
}

fn is_sha256(hash: &str) -> bool {
    hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Similarity from which a model is suggested for a misspelt name.
const MIN_SIMILARITY: f64 = 0.6;

fn not_found(name: &str, parts: &Name, stores: &[PathBuf]) -> String {
    let searched: Vec<String> = stores.iter().map(|store| store.display().to_string()).collect();
    let mut found: Vec<String> = stores.iter().flat_map(|store| installed(store)).collect();
    found.sort();
    found.dedup();
    // Tags of the same model first: they are what the user most likely meant.
    let same = format!("{}:", short(&parts.host, &parts.namespace, &parts.model));
    found.sort_by_key(|other| !other.starts_with(&same));
    let similarity = |other: &&String| strsim::normalized_damerau_levenshtein(name, other);
    let nearest = found.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    let nearest = nearest.filter(|nearest| similarity(nearest) >= MIN_SIMILARITY).cloned();
    let more = found.len().saturating_sub(12);
    found.truncate(12);
    let found = match (found.is_empty(), more) {
        (true, _) => "no models there".into(),
        (false, 0) => format!("found there: {}", found.join(", ")),
        (false, more) => format!("found there: {} and {more} more", found.join(", ")),
    };
    let advice = match nearest {
        Some(nearest) => {
            format!("did you mean {nearest}? Otherwise run `ollama pull` with a tag that exists")
        }
        // More often a path or a name of Hugging Face than a namespace of Ollama.
        None if name.contains('/') => {
            format!("check the path, write hf:{name} for a repository of the Hugging Face Hub")
        }
        None => format!("run `ollama pull {name}`"),
    };
    format!(
        "is no existing file, and Ollama has no such model in {}; {found}; {advice}, set OLLAMA_MODELS, or name a .gguf \
         file",
        searched.join(", ")
    )
}

/// The models of a store, as `ollama list` names them; unreadable folders count as empty.
pub fn installed(store: &Path) -> Vec<String> {
    let entries = |folder: &Path| -> Vec<(String, PathBuf)> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path())).collect()
    };
    let mut names = Vec::new();
    for (host, path) in entries(&store.join("manifests")) {
        for (namespace, path) in entries(&path) {
            for (model, path) in entries(&path) {
                let tags = entries(&path).into_iter().filter(|(_, path)| path.is_file());
                names.extend(tags.map(|(tag, _)| format!("{}:{tag}", short(&host, &namespace, &model))));
            }
        }
    }
    names
}

fn short(host: &str, namespace: &str, model: &str) -> String {
    match (host, namespace) {
        (HOST, NAMESPACE) => model.into(),
        (HOST, _) => format!("{namespace}/{model}"),
        _ => format!("{host}/{namespace}/{model}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_take_ollamas_defaults() {
        let cases = [
            ("some", [HOST, NAMESPACE, "some", "latest"]),
            ("some:e2b", [HOST, NAMESPACE, "some", "e2b"]),
            ("someone/some:e2b", [HOST, "someone", "some", "e2b"]),
            ("hf.co/unsloth/some-4B-it-GGUF:Q4_K_M", ["hf.co", "unsloth", "some-4B-it-GGUF", "Q4_K_M"]),
            ("localhost:5000/library/some", ["localhost:5000", NAMESPACE, "some", "latest"]),
        ];
        for (name, expected) in cases {
            let n = Name::parse(name).expect(name);
            assert_eq!([n.host, n.namespace, n.model, n.tag], expected, "{name}");
        }
    }

    #[test]
    fn names_cannot_leave_the_store() {
        for name in
            ["", ":", "a:", "../x", "a/../b", "a/b/c/d", "x:../../y", "a b", "/etc/x", "x@sha256:1", "a//b"]
        {
            assert_eq!(Name::parse(name), Err(bad_name()), "{name:?}");
        }
    }
}
