//! From a recipe to everything that a run needs before it touches a device.

use crate::adapter::lora::{self, Adapter, Slot};
use crate::base::Module;
use crate::base::config::Config;
use crate::base::{self, Base, Fingerprint};
use crate::data::batch::{BatchError, Batching, MicroBatch, Sample, Step, StepPlan, draw};
use crate::data::dataset::DatasetError;
use crate::data::template::{BuiltIn, Conversation, Message, Role, Template, TemplateError};
use crate::data::tokenizer::Tokenizer;
use crate::export::{self, AdapterPath, Loaded, Origin};
use crate::families;
use crate::model::plan::{Offload, Recompute};
use crate::recipe::{self, Recipe, Switch, TargetModules};
use crate::train::schedule::Schedule;
use crate::train::trainer::{Capacity, Dropout, Optimizer};

pub mod checkpoint;
mod course;
mod data;
pub mod digest;
pub mod finetune;
mod load;
pub mod metrics;
mod prepared;
mod step;
pub mod wording;
pub use course::{Course, Recorded};
pub use data::{Data, Source, ValidationFile, template};
pub use load::load;
pub use prepared::Prepared;

/// Why a recipe cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The base.
    #[error(transparent)]
    Base(#[from] base::Error),
    /// The data.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The order of the data.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// An adapter that is loaded.
    #[error(transparent)]
    Adapter(#[from] export::Error),
    /// The chat template.
    #[error("data.template: {0}")]
    Template(TemplateError),
    /// A prompt of `[eval] samples`.
    #[error("eval.samples: {0}")]
    Prompt(#[from] TemplateError),
    /// Something that does not go with something else.
    #[error("{0}")]
    Conflict(String),
}

/// The frozen base with its tokenizer.
pub struct Frozen {
    /// The model's file.
    pub base: Base,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its built-in chat layout.
    pub layout: &'static BuiltIn,
    /// What it is recognized by.
    pub fingerprint: Fingerprint,
    /// How conversations become text in this run.
    pub template: Template,
}

impl Frozen {
    /// Opens the base that `recipe` names.
    #[cfg(feature = "native")]
    pub fn open(recipe: &Recipe) -> Result<Frozen, RunError> {
        let frozen = Frozen::named(&recipe.model.base, &recipe.data.template)?;
        frozen.check(recipe)?;
        Ok(frozen)
    }

    /// Refuses a base that `recipe` was not written for, or whose context is too short for it.
    pub fn check(&self, recipe: &Recipe) -> Result<(), RunError> {
        if let Some(wanted) = recipe.model.fingerprint.as_ref().filter(|wanted| **wanted != self.fingerprint)
        {
            return Err(RunError::Conflict(format!(
                "{} has the fingerprint {}, model.fingerprint is {wanted}; use the base that the recipe was \
                 written for, or remove that key",
                self.base.name(),
                self.fingerprint
            )));
        }
        if recipe.train.offload_experts == Switch::On {
            if self.base.config().layers.iter().all(|l| l.experts.is_none()) {
                return Err(RunError::Conflict(wording::not_a_mixture(
                    "train.offload_experts",
                    self.base.name(),
                )));
            }
            if cfg!(target_arch = "wasm32") {
                return Err(RunError::Conflict(
                    "train.offload_experts is true, which a browser has too little memory for; remove that key, or train with \
                     the program"
                        .into(),
                ));
            }
        }
        let trained = self.base.config().context_length;
        if recipe.data.max_seq_len > trained {
            return Err(RunError::Conflict(format!(
                "data.max_seq_len = {}, but {} was trained for {trained} positions; lower it",
                recipe.data.max_seq_len,
                self.base.name(),
            )));
        }
        Ok(())
    }

    /// Opens a base by what [`Base::open`] takes, with a template.
    #[cfg(feature = "native")]
    pub fn named(spec: &str, template: &crate::recipe::Template) -> Result<Frozen, RunError> {
        Frozen::of(Base::open(spec)?, template)
    }

    /// An open base with a template.
    pub fn of(base: Base, template: &crate::recipe::Template) -> Result<Frozen, RunError> {
        let fingerprint = base.fingerprint();
        let tokenizer = Tokenizer::from_gguf(base.gguf())?;
        let config = base.config();
        if tokenizer.vocab_size() > config.vocab {
            return Err(RunError::Conflict(format!(
                "{}: the tokenizer has {} tokens, token_embd.weight has {} rows; the file is damaged, download it again",
                base.name(),
                tokenizer.vocab_size(),
                config.vocab
            )));
        }
        let layout = families::template(config);
        let template = data::template(template, &base)?;
        Ok(Frozen { base, tokenizer, layout, template, fingerprint })
    }

    /// Ids of a user's message with the prompt for the reply.
    pub fn prompt(&self, text: &str) -> Result<Vec<u32>, TemplateError> {
        let conversation = Conversation::new(vec![Message::new(Role::User, text)]);
        self.template.prompt(&self.tokenizer, &conversation)
    }
}

/// Every optimizer step of a run, as indices into the training samples.
pub struct Steps {
    /// In order; an epoch follows the other.
    pub plans: Vec<StepPlan>,
    /// The learning rate of each.
    pub schedule: Schedule,
}

impl Steps {
    /// Plans `epochs` epochs, or as many as `max_steps` needs.
    pub fn plan(recipe: &Recipe, samples: &[Sample]) -> Result<Steps, RunError> {
        Steps::plan_weighted(recipe, samples, &vec![1.0; samples.len()])
    }

    /// The same where an epoch shows each sample `weights` times; see [`draw`].
    pub fn plan_weighted(recipe: &Recipe, samples: &[Sample], weights: &[f64]) -> Result<Steps, RunError> {
        let batching = batching(recipe);
        let mut plans = Vec::new();
        let mut epoch = 0;
        while recipe.train.max_steps.map_or(epoch < recipe.train.epochs, |max| plans.len() < max) {
            let drawn = draw(weights, recipe.train.seed, epoch as u64);
            let lengths: Vec<usize> = drawn.iter().map(|&i| samples[i].ids.len()).collect();
            let mut steps = batching.plan_epoch(&lengths, epoch as u64)?;
            steps.iter_mut().flatten().flatten().for_each(|index| *index = drawn[*index]);
            if steps.is_empty() {
                return Err(RunError::Conflict(
                    "data.sources: their weights leave an epoch without samples; raise them".into(),
                ));
            }
            plans.extend(steps);
            epoch += 1;
        }
        plans.truncate(recipe.train.max_steps.unwrap_or(usize::MAX));
        let schedule = Schedule::new(&recipe.train, plans.len());
        Ok(Steps { plans, schedule })
    }

    /// Step `index`, from 0.
    pub fn step(&self, samples: &[Sample], index: usize) -> Step {
        Step::new(samples, &self.plans[index])
    }
}

fn batching(recipe: &Recipe) -> Batching {
    Batching {
        batch_size: recipe.train.batch_size,
        gradient_accumulation_steps: recipe.train.gradient_accumulation_steps,
        max_seq_len: recipe.data.max_seq_len,
        packing: recipe.data.packing,
        shuffle: recipe.data.shuffle,
        seed: recipe.train.seed,
    }
}

/// What a trainer must hold for these steps and validation batches.
pub fn capacity(steps: &Steps, samples: &[Sample], validation: &[ValidationFile]) -> Capacity {
    let mut capacity = Capacity { tokens: 1, longest: 1, loss_tokens: 1, step_loss_tokens: 1 };
    for index in 0..steps.plans.len() {
        capacity.include(&steps.step(samples, index));
    }
    for batch in validation.iter().flat_map(|file| &file.batches) {
        capacity.include(&Step { loss_tokens: batch.loss_rows.len(), micro_batches: vec![batch.clone()] });
    }
    capacity
}

/// The micro-batches of the run that ask the most of the device: the one with most tokens, and the one with most tokens
/// that carry loss.
pub fn largest(steps: &Steps, samples: &[Sample]) -> Vec<MicroBatch> {
    let plans = || steps.plans.iter().flatten();
    let longest = plans().max_by_key(|plan| plan.iter().map(|&i| samples[i].ids.len()).sum::<usize>());
    let heaviest = plans().max_by_key(|plan| plan.iter().map(|&i| samples[i].loss_tokens()).sum::<usize>());
    let mut largest: Vec<&Vec<usize>> = longest.into_iter().chain(heaviest).collect();
    largest.dedup();
    largest.iter().map(|plan| MicroBatch::pack(plan.iter().map(|&i| &samples[i]))).collect()
}

/// The slots that the recipe's `target_modules` mean in this model.
pub fn slots(recipe: &Recipe, config: &Config) -> Result<Vec<Slot>, RunError> {
    let slots = lora::slots(config, recipe.lora.target_modules.modules());
    if let TargetModules::Only(modules) = &recipe.lora.target_modules {
        let missing = |m: &&Module| !slots.iter().any(|s| s.module == **m);
        if let Some(module) = modules.iter().find(missing) {
            return Err(RunError::Conflict(format!(
                "lora.target_modules names {}, which this model does not have; it has {}",
                module.gguf_name(),
                names(&lora::slots(config, &Module::ALL))
            )));
        }
    }
    Ok(slots)
}

/// The adapter that training starts from: fresh, or `lora.init_from`. Fails where `output.export` cannot hold it.
pub fn initial_adapter(recipe: &Recipe, base: &Base) -> Result<Loaded, RunError> {
    let (slots, l) = (slots(recipe, base.config())?, &recipe.lora);
    // Said before hours of training rather than after.
    for format in &recipe.output.export {
        let lacking = |s: &&Slot| format.lacks(s, base.config()).is_some();
        let lacking: Vec<Slot> = slots.iter().filter(lacking).copied().collect();
        if !lacking.is_empty() {
            return Err(RunError::Conflict(format!(
                "output.export has \"{}\", which has no place for {}; leave these out of lora.target_modules, or leave \
                 out that format",
                format.name(),
                names(&lacking)
            )));
        }
    }
    if !l.init_from.is_empty() {
        return read_adapters(&l.init_from, base, &slots, recipe);
    }
    let adapter = Adapter::init(&slots, l.rank, l.alpha, l.rslora, recipe.train.seed);
    Ok(Loaded { adapter, origin: Origin::default(), notices: Vec::new() })
}

/// Adapters in any format, or their weighted sum, of the recipe's rank and scale.
///
/// A whole adapter must have that scale and takes over the recipe's alpha, which not all files hold; a sum has no scale of
/// its own and is given it.
pub fn read_adapters(
    paths: &[AdapterPath],
    base: &Base,
    slots: &[Slot],
    recipe: &Recipe,
) -> Result<Loaded, RunError> {
    let l = &recipe.lora;
    let mut found = export::load(paths, base, Some(slots), l.allow_other_base.into())?;
    let wanted = Adapter { rank: l.rank, alpha: l.alpha, rslora: l.rslora, pairs: Default::default() };
    let names = paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" + ");
    let whole = matches!(paths, [AdapterPath { weight: 1.0, .. }]);
    if !whole && found.adapter.rank != l.rank {
        return Err(RunError::Conflict(format!(
            "{names} have rank {} together; the recipe has rank = {}; make them equal",
            found.adapter.rank, l.rank
        )));
    }
    if whole && (found.adapter.rank != l.rank || !export::same_scale(&wanted, &found.adapter)) {
        return Err(RunError::Conflict(format!(
            "{names} has rank = {}, alpha = {}, rslora = {}; the recipe has rank = {}, alpha = {}, rslora = {}; make them \
             equal",
            found.adapter.rank, found.adapter.alpha, found.adapter.rslora, l.rank, l.alpha, l.rslora
        )));
    }
    found.adapter = match whole {
        true => Adapter { pairs: found.adapter.pairs, ..wanted },
        false => found.adapter.rescaled(l.alpha, l.rslora),
    };
    Ok(found)
}

/// The different modules among `slots`, for messages.
pub fn names(slots: &[Slot]) -> String {
    let present = Module::ALL.into_iter().filter(|m| slots.iter().any(|s| s.module == *m));
    present.map(Module::gguf_name).collect::<Vec<_>>().join(", ")
}

/// The optimizer that the recipe describes.
pub fn optimizer(recipe: &Recipe) -> Optimizer {
    let t = &recipe.train;
    let adam = crate::ops::adamw::AdamW {
        beta1: t.adam_beta1,
        beta2: t.adam_beta2,
        epsilon: t.adam_epsilon,
        weight_decay: t.weight_decay,
    };
    Optimizer {
        adam: (t.optimizer == recipe::Optimizer::Adamw).then_some(adam),
        weight_decay: t.weight_decay,
        max_grad_norm: t.max_grad_norm,
    }
}

/// With `gradient_checkpointing = "auto"`, activations are kept up to this size.
const KEEP_UP_TO: u64 = 4 << 30;

/// Which activations the recipe wants kept.
pub fn recompute(recipe: &Recipe) -> Recompute {
    match recipe.train.gradient_checkpointing {
        Switch::Auto => match recipe.train.memory_limit {
            Some(gib) => Recompute::Within((gib * f64::from(1 << 30)) as u64),
            None => Recompute::Keep(KEEP_UP_TO),
        },
        Switch::On => Recompute::Always,
        Switch::Off => Recompute::Never,
    }
}

/// Which experts the recipe lets stay in host memory; none in a browser, which has too little of it.
pub fn offload(recipe: &Recipe) -> Offload {
    match recipe.train.offload_experts {
        _ if cfg!(target_arch = "wasm32") => Offload::Never,
        Switch::Auto => Offload::Auto,
        Switch::On => Offload::All,
        Switch::Off => Offload::Never,
    }
}

/// The dropout that the recipe describes.
pub fn dropout(recipe: &Recipe) -> Dropout {
    Dropout { probability: recipe.lora.dropout, seed: recipe.train.seed }
}
