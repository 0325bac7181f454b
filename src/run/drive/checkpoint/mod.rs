//! Checkpoints: folders from which a stopped run resumes with bit-identical results.
//!
//! | file | contents |
//! |---|---|
//! | `adapter_model.safetensors`, `adapter_config.json` | the adapter, as a PEFT folder that every command accepts |
//! | `optimizer.safetensors` | AdamW's moments, `exp_avg.…` and `exp_avg_sq.…`, named as the adapter's tensors |
//! | `best.safetensors` | the adapter of the best evaluation so far, if it is not the current one |
//! | `metrics.jsonl`, `timing.jsonl` | the measurements so far |
//! | `completions.json` | the completions that the next step trains on, if an earlier one drew them |
//! | `trainer_state.json` | position, recipe, digests of base, tokenizer, samples and of the files above; written last |
//!
//! No random generator state is saved: the learning rate, the order of the samples and every dropout mask follow from the
//! recipe and the step.

mod changes;
mod digest;
mod error;
mod folder;
mod matrices;
mod send;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::identity::{self, Identity};
use crate::adapter::formats::peft::{self, Naming};
use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::base::Base;
use crate::base::config::Config;
use crate::files;
use crate::gpu::Choices;
use crate::recipe::{Recipe, Syntax};
use digest::sealed;
use folder::open;
use matrices::{parse, serialize};

pub use changes::{Changed, Differences};
pub use error::CheckpointError;
pub use folder::{Summary, inspect, list, prune};

/// Version of the file format. It rises when older programs cannot read the files.
const FORMAT: u64 = 2;
/// The file that marks a folder as a checkpoint; it is written last.
pub const STATE: &str = "trainer_state.json";
const OPTIMIZER: &str = "optimizer.safetensors";
const BEST: &str = "best.safetensors";
const METRICS: &str = "metrics.jsonl";
const TIMING: &str = "timing.jsonl";
const COMPLETIONS: &str = "completions.json";
/// All files of a checkpoint besides its state.
const FILES: [&str; 7] =
    ["adapter_model.safetensors", "adapter_config.json", OPTIMIZER, BEST, METRICS, TIMING, COMPLETIONS];
/// Prefix of the name of a checkpoint's folder; the step follows.
const PREFIX: &str = "checkpoint-";

/// The state of a run between two steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Steps taken so far, skipped ones included.
    pub step: usize,
    /// Steps of the whole run.
    pub steps: usize,
    /// The recipe of the run.
    pub recipe: Recipe,
    /// Digests of base and samples.
    pub identity: Identity,
    /// The adapter after the last step.
    pub adapter: Adapter,
    /// AdamW's first moments.
    pub first: BTreeMap<Slot, Pair>,
    /// AdamW's second moments.
    pub second: BTreeMap<Slot, Pair>,
    /// Steps that updated the adapter.
    pub updates: u64,
    /// The step of the best evaluation, and its adapter if it is not `adapter`.
    pub best: Option<(usize, Option<BTreeMap<Slot, Pair>>)>,
    /// Changes of settings with which the run was continued.
    pub changed: Vec<Changed>,
    /// The ways in which its products are computed, on which the last bits of the results depend.
    pub choices: Choices,
    /// Lines of `metrics.jsonl`.
    pub metrics: String,
    /// Lines of `timing.jsonl`.
    pub timing: String,
    /// The completions that the next step trains on, if an earlier one drew them.
    pub completions: Option<String>,
}

/// The contents of `trainer_state.json`.
#[derive(Serialize, Deserialize)]
pub(super) struct TrainerState {
    format: u64,
    version: String,
    step: usize,
    steps: usize,
    updates: u64,
    best_step: Option<usize>,
    changed: Vec<Changed>,
    #[serde(default)]
    choices: Choices,
    identity: Identity,
    recipe: serde_json::Value,
    files: BTreeMap<String, FileDigest>,
}

/// Size and digest of a file.
#[derive(Serialize, Deserialize)]
struct FileDigest {
    bytes: usize,
    sha256: String,
}

