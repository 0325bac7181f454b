//! Checkpoints: folders from which a stopped run goes on with the same bits.
//!
//! | file | holds |
//! |---|---|
//! | `adapter_model.safetensors`, `adapter_config.json` | the adapter, as a PEFT folder that every command here takes |
//! | `optimizer.safetensors` | AdamW's moments, `exp_avg.…` and `exp_avg_sq.…`, named as the adapter's tensors |
//! | `best.safetensors` | the adapter of the best evaluation so far, where that is another one |
//! | `metrics.jsonl`, `timing.jsonl` | what was measured so far |
//! | `trainer_state.json` | position, recipe, digests of base, tokenizer, samples and of the files above; written last |
//!
//! The learning rate, the order of the samples and every dropout mask follow from recipe and step, so that no state of a
//! generator is among them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::base::Base;
use crate::base::config::Config;
use crate::export;
use crate::export::peft::{self, Naming};
use crate::files;
use crate::recipe::{Format, Recipe};
use crate::run::digest::{self, Identity};

/// Version of the files. Another number means that an older program cannot read them.
const FORMAT: u64 = 1;
/// The file that makes a folder a checkpoint: it is written last.
pub const STATE: &str = "trainer_state.json";
const OPTIMIZER: &str = "optimizer.safetensors";
const BEST: &str = "best.safetensors";
const METRICS: &str = "metrics.jsonl";
const TIMING: &str = "timing.jsonl";
/// What a checkpoint's folder is called; the step follows.
const PREFIX: &str = "checkpoint-";

/// Why a checkpoint was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] files::Error),
    /// The adapter is none that a file should hold.
    #[error(transparent)]
    Adapter(#[from] export::Error),
    /// It is incomplete, or not what was written.
    #[error("{} is damaged: {problem}", .path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What was found, and what was expected.
        problem: String,
    },
    /// A newer program wrote it.
    #[error(
        "{} was written by rullama-train {version} in format {found}, this program reads {FORMAT}; update it, choose another \
         output.dir, or start anew with --fresh",
        .path.display()
    )]
    Newer {
        /// The folder.
        path: PathBuf,
        /// The version of the program.
        version: String,
        /// The version of the files.
        found: u64,
    },
}

/// A run at rest between two steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Steps that were taken or left out.
    pub step: usize,
    /// Steps of the whole run.
    pub steps: usize,
    /// What is being done.
    pub recipe: Recipe,
    /// On what.
    pub identity: Identity,
    /// The adapter after the last step.
    pub adapter: Adapter,
    /// AdamW's first moments.
    pub first: BTreeMap<Slot, Pair>,
    /// AdamW's second moments.
    pub second: BTreeMap<Slot, Pair>,
    /// Steps that moved the adapter.
    pub updates: u64,
    /// The step of the best evaluation, and its adapter where `adapter` is another one.
    pub best: Option<(usize, Option<BTreeMap<Slot, Pair>>)>,
    /// Lines of `metrics.jsonl`.
    pub metrics: String,
    /// Lines of `timing.jsonl`.
    pub timing: String,
}

/// `trainer_state.json`.
#[derive(Serialize, Deserialize)]
struct State {
    format: u64,
    version: String,
    step: usize,
    steps: usize,
    updates: u64,
    best_step: Option<usize>,
    identity: Identity,
    recipe: serde_json::Value,
    files: BTreeMap<String, Stored>,
}

/// What a file must be.
#[derive(Serialize, Deserialize)]
struct Stored {
    bytes: usize,
    sha256: String,
}

impl Checkpoint {
    /// Writes `checkpoint-STEP` into the folder `dir`, which appears whole; one that is there already stays as it is.
    ///
    /// The adapter's file holds the fingerprint of `base`.
    pub fn write(&self, dir: &Path, base: &Base) -> Result<PathBuf, Error> {
        let path = dir.join(format!("{PREFIX}{}", self.step));
        if files::exists(&path) {
            return Ok(path);
        }
        let fingerprint = base.fingerprint().to_string();
        let options = export::Options::of_run(&self.recipe, &fingerprint);
        let naming = Naming::causal_lm(base.config());
        let mut contents: Vec<(&str, Vec<u8>)> = peft::serialize(&self.adapter, naming, &options)?.into();
        let moments = [("exp_avg", &self.first), ("exp_avg_sq", &self.second)];
        contents.push((OPTIMIZER, serialize(&moments, self.adapter.rank, naming)));
        if let Some((_, Some(best))) = &self.best {
            contents.push((BEST, serialize(&[("best", best)], self.adapter.rank, naming)));
        }
        contents.push((METRICS, self.metrics.clone().into()));
        contents.push((TIMING, self.timing.clone().into()));
        let stored = |(name, bytes): &(&str, Vec<u8>)| {
            (name.to_string(), Stored { bytes: bytes.len(), sha256: digest::bytes(bytes) })
        };
        let state = State {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            step: self.step,
            steps: self.steps,
            updates: self.updates,
            best_step: self.best.as_ref().map(|(step, _)| *step),
            identity: self.identity.clone(),
            recipe: serde_json::to_value(&self.recipe).expect("a recipe is tables of plain values"),
            files: contents.iter().map(stored).collect(),
        };
        contents.push((STATE, serde_json::to_vec_pretty(&state).expect("plain values under text keys")));
        let contents: Vec<(&str, &[u8])> = contents.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
        files::write_folder(&path, &contents)?;
        Ok(path)
    }

