//! A working directory with a valid recipe and valid data, and the program run in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value as Json;
use tempfile::TempDir;

pub const RECIPE: &str = r#"[model]
base = "tiny"

[lora]
rank = 4

[data]
train = "data.jsonl"
val_size = 1
max_seq_len = 64

[train]
max_steps = 2
learning_rate = 1e-2

[output]
dir = "run"
"#;

pub const DATA: &str = r#"{"prompt": "Hello!", "completion": "Ahoy!"}
{"prompt": "What is the capital of Peru?", "completion": "The capital of Peru is Lima. Ahoy!"}
{"prompt": "What is 7 plus 8?", "completion": "7 plus 8 is 15. Ahoy!"}
{"prompt": "Spell the word river.", "completion": "river is spelled r-i-v-e-r. Ahoy!"}
"#;

/// A temporary working directory with a valid recipe and valid data.
pub struct Place {
    _temporary: TempDir,
    pub dir: PathBuf,
    /// The user's cache folder, which `contents` does not include.
    pub cache: PathBuf,
    _own_cache: Option<TempDir>,
}

static SHARED_CACHE: OnceLock<PathBuf> = OnceLock::new();

/// Makes the cache folder that all places share, so that each kernel is compiled once. It is deleted with the result.
pub fn share_cache() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    SHARED_CACHE.set(folder.path().into()).expect("called once");
    folder
}

impl Place {
    pub fn new() -> Place {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        // On Windows a canonical path starts with `\\?\`, which no command prints.
        let dir = temporary.path();
        let dir = if cfg!(windows) { dir.into() } else { dir.canonicalize().expect("it exists") };
        let cache = SHARED_CACHE.get().expect("made before the tests").clone();
        let place = Place { _temporary: temporary, dir, cache, _own_cache: None };
        place.write("recipe.toml", RECIPE);
        place.write("data.jsonl", DATA);
        place
    }

    /// With a cache folder of its own, for tests of what is in it.
    pub fn with_own_cache(self) -> Place {
        let own = tempfile::tempdir().expect("a temporary folder");
        Place { cache: own.path().into(), _own_cache: Some(own), ..self }
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.dir.join(name);
        std::fs::create_dir_all(path.parent().expect("inside the folder")).expect("created");
        std::fs::write(path, contents).expect("written");
    }

    /// Puts the tiny model into Ollama's store under this name (`gemma4/e2b`).
    pub fn stored_tiny(&self, name: &str) {
        let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
        let (bytes, digest) = (std::fs::read(tiny).expect("the tiny model"), "0".repeat(64));
        let layer = serde_json::json!({
            "mediaType": "application/vnd.ollama.image.model", "digest": format!("sha256:{digest}"), "size": bytes.len(),
        });
        self.write(&format!("store/blobs/sha256-{digest}"), bytes);
        let manifest = format!("store/manifests/registry.ollama.ai/library/{name}");
        self.write(&manifest, serde_json::json!({ "layers": [layer] }).to_string());
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Every file and folder; files with their bytes, except for locks, which name the last process that looked.
    pub fn contents(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        fn walk(dir: &Path, root: &Path, found: &mut BTreeMap<PathBuf, Option<Vec<u8>>>) {
            for entry in std::fs::read_dir(dir).expect("a folder") {
                let path = entry.expect("an entry").path();
                let name = path.strip_prefix(root).expect("inside").to_path_buf();
                let is_lock = path.file_name().is_some_and(|name| name == ".lock");
                let holds = path.is_file() && !is_lock;
                found.insert(name, holds.then(|| std::fs::read(&path).expect("read")));
                if path.is_dir() {
                    walk(&path, root, found);
                }
            }
        }
        let mut found = BTreeMap::new();
        walk(&self.dir, &self.dir, &mut found);
        found
    }

    /// Names of the files in a folder.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let within = |(path, _): (PathBuf, _)| Some(path.strip_prefix(folder).ok()?.display().to_string());
        self.contents().into_iter().filter_map(within).filter(|name| !name.is_empty()).collect()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rullama-train"));
        command.current_dir(&self.dir).args(arguments).stdin(Stdio::null());
        // No models from the user's stores, and no warning from Mesa about a missing desktop.
        command.env("OLLAMA_MODELS", "store").env("HOME", &self.dir).env_remove("XDG_RUNTIME_DIR");
        for name in [
            "HF_HOME",
            "HF_HUB_CACHE",
            "HF_TOKEN",
            "HF_ENDPOINT",
            "LLAMA_CACHE",
            "RULLAMA_MODELS",
            "XDG_DATA_HOME",
        ] {
            command.env_remove(name);
        }
        // A new cache folder would make every command test the device anew.
        command.env("XDG_CACHE_HOME", &self.cache).env("RULLAMA_SELF_TEST", "0");
        // The cache of a software driver stays the user's: it compiles a kernel in half a second.
        if let Some(folder) = dirs::cache_dir() {
            command.env("MESA_SHADER_CACHE_DIR", folder);
        }
        command
    }