impl Checkpoint {
    /// Writes the folder `checkpoint-STEP` into the folder `dir`, atomically. Does nothing if it exists already.
    ///
    /// The adapter's file records the fingerprint of `base`.
    pub fn write(&self, dir: &Path, base: &Base) -> Result<PathBuf, CheckpointError> {
        let path = dir.join(format!("{PREFIX}{}", self.step));
        if files::exists(&path) {
            return Ok(path);
        }
        let fingerprint = base.fingerprint().to_string();
        let options = super::write_options(&self.recipe, &fingerprint, base.vocabulary());
        let naming = Naming::causal_lm(base.config());
        let mut contents: Vec<(&str, Vec<u8>)> = peft::serialize(&self.adapter, naming, &options)?.into();
        let moments = [("exp_avg", &self.first), ("exp_avg_sq", &self.second)];
        contents.push((OPTIMIZER, serialize(&moments, self.adapter.rank, naming)));
        if let Some((_, Some(best))) = &self.best {
            contents.push((BEST, serialize(&[("best", best)], self.adapter.rank, naming)));
        }
        contents.push((METRICS, self.metrics.clone().into()));
        contents.push((TIMING, self.timing.clone().into()));
        contents.extend(self.completions.clone().map(|text| (COMPLETIONS, text.into())));
        let digest = |(name, bytes): &(&str, Vec<u8>)| {
            (name.to_string(), FileDigest { bytes: bytes.len(), sha256: identity::sha256(bytes) })
        };
        let state = TrainerState {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            step: self.step,
            steps: self.steps,
            updates: self.updates,
            best_step: self.best.as_ref().map(|(step, _)| *step),
            changed: self.changed.clone(),
            choices: self.choices.clone(),
            identity: self.identity.clone(),
            recipe: serde_json::to_value(&self.recipe).expect("a recipe is tables of plain values"),
            files: contents.iter().map(digest).collect(),
        };
        contents.push((STATE, sealed(&state)));
        let contents: Vec<(&str, &[u8])> = contents.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
        files::write_folder(&path, &contents)?;
        Ok(path)
    }

    /// Reads the checkpoint in the folder `path` for the model `config`; `slots` returns the slots of its recipe. Fails if a
    /// file differs from what was written, or a newer program wrote it.
    pub fn read(
        path: &Path,
        config: &Config,
        slots: impl FnOnce(&Recipe) -> Result<Vec<Slot>, String>,
    ) -> Result<Checkpoint, CheckpointError> {
        let damaged = |problem: String| CheckpointError::Damaged { path: path.into(), problem };
        let (state, contents) = open(path)?;
        let content = |name: &str| contents.get(name).ok_or_else(|| damaged(format!("it has no {name}")));
        let lines = |name: &str| {
            let text = String::from_utf8(content(name)?.clone());
            text.map_err(|e| damaged(format!("{name}: {e}")))
        };

        let recipe = Recipe::parse(&state.recipe.to_string(), Syntax::Json, STATE, &[("", ""); 0])
            .map_err(|e| damaged(e.to_string()))?;
        // Every byte is what was written, so an adapter that does not fit is of another base.
        let other_base = |problem: String| {
            let base = recipe.model.base.clone();
            CheckpointError::OtherBase { path: path.into(), base, problem }
        };
        let slots = slots(&recipe).map_err(other_base)?;
        let adapter = peft::read(path, config, &slots).map_err(|e| other_base(e.to_string()))?;
        let rank = adapter.rank;
        let naming = Naming::causal_lm(config);
        let group = |name: &str, group: &str| {
            parse(content(name)?, group, rank, &slots, naming).map_err(|e| damaged(format!("{name}: {e}")))
        };
        let [first, second] = [group(OPTIMIZER, "exp_avg")?, group(OPTIMIZER, "exp_avg_sq")?];
        let best = match state.best_step {
            Some(step) if step != state.step => Some((step, Some(group(BEST, "best")?))),
            step => step.map(|step| (step, None)),
        };
        Ok(Checkpoint {
            step: state.step,
            steps: state.steps,
            recipe,
            identity: state.identity.clone(),
            first,
            second,
            updates: state.updates,
            changed: state.changed,
            choices: state.choices,
            best,
            metrics: lines(METRICS)?,
            timing: lines(TIMING)?,
            completions: contents.contains_key(COMPLETIONS).then(|| lines(COMPLETIONS)).transpose()?,
            adapter,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::digest::{DIGEST, digest, unsealed};
    use super::*;
    use crate::adapter::lora::slots;
    use crate::base::Module;
    use crate::gpu::Choice;

    const RECIPE: &str =
        "model.base = 'tiny'\ndata.train = 'a'\noutput.dir = 'b'\nlora.rank = 3\ntrain.learning_rate = 1e-3";

    fn recipe() -> Recipe {
        Recipe::parse(RECIPE, Syntax::Toml, "r.toml", &[("", ""); 0]).expect("sound")
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
                contents: Some("c".into()),
                tokenizer: "t".into(),
                train: "d".into(),
                validation: "v".into(),
                initial: None,
                teacher: None,
            },
            adapter: new(1),
            first: new(2).pairs,
            second: new(3).pairs,
            updates: step as u64 - 1,
            changed: vec![Changed { step: 2, changes: vec!["train.max_steps was 2 and is 9".into()] }],
            choices: [("a product".into(), Choice { tile_rows: 64, by_columns: true, parts: 3 })].into(),
            best: [None, Some((4, None)), Some((4, Some(new(4).pairs)))][step.min(5) - 3].clone(),
            metrics: "{\"event\":\"step\"}\n".into(),
            timing: String::new(),
            completions: (step == 4).then(|| "[]".into()),
            recipe,
        }
    }

    fn read(path: &Path, base: &Base) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::read(path, base.config(), |found| {
            assert_eq!(*found, recipe());
            Ok(the_slots(base))
        })
    }