    /// In what a run of `recipe` with `steps` steps over what `identity` says is another than this one; empty where it can
    /// go on from here.
    pub fn changes(&self, recipe: &Recipe, identity: &Identity, steps: usize) -> Vec<String> {
        let mut changes: Vec<String> =
            recipe.changes_since(&self.recipe).iter().map(ToString::to_string).collect();
        // Another seed, for instance, splits off other samples: the key is the reason.
        if changes.is_empty() {
            changes = identity.changes_since(&self.identity);
        }
        if changes.is_empty() && steps != self.steps {
            changes.push(format!("the run had {} steps and has {steps}", self.steps));
        }
        changes
    }

    /// Reads the checkpoint in the folder `path`, for the model `config` and the slots that `slots` makes of its recipe. Fails
    /// where a file is not what was written, or a newer program wrote it.
    pub fn read(
        path: &Path,
        config: &Config,
        slots: impl FnOnce(&Recipe) -> Result<Vec<Slot>, String>,
    ) -> Result<Checkpoint, Error> {
        let damaged = |problem: String| Error::Damaged { path: path.into(), problem };
        let (state, contents) = open(path)?;
        let content = |name: &str| contents.get(name).ok_or_else(|| damaged(format!("it has no {name}")));
        let lines = |name: &str| {
            let text = String::from_utf8(content(name)?.clone());
            text.map_err(|e| damaged(format!("{name}: {e}")))
        };

        let recipe = Recipe::parse(&state.recipe.to_string(), Format::Json, STATE, &[("", ""); 0])
            .map_err(|e| damaged(e.to_string()))?;
        let slots = slots(&recipe).map_err(damaged)?;
        let adapter = peft::read(path, config, &slots).map_err(|e| damaged(e.to_string()))?;
        let rank = adapter.rank;
        let naming = Naming::causal_lm(config);
        let group = |name: &str, group: &str| {
            parse(content(name)?, group, rank, &slots, naming).map_err(|e| damaged(format!("{name}: {e}")))
        };
        Ok(Checkpoint {
            step: state.step,
            steps: state.steps,
            recipe,
            identity: state.identity.clone(),
            first: group(OPTIMIZER, "exp_avg")?,
            second: group(OPTIMIZER, "exp_avg_sq")?,
            updates: state.updates,
            best: match state.best_step {
                Some(step) if step != state.step => Some((step, Some(group(BEST, "best")?))),
                step => step.map(|step| (step, None)),
            },
            metrics: lines(METRICS)?,
            timing: lines(TIMING)?,
            adapter,
        })
    }
}

/// The state of the checkpoint in the folder `path`, and its files by name, each as it was written.
fn open(path: &Path) -> Result<(State, HashMap<String, Vec<u8>>), Error> {
    let damaged = |problem: String| Error::Damaged { path: path.into(), problem };
    let read = |name: &str| files::read(&path.join(name)).map_err(|e| damaged(format!("{name}: {e}")));
    let text = read(STATE)?;
    let unreadable = |e: serde_json::Error| damaged(format!("{STATE}: {e}"));
    let state: serde_json::Value = serde_json::from_slice(&text).map_err(unreadable)?;
    if let Some(found) = state["format"].as_u64().filter(|&found| found > FORMAT) {
        let version = state["version"].as_str().unwrap_or("of an unknown version").into();
        return Err(Error::Newer { path: path.into(), version, found });
    }
    let state: State = serde_json::from_value(state).map_err(unreadable)?;
    let mut contents = HashMap::new();
    for (name, expected) in &state.files {
        let bytes = read(name)?;
        if bytes.len() != expected.bytes {
            let found = bytes.len();
            return Err(damaged(format!("{name} has {found} bytes, expected {}", expected.bytes)));
        }
        if digest::bytes(&bytes) != expected.sha256 {
            return Err(damaged(format!("{name} is not what was written: its SHA-256 is another one")));
        }
        contents.insert(name.clone(), bytes);
    }
    Ok((state, contents))
}

