//! Reading the samples that the recipe's `[data]` names.

use std::path::PathBuf;

use super::compare::{Comparing, plan_units};
use super::settings::batching;
use super::{OpenBase, RunError};
use crate::data::batch::{Batching, Capacity, MicroBatch, Sample, Step};
use crate::data::compare::units;
use crate::data::dataset::cache::Cache;
use crate::data::dataset::{self, Dataset, Found, Notice, Options, What, files as dataset_files};
use crate::data::template::Template;
use crate::recipe::{self, Recipe};
use crate::talk::unwritten;
use crate::train::TrainError;

/// Fewer training samples than this are worth a warning.
const FEW: usize = 10;

/// Training and validation samples, and notices about how they were read.
pub struct Data {
    /// Training samples.
    pub train: Vec<Sample>,
    /// Number of times that an epoch shows each of them.
    pub weights: Vec<f64>,
    /// Validation samples; empty if the recipe has none.
    pub validation: Vec<Sample>,
    /// Validation files and their sample counts, in the order of `validation`. Empty if the samples were split off the
    /// training samples.
    pub validation_counts: Vec<(String, usize)>,
    /// All files that were read.
    pub sources: Vec<SourceFile>,
    /// Warnings for the user.
    pub notices: Vec<Notice>,
}

/// A file that samples were read from.
pub struct SourceFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Its detected format.
    pub found: Found,
    /// Number of times that an epoch shows each of its samples; always 1 for validation samples.
    pub weight: f64,
    /// Number of its samples.
    pub samples: usize,
}

impl Data {
    /// Reads the training and validation samples of `recipe`.
    pub fn read(recipe: &Recipe, base: &OpenBase) -> Result<Data, RunError> {
        let d = &recipe.data;
        let mut reader = Reader::new(recipe, base);
        let (mut train, mut weights) = (Vec::new(), Vec::new());
        for source in d.training() {
            let samples = reader.read(&source)?;
            weights.resize(weights.len() + samples.len(), source.weight);
            train.extend(samples);
        }
        let mut data = reader.validation(&d.valid)?;
        if data.validation.is_empty() && d.val_size > 0.0 {
            let split = dataset::split(train, d.val_size, recipe.train.seed)?;
            weights = split.kept.iter().map(|&index| weights[index]).collect();
            (train, data.validation) = (split.train, split.validation);
        }
        let count = units(&train).len();
        if count < FEW {
            data.notices.push(Notice { place: "data.train".into(), what: What::Few(count) });
        }
        let asked = recipe.eval.samples.iter().map(String::as_str);
        if let Some(notice) = unwritten::notice(&base.tokenizer, asked) {
            data.notices.push(Notice { place: "eval.samples".into(), what: What::Base(notice) });
        }
        data.notices.extend(dataset::duplicates(&train, &data.validation));
        Ok(Data { train, weights, ..data })
    }

    /// Reads only `paths`, as validation samples, with the settings of `recipe`.
    pub fn read_validation(recipe: &Recipe, base: &OpenBase, paths: &[PathBuf]) -> Result<Data, RunError> {
        Reader::new(recipe, base).validation(paths)
    }

    /// The validation samples as micro-batches of the recipe's size, in order and separately for each file.
    pub fn validation_files(&self, recipe: &Recipe) -> Result<Vec<ValidationFile>, RunError> {
        let batching = Batching { shuffle: false, gradient_accumulation_steps: 1, ..batching(recipe) };
        let split_off = [("data.train".to_string(), self.validation.len())];
        let files = if self.validation_counts.is_empty() { &split_off[..] } else { &self.validation_counts };
        let (mut found, mut rest) = (Vec::new(), &self.validation[..]);
        for (name, count) in files.iter().filter(|(_, count)| *count > 0) {
            let (samples, others) = rest.split_at(*count);
            rest = others;
            let plans = plan_units(&batching, samples, &units(samples), 0)?;
            let comparing = Comparing::new(recipe, samples);
            let steps = plans.iter().map(|plan| comparing.step(samples, plan));
            let batches = steps.flat_map(|step| step.micro_batches).collect();
            let plan = plans.into_iter().flatten().collect();
            let units = units(samples).len();
            found.push(ValidationFile {
                name: name.clone(),
                samples: units,
                count: *count,
                batches,
                plan,
                comparing,
            });
        }
        Ok(found)
    }
}

/// The validation samples of one file, packed into micro-batches.
pub struct ValidationFile {
    /// Path of the file; `data.train` for samples that were split off.
    pub name: String,
    /// Number of samples; a pair counts as one.
    pub samples: usize,
    /// Number of samples; a pair counts as two.
    pub count: usize,
    /// The micro-batches.
    pub batches: Vec<MicroBatch>,
    /// The samples of each micro-batch, as indices into those of the file.
    pub plan: Vec<Vec<usize>>,
    /// The samples' comparison, for objectives that compare them.
    pub comparing: Comparing,
}

