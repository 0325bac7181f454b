//! Log-probabilities under the reference: the adapter that training starts from, without dropout.
//!
//! A new adapter computes what the base computes. An adapter from `lora.init_from` is the reference itself, as in TRL, where
//! a copy of it is. They are computed once before the first step, and kept in the run's folder under a digest of everything
//! that decides them.

use std::path::Path;

use sha2::{Digest, Sha256};
use web_time::Instant;

use super::identity::sha256;
pub use super::references::{References, digest};
use super::{DriveError, Host, Phase, PreparedRun, Run, RunEvent, ValidationFile};
use crate::adapter::lora::Adapter;
use crate::data::batch::{MicroBatch, Sample};
use crate::files;
use crate::gpu::GpuError;
use crate::train::{TrainError, Trainer};

/// The file in the run's folder.
pub const FILE: &str = "reference.bin";
const MAGIC: &[u8; 8] = b"RLREFER1";
/// Seconds between two writes of the file.
const WRITE_EVERY: f64 = 20.0;

impl PreparedRun {
    /// Every sample whose log-probability under the reference is needed: those of the steps, then those of validation.
    fn referred(&self) -> Vec<&Sample> {
        let used = self.used();
        let used = |samples: &'_ [Sample]| -> Vec<usize> {
            (0..samples.len()).filter(|&index| used[index] && !samples[index].ids.is_empty()).collect()
        };
        let (train, mismatched) = (&self.data.train, &self.steps.comparing.mismatched);
        let mut all: Vec<&Sample> = used(train).into_iter().map(|index| &train[index]).collect();
        all.extend(used(mismatched).into_iter().map(|index| &mismatched[index]));
        for comparing in self.validation.iter().map(|file| &file.comparing) {
            all.extend(comparing.mismatched.iter().filter(|sample| !sample.ids.is_empty()));
        }
        all.extend(&self.data.validation);
        all
    }

    /// Hands out the values of [`PreparedRun::referred`], in its order.
    fn refer(&self, values: &[f64]) {
        let used = self.used();
        let mut values = values.iter().copied();
        let mut take = |taken: bool| if taken { values.next().unwrap_or(0.0) } else { 0.0 };
        let samples = used.iter().map(|&used| take(used)).collect();
        let mismatched = self.steps.comparing.mismatched.iter().zip(&used);
        let mismatched = mismatched.map(|(sample, &used)| take(used && !sample.ids.is_empty())).collect();
        // A second run over the same plans finds the same values.
        let _ = self.steps.comparing.references.set(References { samples, mismatched });
        let of_files: Vec<Vec<f64>> = (self.validation.iter())
            .map(|file| file.comparing.mismatched.iter().map(|s| take(!s.ids.is_empty())).collect())
            .collect();
        for (file, mismatched) in self.validation.iter().zip(of_files) {
            let samples = (0..file.count).map(|_| take(true)).collect();
            let _ = file.comparing.references.set(References { samples, mismatched });
        }
    }

    /// Computes the reference with the adapter that `trainer` holds; its ranks divide the samples, and all must pass the same `values`,
    /// those that are known. `progress` gets the number of samples done and of all, and the values so far; it returns false to stop, and
    /// the result is then false on every rank.
    pub async fn compute_reference<E: From<TrainError>>(
        &self,
        trainer: &Trainer<'_>,
        mut values: Vec<f64>,
        mut progress: impl FnMut(usize, usize, &[f64]) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let samples = self.referred();
        let ranks = trainer.ranks();
        let mut rest = &samples[values.len().min(samples.len())..];
        while !rest.is_empty() {
            let stop = !progress(values.len(), samples.len(), &values)?;
            if ranks.largest(stop.into()).map_err(TrainError::from)? > 0 {
                return Ok(false);
            }
            // Each rank scores one batch of a round; the values are in the order of the samples.
            let round: Vec<&[&Sample]> = (0..ranks.size()).map(|_| next_batch(trainer, &mut rest)).collect();
            let own = score_batch(trainer, round[ranks.rank()]).await.map_err(TrainError::from)?;
            let all = ranks.gather(&to_bytes(&own)).map_err(TrainError::from)?;
            values.extend(from_bytes(&all.concat()));
        }
        progress(values.len(), samples.len(), &values)?;
        self.refer(&values);
        Ok(true)
    }
}

/// Computes the reference of validation files alone, with the adapter that `trainer` holds.
pub async fn refer_files(
    files: &[ValidationFile],
    validation: &[Sample],
    trainer: &Trainer<'_>,
) -> Result<(), GpuError> {
    let mut first = 0;
    for file in files {
        let own = &validation[first..first + file.count];
        first += file.count;
        let samples = score(trainer, own).await?;
        let mismatched = score(trainer, &file.comparing.mismatched).await?;
        let _ = file.comparing.references.set(References { samples, mismatched });
    }
    Ok(())
}

async fn score(trainer: &Trainer<'_>, samples: &[Sample]) -> Result<Vec<f64>, GpuError> {
    let filled: Vec<&Sample> = samples.iter().filter(|sample| !sample.ids.is_empty()).collect();
    let (mut rest, mut found) = (&filled[..], Vec::new());
    while !rest.is_empty() {
        found.extend(score_batch(trainer, next_batch(trainer, &mut rest)).await?);
    }
    let mut found = found.into_iter();
    let mut value = |sample: &Sample| if sample.ids.is_empty() { 0.0 } else { found.next().unwrap_or(0.0) };
    Ok(samples.iter().map(&mut value).collect())
}