    #[test]
    fn checkpoints_round_trip() {
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
    fn a_checkpoint_of_another_base_is_not_damaged() {
        let (dir, base) = (tempfile::tempdir().expect("a folder"), Base::tiny().expect("sound"));
        let path = checkpoint(&base, 5).write(dir.path(), &base).expect("written");
        let mut fewer = the_slots(&base);
        fewer.truncate(1);
        let error =
            Checkpoint::read(&path, base.config(), |_| Ok(fewer)).expect_err("other slots").to_string();
        assert!(error.contains("is sound, but it is of a run on another base (\"tiny\")"), "{error}");
        assert!(!error.contains("damaged") && !error.contains("--fresh"), "{error}");
    }

    #[test]
    fn prune_keeps_the_newest() {
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
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 3, "other folders stay");
        assert_eq!(list(&dir.path().join("nowhere")), []);
    }

    #[test]
    fn damage_is_reported() {
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
        damaged(STATE, &|b| *b = b"{}".to_vec(), "trainer_state.json: it is not what was written");
        // One digit of a step, a count or a digest.
        let text = String::from_utf8(fs::read(path.join(STATE)).expect("there")).expect("UTF-8");
        for key in ["\"step\": ", "\"updates\": ", "\"sha256\": \"", "\"learning_rate\": "] {
            let at = text.find(key).expect(key) + key.len();
            damaged(STATE, &|b| b[at] ^= 1, "trainer_state.json: it is not what was written");
        }
        // A state that was sealed again, but names a file elsewhere.
        let resealed = |b: &mut Vec<u8>| {
            let mut state = unsealed(b).expect("sound");
            state["files"]["../../secret"] = state["files"][OPTIMIZER].clone();
            state[DIGEST] = digest(&state).into();
            *b = state.to_string().into();
        };
        damaged(STATE, &resealed, "trainer_state.json: \"../../secret\" is not a file of a checkpoint");
        // Moments that are no numbers, under digests that fit.
        let reseal = |moments: &[u8]| {
            let mut state = unsealed(text.as_bytes()).expect("sound");
            state["files"][OPTIMIZER]["sha256"] = identity::sha256(moments).into();
            state[DIGEST] = digest(&state).into();
            fs::write(path.join(STATE), state.to_string()).expect("written");
            fs::write(path.join(OPTIMIZER), moments).expect("written");
        };
        let moments = fs::read(path.join(OPTIMIZER)).expect("there");
        let (numbers, last) = moments.split_at(moments.len() - 4);
        reseal(&[numbers, &f32::NAN.to_le_bytes()].concat());
        let error = read(&path, &base).expect_err("not finite").to_string();
        assert!(
            error.contains("optimizer.safetensors: exp_avg_sq.")
                && error.ends_with(" holds NaN, expected finite numbers"),
            "{error}"
        );
        reseal(&[numbers, last].concat());
        // Every listed file must exist, whatever else the state contains.
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
    fn another_format_is_refused() {
        let (dir, base) = (tempfile::tempdir().expect("a folder"), Base::tiny().expect("sound"));
        let path = checkpoint(&base, 5).write(dir.path(), &base).expect("written");
        let error = |text: &str| {
            fs::write(path.join(STATE), text).expect("written");
            read(&path, &base).expect_err("another format").to_string()
        };
        let newer = error(r#"{"format": 3, "version": "9.0.0", "anything": "else"}"#);
        let expected = "was written by rullama-train 9.0.0 in format 3; this program reads format 2. Update the program, \
                        choose another output.dir, or start over with --fresh";
        assert_eq!(newer, format!("{} {expected}", path.display()));
        let older = error(r#"{"format": 1, "version": "0.0.9"}"#);
        assert!(older.contains("format 2. Finish the run with that version, choose another"), "{older}");
    }
}