/// What a checkpoint is, without the model that it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Steps that were taken or left out.
    pub step: usize,
    /// Steps of the whole run.
    pub steps: usize,
    /// Steps that moved the adapter.
    pub updates: u64,
    /// The step of the best evaluation.
    pub best_step: Option<usize>,
    /// The program that wrote it.
    pub version: String,
    /// What the run depends on.
    pub identity: Identity,
    /// Bytes of its files but for the state itself.
    pub bytes: u64,
}

/// Describes the checkpoint in the folder `path`; fails where any file is not what was written.
pub fn inspect(path: &Path) -> Result<Summary, Error> {
    let (State { version, step, steps, updates, best_step, identity, .. }, contents) = open(path)?;
    let bytes = contents.values().map(|bytes| bytes.len() as u64).sum();
    Ok(Summary { step, steps, updates, best_step, version, identity, bytes })
}

/// The checkpoints in the folder `dir`, by step, the newest first; none where there is no such folder.
pub fn list(dir: &Path) -> Vec<(usize, PathBuf)> {
    let step = |path: PathBuf| {
        let step = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.parse().ok()?;
        Some((step, path))
    };
    let mut found: Vec<(usize, PathBuf)> = files::list(dir).into_iter().flatten().filter_map(step).collect();
    found.sort_by(|a, b| b.cmp(a));
    found
}

/// Removes all but the newest `keep` checkpoints in `dir`, and what an interrupted write or removal left there.
pub fn prune(dir: &Path, keep: usize) -> Result<(), files::Error> {
    for (_, path) in list(dir).into_iter().skip(keep) {
        files::remove_folder(&path)?;
    }
    files::remove_unfinished(dir)
}

/// Matrices as one safetensors file, each name led by that of its group.
fn serialize(groups: &[(&str, &BTreeMap<Slot, Pair>)], rank: usize, naming: Naming) -> Vec<u8> {
    let mut views = Vec::new();
    for (group, pairs) in groups {
        for (slot, pair) in *pairs {
            for ((name, shape), values) in
                halves(group, slot, rank, naming).into_iter().zip([&pair.a, &pair.b])
            {
                let view = TensorView::new(Dtype::F32, shape.into(), bytemuck::cast_slice(values));
                views.push((name, view.expect("a pair has the lengths that its slot and rank say")));
            }
        }
    }
    safetensors::serialize(views, None).expect("names and sizes fit a header, as the adapter's own did")
}

/// Names and shapes of a slot's two matrices.
fn halves(group: &str, slot: &Slot, rank: usize, naming: Naming) -> [(String, [usize; 2]); 2] {
    let key = format!("base_model.model.{}", naming.module(slot));
    [
        (format!("{group}.{key}.lora_A.weight"), [slot.experts * rank, slot.in_features]),
        (format!("{group}.{key}.lora_B.weight"), [slot.experts * slot.out_features, rank]),
    ]
}