impl ValidationFile {
    /// All micro-batches as one step, which compares the samples if the objective does, and has what the teacher says, where it is known. `validation`: the samples of all files;
    /// `first`: the first one of this file.
    pub fn step(&self, validation: &[Sample], first: usize) -> Result<Step, TrainError> {
        let own = &validation[first..first + self.count];
        let mut step = self.comparing.step(own, &self.plan);
        self.comparing.teach(&mut step, own, &self.plan)?;
        Ok(step)
    }

    /// Grows `capacity` to fit the micro-batches.
    pub fn include(&self, capacity: &mut Capacity) {
        let batches = self.batches.iter().cloned();
        batches.for_each(|batch| capacity.include(&Step::of(batch)));
        let mismatched = self.comparing.mismatched_batches(&self.plan).into_iter();
        mismatched.for_each(|batch| capacity.include(&Step::of(batch)));
    }
}

struct Reader<'a> {
    recipe: &'a Recipe,
    base: &'a OpenBase,
    cache: Option<Cache>,
    sources: Vec<SourceFile>,
    notices: Vec<Notice>,
}

impl<'a> Reader<'a> {
    fn new(recipe: &'a Recipe, base: &'a OpenBase) -> Reader<'a> {
        let mut notices = Vec::new();
        if let Template::Jinja(jinja) = &base.template
            && jinja.writes_date()
        {
            let (year, month, day) = jinja.today().civil();
            let what = What::Date(format!("{year}-{month:02}-{day:02} (UTC)"));
            notices.push(Notice { place: "data.template".into(), what });
        }
        let of_base = base.tokenizer.notices().iter().cloned().chain(base.base.left_out());
        notices.extend(
            of_base.map(|text| Notice { place: base.base.name().to_owned(), what: What::Base(text) }),
        );
        if let (Some(ollama), Some(system)) = (&base.ollama_system, &recipe.data.system)
            && ollama.trim() != system.trim()
        {
            let what = What::Base(format!(
                "the system message of Ollama's model is {ollama:?}, another one than data.system; Ollama puts its own in front of every \
                 conversation"
            ));
            notices.push(Notice { place: base.base.name().to_owned(), what });
        }
        Reader { recipe, base, cache: cache(&recipe.data.cache), sources: Vec::new(), notices }
    }

    /// Reads `paths` as validation samples and returns everything read so far, without training samples.
    fn validation(mut self, paths: &[PathBuf]) -> Result<Data, RunError> {
        let (before, mut validation) = (self.sources.len(), Vec::new());
        for path in paths {
            let (format, train_on) = (self.recipe.data.format, self.recipe.data.train_on);
            let fields = self.recipe.data.fields.clone();
            let source = recipe::DataSource { path: path.clone(), weight: 1.0, format, train_on, fields };
            validation.extend(self.read(&source)?);
        }
        let count = |source: &SourceFile| (source.path.display().to_string(), source.samples);
        Ok(Data {
            train: Vec::new(),
            weights: Vec::new(),
            validation,
            validation_counts: self.sources[before..].iter().map(count).collect(),
            sources: self.sources,
            notices: self.notices,
        })
    }

    fn read(&mut self, source: &recipe::DataSource) -> Result<Vec<Sample>, RunError> {
        let options = Options {
            format: source.format,
            train_on: source.train_on,
            fields: &source.fields,
            ..options(self.recipe, self.base)
        };
        let (paths, skipped) = dataset_files::expand(&source.path)?;
        self.notices.extend(skipped);
        let (mut all, mut found_notices) = (Vec::new(), Vec::new());
        for path in paths {
            let read = dataset_files::read(&path, &self.base.tokenizer, &options, self.cache.as_ref())?;
            let Dataset { samples, notices, found } = read;
            found_notices.extend(notices);
            self.sources.push(SourceFile { path, found, weight: source.weight, samples: samples.len() });
            all.extend(samples);
        }
        self.notices.extend(dataset::merged(found_notices, &source.path.display().to_string()));
        Ok(all)
    }
}

/// The recipe's settings for reading samples, except those that a source sets for itself.
pub(in crate::run) fn options<'a>(recipe: &'a Recipe, base: &'a OpenBase) -> Options<'a> {
    let d = &recipe.data;
    Options {
        supervision: recipe.train.objective.name.supervision(),
        format: d.format,
        train_on: d.train_on,
        max_seq_len: d.row(),
        overlong: d.overlong,
        invalid: d.invalid,
        fields: &d.fields,
        system: d.system.as_deref(),
        unasked: base.unasked(),
        teacher_prompt: recipe.distill.as_ref().map(|keys| keys.teacher_prompt_template.as_str()),
        completion: recipe.grpo.as_ref().map_or(0, |keys| keys.max_completion_length),
        max_file_size: (d.max_file_size * f64::from(1 << 30)) as u64,
        context: base.base.config().context_length,
        ..Options::new(&base.template)
    }
}

fn cache(setting: &recipe::Cache) -> Option<Cache> {
    match setting {
        recipe::Cache::User => Cache::of_user(),
        recipe::Cache::Off => None,
        recipe::Cache::Folder(dir) => Some(Cache::new(dir.clone())),
    }
}
