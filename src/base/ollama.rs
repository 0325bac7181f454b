//! Finds a model's GGUF in Ollama's store: `name` → manifest → blob.
//!
//! Layout (ollama `manifest/paths.go`): `manifests/<host>/<namespace>/<model>/<tag>` is JSON that lists layers, and
//! the layer with digest `sha256:…` is the file `blobs/sha256-…`.

use super::Error;
use std::path::{Path, PathBuf};

const HOST: &str = "registry.ollama.ai";
const NAMESPACE: &str = "library";
const LAYER: &str = "application/vnd.ollama.image.";

/// Where Ollama keeps models on this machine, most likely first: `$OLLAMA_MODELS`, the user's folder, and the folder
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
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
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

fn not_found(name: &str, parts: &Name, stores: &[PathBuf]) -> String {
    let searched: Vec<String> = stores.iter().map(|store| store.display().to_string()).collect();
    let mut found: Vec<String> = stores.iter().flat_map(|store| installed(store)).collect();
    found.sort();
    found.dedup();
    // Tags of the same model first: they are what the user most likely meant.
    let same = format!("{}:", short(&parts.host, &parts.namespace, &parts.model));
    found.sort_by_key(|other| !other.starts_with(&same));
    let more = found.len().saturating_sub(12);
    found.truncate(12);
    let found = match (found.is_empty(), more) {
        (true, _) => "no models there".into(),
        (false, 0) => format!("found there: {}", found.join(", ")),
        (false, more) => format!("found there: {} and {more} more", found.join(", ")),
    };
    format!(
        "is no existing file, and Ollama has no such model in {}; {found}; run `ollama pull {name}`, set \
         OLLAMA_MODELS, or name a .gguf file",
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
