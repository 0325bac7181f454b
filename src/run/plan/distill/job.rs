//! The work of a teacher: the samples that it reads, and what is kept of them.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::format::Header;
use super::lessons::{Lessons, Rows};
use super::room::kept;
use super::teacher::Teacher;
use crate::data::batch::{Capacity, Sample};
use crate::recipe::Recipe;
use crate::run::identity::sha256;
use crate::run::{OpenBase, PreparedRun, ValidationFile};

/// The work of a teacher.
pub struct Job<'s> {
    /// The teacher.
    pub teacher: &'s Teacher,
    /// The samples that have loss tokens, as the teacher reads them, in the order of the rows.
    pub samples: Vec<&'s Sample>,
    /// Key, sizes and number of its rows.
    pub header: Header,
    /// The logits are divided by it.
    pub temperature: f64,
    /// Bound on a pass.
    pub capacity: Capacity,
}

impl<'s> Job<'s> {
    /// The work of `teacher` for a run on `base` over `samples`, in passes up to `capacity`. `recipe` has a teacher.
    pub fn new(
        recipe: &Recipe,
        base: &OpenBase,
        teacher: &'s Teacher,
        samples: Vec<&'s Sample>,
        capacity: Capacity,
    ) -> Job<'s> {
        let keys = recipe.distill.as_ref();
        let (top_k, temperature) = keys.map_or((0, 1.0), |keys| (keys.top_k, keys.temperature));
        let (top, whole) = kept(top_k, teacher.count, base.base.config().vocab);
        let samples = samples.into_iter().map(Sample::for_teacher);
        let samples: Vec<&Sample> = samples.filter(|sample| sample.loss_tokens() > 0).collect();
        let rows = samples.iter().map(|sample| sample.loss_tokens()).sum();
        let longest = samples.iter().map(|sample| sample.ids.len()).max().unwrap_or(1);
        let (loss_tokens, tokens) = (capacity.loss_tokens, capacity.tokens.max(longest));
        let capacity =
            Capacity { tokens, longest, step_loss_tokens: loss_tokens, loss_tokens, ..Capacity::LEAST };
        let mut hash = Sha256::new();
        hash.update(teacher.base.fingerprint().to_string());
        hash.update(base.template.digest());
        for number in [teacher.count, top, capacity.tokens, capacity.loss_tokens] {
            hash.update((number as u64).to_le_bytes());
        }
        hash.update(temperature.to_le_bytes());
        for sample in &samples {
            hash.update((sample.ids.len() as u64).to_le_bytes());
            hash.update(bytemuck::cast_slice::<u32, u8>(&sample.ids));
            hash.update(bytemuck::cast_slice::<i32, u8>(&sample.labels));
        }
        let header = Header { key: sha256(&hash.finalize()), top, whole, rows };
        Job { teacher, samples, header, temperature, capacity }
    }

    /// Tokens that pass through the teacher.
    pub fn tokens(&self) -> usize {
        self.samples.iter().map(|sample| sample.ids.len()).sum()
    }
}

impl PreparedRun {
    /// The work of `teacher` for this run: the samples of its steps, and those of validation.
    pub fn lessons<'s>(&'s self, recipe: &Recipe, base: &OpenBase, teacher: &'s Teacher) -> Job<'s> {
        let used = self.used();
        let train = self.data.train.iter().zip(used).filter(|(_, used)| *used).map(|(sample, _)| sample);
        let samples = train.chain(&self.data.validation).collect();
        Job::new(recipe, base, teacher, samples, self.capacity)
    }

    /// Hands out the rows of [`PreparedRun::lessons`].
    pub fn learn(&self, rows: &Arc<Rows>) {
        let mut next = 0;
        let used = self.used();
        let each = self.data.train.iter().zip(used);
        let places = each.map(|(sample, used)| used.then(|| place(sample, &mut next))).collect();
        // A second run over the same samples finds the same rows.
        let _ = self.steps.comparing.lessons.set(Lessons::new(rows, places));
        learn_files(&self.validation, &self.data.validation, rows, next);
    }
}

/// Hands out rows to validation files, from row `first` on.
pub fn learn_files(files: &[ValidationFile], validation: &[Sample], rows: &Arc<Rows>, first: usize) {
    let (mut next, mut rest) = (first, validation);
    for file in files {
        let (own, others) = rest.split_at(file.count);
        rest = others;
        let places = own.iter().map(|sample| Some(place(sample, &mut next))).collect();
        let _ = file.comparing.lessons.set(Lessons::new(rows, places));
    }
}

fn place(sample: &Sample, next: &mut usize) -> usize {
    let first = *next;
    *next += sample.loss_tokens();
    first
}
