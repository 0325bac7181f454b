//! Checkpoints, with and without right digests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::base::Module;
use rullama_train::recipe::{Recipe, Syntax};
use rullama_train::run::Identity;
use rullama_train::run::checkpoint::{Checkpoint, STATE};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::files::{folder, pack, unpack};
use super::{Outcome, accepted_if, refused, small};
use crate::mutate::Kind;

const NAMES: [&str; 7] = [
    STATE,
    "adapter_config.json",
    "metrics.jsonl",
    "timing.jsonl",
    "adapter_model.safetensors",
    "optimizer.safetensors",
    "best.safetensors",
];
pub const KIND: Kind = Kind::Files(&[
    Kind::Json,
    Kind::Json,
    Kind::Text,
    Kind::Text,
    Kind::SafeTensors,
    Kind::SafeTensors,
    Kind::SafeTensors,
]);
const MODULES: [Module; 2] = [Module::AttnQ, Module::FfnDown];

fn checkpoint() -> Checkpoint {
    let recipe = "model.base = 'x'\ndata.train = 'a'\noutput.dir = 'b'\nlora.rank = 2";
    let adapter = |seed| Adapter::init(&slots(small().config(), &MODULES), 2, 4.0, false, seed);
    let text = |text: &str| text.to_owned();
    Checkpoint {
        step: 10,
        steps: 20,
        recipe: Recipe::parse(recipe, Syntax::Toml, "r.toml", &[("", ""); 0]).expect("sound"),
        identity: Identity {
            base: text("b"),
            contents: None,
            tokenizer: text("t"),
            train: text("d"),
            validation: text("v"),
            initial: None,
            teacher: None,
        },
        adapter: adapter(1),
        first: adapter(2).pairs,
        second: adapter(3).pairs,
        updates: 10,
        changed: Vec::new(),
        choices: Default::default(),
        best: Some((4, Some(adapter(4).pairs))),
        metrics: "{\"event\":\"step\"}\n".into(),
        timing: String::new(),
        completions: None,
    }
}

/// The checkpoint and its files.
fn sound() -> &'static (Checkpoint, Vec<Vec<u8>>) {
    static SOUND: OnceLock<(Checkpoint, Vec<Vec<u8>>)> = OnceLock::new();
    SOUND.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let path = checkpoint().write(dir.path(), small()).expect("written");
        let read = |name| fs::read(path.join(name)).expect("written");
        (checkpoint(), NAMES.map(read).to_vec())
    })
}

pub fn folders() -> Vec<Vec<u8>> {
    vec![pack(&sound().1)]
}

fn read(path: &Path) -> Result<Checkpoint, String> {
    let slots = |_: &Recipe| Ok(slots(small().config(), &MODULES));
    Checkpoint::read(path, small().config(), slots).map_err(|e| e.to_string())
}

/// A damaged checkpoint is never used.
pub fn unchanged(input: &[u8]) -> Outcome {
    let files: Vec<(&str, Option<&[u8]>)> = NAMES.into_iter().zip(unpack(input, NAMES.len())).collect();
    match read(&folder(&files)) {
        Ok(found) => accepted_if(found == sound().0, || {
            format!("another state: step {} of {}, {} updates", found.step, found.steps, found.updates)
        }),
        Err(error) => refused(error),
    }
}

/// A checkpoint whose digests fit any contents.
pub fn with_digests(input: &[u8]) -> Outcome {
    let files: BTreeMap<&str, Option<&[u8]>> = NAMES.into_iter().zip(unpack(input, NAMES.len())).collect();
    let mut state: Value = serde_json::from_slice(files[STATE].unwrap_or_default()).unwrap_or_default();
    let digest =
        |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    if let Some(listed) = state.get_mut("files").and_then(Value::as_object_mut) {
        for (name, entry) in listed.iter_mut() {
            let bytes = files.get(&**name).copied().flatten().unwrap_or_default();
            *entry = json!({ "bytes": bytes.len(), "sha256": digest(bytes) });
        }
    }
    if let Some(fields) = state.as_object_mut() {
        fields.shift_remove("sha256");
    }
    let own = digest(state.to_string().as_bytes());
    if let Some(fields) = state.as_object_mut() {
        fields.insert("sha256".into(), own.into());
    }
    let state = serde_json::to_vec_pretty(&state).expect("a value");
    let files: Vec<(&str, Option<&[u8]>)> =
        NAMES.map(|name| (name, if name == STATE { Some(&state[..]) } else { files[name] })).to_vec();
    match read(&folder(&files)) {
        Ok(found) => {
            let pairs = found.first.values().chain(found.second.values()).chain(found.adapter.pairs.values());
            let finite = pairs.flat_map(|pair| pair.a.iter().chain(&pair.b)).all(|value| value.is_finite());
            accepted_if(finite, || "values that are not finite".into())
        }
        Err(error) => refused(error),
    }
}
