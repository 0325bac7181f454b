//! From the recipe's `[data]` to samples: sources, template, cache, validation part.

use std::path::PathBuf;

use super::{Frozen, RunError, batching};
use crate::base::Base;
use crate::data::batch::{Batching, MicroBatch, Sample, Step};
use crate::data::dataset::cache::Cache;
use crate::data::dataset::{
    self, Dataset, DatasetError, Found, Notice, Options, Problem, What, files as dataset_files,
};
use crate::data::template::{Date, Jinja, Template};
use crate::families;
use crate::files;
use crate::recipe::{self, Recipe};

/// Training and validation samples, and what was left out of them.
pub struct Data {
    /// Training samples.
    pub train: Vec<Sample>,
    /// How often an epoch shows each of them.
    pub weights: Vec<f64>,
    /// Validation samples; empty where the recipe wants none.
    pub validation: Vec<Sample>,
    /// The files that these come from and how many each has, in their order; none where they were split off.
    pub validation_counts: Vec<(String, usize)>,
    /// Every file that was read.
    pub sources: Vec<Source>,
    /// What the user should know.
    pub notices: Vec<Notice>,
}

/// A file that was read.
pub struct Source {
    /// Its path.
    pub path: PathBuf,
    /// What it turned out to be.
    pub found: Found,
    /// How often an epoch shows each of its samples; of validation samples always 1.
    pub weight: f64,
    /// How many samples it gave.
    pub samples: usize,
}

impl Data {
    /// Reads what `recipe` names.
    pub fn read(recipe: &Recipe, frozen: &Frozen) -> Result<Data, RunError> {
        let d = &recipe.data;
        let mut reader = Reader::new(recipe, frozen);
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
        data.notices.extend(dataset::duplicates(&train, &data.validation));
        Ok(Data { train, weights, ..data })
    }

    /// Reads `paths` as validation samples, as `recipe` wants them read, and nothing else.
    pub fn read_validation(recipe: &Recipe, frozen: &Frozen, paths: &[PathBuf]) -> Result<Data, RunError> {
        Reader::new(recipe, frozen).validation(paths)
    }

    /// The validation samples as micro-batches of the recipe's size, in file order, each file on its own.
    pub fn validation_files(&self, recipe: &Recipe) -> Result<Vec<ValidationFile>, RunError> {
        let batching = Batching { shuffle: false, gradient_accumulation_steps: 1, ..batching(recipe) };
        let split_off = [("data.train".to_string(), self.validation.len())];
        let files = if self.validation_counts.is_empty() { &split_off[..] } else { &self.validation_counts };
        let (mut found, mut rest) = (Vec::new(), &self.validation[..]);
        for (name, count) in files.iter().filter(|(_, count)| *count > 0) {
            let (samples, others) = rest.split_at(*count);
            rest = others;
            let lengths: Vec<usize> = samples.iter().map(|s| s.ids.len()).collect();
            let steps = batching.plan_epoch(&lengths, 0)?;
            let batches = steps.iter().flat_map(|plan| Step::new(samples, plan).micro_batches).collect();
            found.push(ValidationFile { name: name.clone(), samples: *count, batches });
        }
        Ok(found)
    }
}

/// Validation samples of one file.
pub struct ValidationFile {
    /// The file; `data.train` where they were split off.
    pub name: String,
    /// How many.
    pub samples: usize,
    /// Packed.
    pub batches: Vec<MicroBatch>,
}

struct Reader<'a> {
    recipe: &'a Recipe,
    frozen: &'a Frozen,
    cache: Option<Cache>,
    sources: Vec<Source>,
    notices: Vec<Notice>,
}

impl<'a> Reader<'a> {
    fn new(recipe: &'a Recipe, frozen: &'a Frozen) -> Reader<'a> {
        let mut notices = Vec::new();
        if let Template::Jinja(jinja) = &frozen.template
            && jinja.writes_date()
        {
            let (year, month, day) = jinja.today().civil();
            let what = What::Date(format!("{year}-{month:02}-{day:02} (UTC)"));
            notices.push(Notice { place: "data.template".into(), what });
        }
        Reader { recipe, frozen, cache: cache(&recipe.data.cache), sources: Vec::new(), notices }
    }

    /// What was read, with the samples of `paths` for validation and none for training.
    fn validation(mut self, paths: &[PathBuf]) -> Result<Data, RunError> {
        let (before, mut validation) = (self.sources.len(), Vec::new());
        for path in paths {
            let (format, train_on) = (self.recipe.data.format, self.recipe.data.train_on);
            let source = recipe::DataSource { path: path.clone(), weight: 1.0, format, train_on };
            validation.extend(self.read(&source)?);
        }
        let count = |source: &Source| (source.path.display().to_string(), source.samples);
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
        let d = &self.recipe.data;
        let options = Options {
            format: source.format,
            template: &self.frozen.template,
            train_on: source.train_on,
            max_seq_len: d.max_seq_len,
            overlong: d.overlong,
            invalid: d.invalid,
        };
        let (paths, skipped) = dataset_files::expand(&source.path)?;
        self.notices.extend(skipped);
        let mut all = Vec::new();
        for path in paths {
            let read = dataset_files::read(&path, &self.frozen.tokenizer, &options, self.cache.as_ref())?;
            let Dataset { samples, notices, found } = read;
            self.notices.extend(notices);
            self.sources.push(Source { path, found, weight: source.weight, samples: samples.len() });
            all.extend(samples);
        }
        Ok(all)
    }
}

fn cache(setting: &recipe::Cache) -> Option<Cache> {
    match setting {
        recipe::Cache::User => Cache::of_user(),
        recipe::Cache::Off => None,
        recipe::Cache::Folder(dir) => Some(Cache::new(dir.clone())),
    }
}

/// The template that a recipe means for a base.
pub fn template(setting: &recipe::Template, base: &Base) -> Result<Template, RunError> {
    let own = base.gguf().get::<&str>("tokenizer.chat_template")?;
    let jinja = |source: &str| {
        Ok(Template::Jinja(Box::new(Jinja::new(source, today()).map_err(RunError::Template)?)))
    };
    let built_in = Template::BuiltIn(families::template(base.config()));
    match setting {
        recipe::Template::BuiltIn(family) if *family == base.config().architecture => Ok(built_in),
        recipe::Template::BuiltIn(family) => Err(RunError::Conflict(format!(
            "data.template = \"{family}\", but {} is a model of architecture {found}; choose \"{found}\" or a file",
            base.name(),
            found = base.config().architecture
        ))),
        // Ollama renders by its own code, whatever its file says; the built-in model is part of this program.
        recipe::Template::Auto if base.is_file() => match own {
            Some(source) => jinja(source),
            None => Ok(built_in),
        },
        recipe::Template::Auto => Ok(built_in),
        recipe::Template::Gguf => match own {
            Some(source) => jinja(source),
            None => Err(RunError::Conflict(format!(
                "data.template = \"gguf\", but {} holds no tokenizer.chat_template; choose \"{}\" or a file",
                base.name(),
                base.config().architecture
            ))),
        },
        recipe::Template::File(path) => match files::read_to_string(path) {
            Ok(source) => jinja(&source),
            Err(error) => Err(DatasetError {
                place: path.display().to_string(),
                problem: Problem::Read(error.to_string()),
            }
            .into()),
        },
    }
}

/// Today, in UTC.
fn today() -> Date {
    let now = web_time::SystemTime::now().duration_since(web_time::UNIX_EPOCH);
    Date(now.map_or(0, |now| (now.as_secs() / 86_400) as i64))
}