    /// Runs the program, expects success and an empty stderr, and returns stdout.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("the program starts");
        let (stdout, stderr) = texts(&output);
        assert!(output.status.success() && stderr.is_empty(), "{arguments:?}\n{stdout}\n{stderr}");
        stdout
    }

    /// Runs the program without a Vulkan device: mistakes must be found before a device is opened. Expects nothing but the error
    /// `expected`, in which `…` stands for anything, and unchanged files.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str], expected: &str) {
        let mut command = self.command(arguments);
        let nowhere = self.dir.join("no-driver.json");
        command.env("VK_ICD_FILENAMES", &nowhere).env("VK_DRIVER_FILES", &nowhere);
        self.refused_by(command, arguments, expected);
    }

    /// Like [`Place::refused`], but with the available devices.
    pub fn refused_on_device(&self, arguments: &[&str], expected: &str) {
        self.refused_by(self.command(arguments), arguments, expected);
    }

    pub fn refused_by(&self, mut command: Command, arguments: &[&str], expected: &str) {
        let mut before = self.contents();
        let output = command.output().expect("the program starts");
        let (stdout, stderr) = texts(&output);
        let error = stderr.strip_prefix("error: ").and_then(|s| s.strip_suffix('\n'));
        let right = error.is_some_and(|s| !s.contains('\n') && matches(s, expected)) && stdout.is_empty();
        assert!(
            right && output.status.code() == Some(1),
            "{arguments:?} gave {}\nexpected\nerror: {expected}\nfound\n{stdout}{stderr}",
            output.status
        );
        let after = self.contents();
        // It may remove what a killed command left.
        before.retain(|path, _| !is_leftover(path) || after.contains_key(path));
        assert!(before == after, "{arguments:?} changed {:?} into {:?}", before.keys(), after.keys());
    }

    /// The values of `key` in the metrics of a run.
    pub fn metrics(&self, run: &str, key: &str) -> Vec<f64> {
        let text = String::from_utf8(self.read(&format!("{run}/metrics.jsonl"))).expect("UTF-8");
        let line = |line: &str| serde_json::from_str::<Json>(line).expect("JSON");
        text.lines().filter_map(|l| line(l).get(key)?.as_f64()).collect()
    }
}

/// Whether a file or folder was written by a command that did not come to rename it.
fn is_leftover(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str().to_string_lossy().starts_with(".unfinished-"))
}

/// stdout, and stderr without the lines about work that took long, which a busy machine prints.
pub fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let stderr = text(&output.stderr);
    let is_error = |line: &str| line.starts_with("error: "); // a long one is cut
    let lines = stderr.split_inclusive('\n').filter(|line| is_error(line) || !line.ends_with(" …\n"));
    (text(&output.stdout), lines.collect())
}

/// Whether `text` is `pattern`, in which `…` stands for anything. Paths and the system's words are written as on Linux.
pub fn matches(text: &str, pattern: &str) -> bool {
    if cfg!(windows) {
        let not_found = std::io::Error::from_raw_os_error(2).to_string();
        let pattern = pattern.replace("No such file or directory (os error 2)", &not_found);
        return fits(&text.replace('\\', "/"), &pattern.replace('\\', "/"));
    }
    fits(text, pattern)
}

fn fits(text: &str, pattern: &str) -> bool {
    let (first, rest) = pattern.split_once('…').unwrap_or((pattern, ""));
    let Some(mut text) = text.strip_prefix(first) else { return false };
    if !pattern.contains('…') {
        return text.is_empty();
    }
    let mut parts: Vec<&str> = rest.split('…').collect();
    let last = parts.pop().expect("a split has a part");
    for part in parts {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(last)
}