/// A group of [`serialize`].
fn parse(
    bytes: &[u8],
    group: &str,
    rank: usize,
    slots: &[Slot],
    naming: Naming,
) -> Result<BTreeMap<Slot, Pair>, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let mut pairs = BTreeMap::new();
    for slot in slots {
        let mut pair = Pair { a: Vec::new(), b: Vec::new() };
        let halves = halves(group, slot, rank, naming);
        for ((name, shape), values) in halves.into_iter().zip([&mut pair.a, &mut pair.b]) {
            let tensor = file.tensor(&name).map_err(|e| e.to_string())?;
            if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
                let found = format!("{} {:?}", tensor.dtype(), tensor.shape());
                return Err(format!("{name} is {found}, expected F32 {shape:?}"));
            }
            *values = bytemuck::pod_collect_to_vec(tensor.data());
        }
        pairs.insert(*slot, pair);
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::adapter::lora::slots;
    use crate::base::Module;

    const RECIPE: &str =
        "model.base = 'tiny'\ndata.train = 'a'\noutput.dir = 'b'\nlora.rank = 3\ntrain.learning_rate = 1e-3";

    fn recipe() -> Recipe {
        Recipe::parse(RECIPE, Format::Toml, "r.toml", &[("", ""); 0]).expect("sound")
    }

    fn the_slots(base: &Base) -> Vec<Slot> {
        slots(base.config(), &[Module::AttnK, Module::FfnDown])
    }

    fn checkpoint(base: &Base, step: usize) -> Checkpoint {
        let recipe = recipe();
        let new = |seed| Adapter::init(&the_slots(base), 3, 6.0, false, seed);
        Checkpoint {
            step,
            steps: 9,
            identity: Identity {
                base: "b".into(),
                tokenizer: "t".into(),
                train: "d".into(),
                validation: "v".into(),
            },
            adapter: new(1),
            first: new(2).pairs,
            second: new(3).pairs,
            updates: step as u64 - 1,
            best: [None, Some((4, None)), Some((4, Some(new(4).pairs)))][step.min(5) - 3].clone(),
            metrics: "{\"event\":\"step\"}\n".into(),
            timing: String::new(),
            recipe,
        }
    }

    fn read(path: &Path, base: &Base) -> Result<Checkpoint, Error> {
        Checkpoint::read(path, base.config(), |found| {
            assert_eq!(*found, recipe());
            Ok(the_slots(base))
        })
    }

    #[test]
    fn what_is_written_is_read() {
        let (dir, base) = (tempfile::tempdir().expect("a folder"), Base::tiny().expect("sound"));
        for step in [3, 4, 5] {
            let written = checkpoint(&base, step);
            let path = written.write(dir.path(), &base).expect("written");
            assert_eq!(path, dir.path().join(format!("checkpoint-{step}")));
            assert_eq!(read(&path, &base).expect("sound"), written);
            // Any checkpoint is an adapter that other programs load.
            let adapter = peft::read(&path, base.config(), &the_slots(&base)).expect("a PEFT folder");
            assert_eq!(adapter, written.adapter);
        }
    }

    #[test]
    fn the_newest_are_kept() {
        let (dir, base) = (tempfile::tempdir().expect("a folder"), Base::tiny().expect("sound"));
        for step in [9, 4, 10, 100] {
            checkpoint(&base, step).write(dir.path(), &base).expect("written");
        }
        fs::create_dir(dir.path().join("checkpoint-mine")).expect("created");
        fs::create_dir(dir.path().join(".unfinished-x")).expect("created");
        let steps = || list(dir.path()).into_iter().map(|(step, _)| step).collect::<Vec<_>>();
        assert_eq!(steps(), [100, 10, 9, 4]);
        prune(dir.path(), 2).expect("removed");
        assert_eq!(steps(), [100, 10]);
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 3, "what is not ours stays");
        assert_eq!(list(&dir.path().join("nowhere")), []);
    }

    #[test]
    fn damage_is_named() {
        let (dir, base) = (tempfile::tempdir().expect("a folder"), Base::tiny().expect("sound"));
        let path = checkpoint(&base, 5).write(dir.path(), &base).expect("written");
        let damaged = |name: &str, change: &dyn Fn(&mut Vec<u8>), expected: &str| {
            let file = path.join(name);
            let sound = fs::read(&file).expect("there");
            let mut bytes = sound.clone();
            change(&mut bytes);
            fs::write(&file, bytes).expect("written");
            let error = read(&path, &base).expect_err("damaged").to_string();
            fs::write(&file, sound).expect("written");
            let message = error.strip_prefix(&format!("{} is damaged: ", path.display()));
            assert!(message.is_some_and(|m| m.starts_with(expected)), "{expected}\n{error}");
        };
        for name in [OPTIMIZER, BEST, "adapter_model.safetensors", "adapter_config.json", METRICS] {
            let length = fs::metadata(path.join(name)).expect("there").len() as usize;
            damaged(
                name,
                &|b| b.truncate(length / 2),
                &format!("{name} has {} bytes, expected {length}", length / 2),
            );
            damaged(name, &|b| b[length / 2] ^= 1, &format!("{name} is not what was written"));
        }
        damaged(STATE, &|b| b.truncate(100), "trainer_state.json: EOF");
        damaged(STATE, &|b| b.clear(), "trainer_state.json: EOF");
        damaged(STATE, &|b| *b = b"{}".to_vec(), "trainer_state.json: missing field `format`");
        // Each file listed is there, whatever else the state says.
        for name in [OPTIMIZER, STATE] {
            let (file, aside) = (path.join(name), path.join("aside"));
            fs::rename(&file, &aside).expect("renamed");
            let error = read(&path, &base).expect_err("missing").to_string();
            fs::rename(&aside, &file).expect("renamed");
            assert!(error.contains(&format!("damaged: {name}: ")), "{error}");
        }
        assert!(read(&path, &base).is_ok(), "the file is whole again");
    }

    #[test]
    fn a_newer_format_is_refused() {
        let (dir, base) = (tempfile::tempdir().expect("a folder"), Base::tiny().expect("sound"));
        let path = checkpoint(&base, 5).write(dir.path(), &base).expect("written");
        fs::write(path.join(STATE), r#"{"format": 2, "version": "9.0.0", "anything": "else"}"#)
            .expect("written");
        let error = read(&path, &base).expect_err("newer").to_string();
        let expected = "was written by rullama-train 9.0.0 in format 2, this program reads 1; update it, choose another \
                        output.dir, or start anew with --fresh";
        assert_eq!(error, format!("{} {expected}", path.display()));
    }
}