/// The log-probabilities of the answers of samples that fit one pass.
async fn score_batch(trainer: &Trainer<'_>, samples: &[&Sample]) -> Result<Vec<f64>, GpuError> {
    if samples.is_empty() {
        return Ok(Vec::new());
    }
    let batch = MicroBatch::pack(samples.iter().copied());
    let (scores, _) = trainer.score(std::slice::from_ref(&batch), |_| ()).await?;
    Ok(scores.iter().map(|score| score.logp).collect())
}

/// Takes as many samples off `rest` as fit one pass.
fn next_batch<'s, 't>(trainer: &Trainer<'_>, rest: &mut &'s [&'t Sample]) -> &'s [&'t Sample] {
    let (own, others) = rest.split_at(fitting(rest, trainer));
    *rest = others;
    own
}

/// Number of the first samples that fit one pass; at least one, if there are any.
fn fitting(samples: &[&Sample], trainer: &Trainer<'_>) -> usize {
    let capacity = trainer.capacity();
    let (mut tokens, mut loss_tokens) = (0, 0);
    let full = samples.iter().position(|sample| {
        tokens += sample.ids.len();
        loss_tokens += sample.loss_tokens();
        tokens > capacity.tokens || loss_tokens > capacity.loss_tokens
    });
    full.unwrap_or(samples.len()).max(1).min(samples.len())
}

impl Run<'_> {
    /// Computes the reference, or reads it from the run's folder. Returns false if the user asked to stop.
    pub(super) async fn reference<H: Host>(&mut self, host: &mut H) -> Result<bool, H::Error> {
        let prepared = self.prepared;
        if !prepared.needs_reference() || prepared.steps.comparing.references.get().is_some() {
            return Ok(true);
        }
        let path = host.output().map(|dir| dir.join(FILE));
        let key = self.reference_key();
        let known = path.as_deref().and_then(|path| read(path, &key)).unwrap_or_default();
        // Only the first rank has the file.
        let known = self.trainer.ranks().broadcast(to_bytes(&known)).map_err(DriveError::from)?;
        let known = from_bytes(&known);
        let now = self.trainer.adapter().await.map_err(DriveError::from)?;
        self.trainer.set_adapter(self.initial);
        let mut written = Instant::now();
        let run = &*self;
        let progress = |done: usize, of: usize, values: &[f64]| -> Result<bool, Failed<H::Error>> {
            let event = RunEvent::Progress { phase: Phase::Reference, done, of };
            host.on_event(run, event).map_err(Failed::Host)?;
            let stopping = host.is_stopping();
            let due = stopping || done == of || written.elapsed().as_secs_f64() > WRITE_EVERY;
            if let Some(path) = path.as_ref().filter(|_| due) {
                write(path, &key, values).map_err(Failed::Write)?;
                written = Instant::now();
            }
            Ok(!stopping || done == of)
        };
        let found = prepared.compute_reference(&self.trainer, known, progress).await;
        self.trainer.set_adapter(&Adapter { pairs: now, ..self.initial.clone() });
        found.map_err(|failed| match failed {
            Failed::Host(error) => error,
            Failed::Train(error) => DriveError::from(error).into(),
            Failed::Write(error) => DriveError::from(error).into(),
        })
    }

    /// The digest of everything that decides the values.
    fn reference_key(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(&self.identity.base);
        hash.update(digest(self.initial));
        hash.update(self.base.template.digest());
        for sample in self.prepared.referred() {
            hash.update((sample.ids.len() as u64).to_le_bytes());
            hash.update(bytemuck::cast_slice::<u32, u8>(&sample.ids));
            hash.update(bytemuck::cast_slice::<i32, u8>(&sample.labels));
        }
        sha256(&hash.finalize())
    }
}

enum Failed<E> {
    Host(E),
    Train(TrainError),
    Write(files::Error),
}

impl<E> From<TrainError> for Failed<E> {
    fn from(error: TrainError) -> Failed<E> {
        Failed::Train(error)
    }
}

fn write(path: &Path, key: &str, values: &[f64]) -> Result<(), files::Error> {
    let mut bytes = [&MAGIC[..], key.as_bytes()].concat();
    bytes.extend(to_bytes(values));
    let sum = sha256(&bytes);
    bytes.extend(sum.as_bytes());
    files::write_atomic(path, &bytes)
}

/// The values in the file; `None` if there are none, if they are damaged, or if they belong to something else.
fn read(path: &Path, key: &str) -> Option<Vec<f64>> {
    let bytes = files::read(path).ok()?;
    let (rest, sum) = bytes.split_at_checked(bytes.len().checked_sub(64)?)?;
    if sha256(rest).as_bytes() != sum {
        return None;
    }
    let values = rest.strip_prefix(MAGIC)?.strip_prefix(key.as_bytes())?;
    Some(from_bytes(values))
}

fn to_bytes(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn from_bytes(bytes: &[u8]) -> Vec<f64> {
    let (values, _) = bytes.as_chunks::<8>();
    values.iter().map(|value| f64::from_le_bytes(*value)).collect()
}
