//! Opening what a recipe names: samples, steps, the initial adapter, a checkpoint.

use std::path::PathBuf;
use std::rc::Rc;

use rullama_train::adapter::Loaded;
use rullama_train::data::batch::Sample;
use rullama_train::data::dataset::files as dataset_files;
use rullama_train::files;
use rullama_train::gpu::{Backend, Gpu, GpuError};
use rullama_train::model::plan::{Plan, Recompute};
use rullama_train::recipe::{Recipe, Reward, RewardKind, Template as Setting};
use rullama_train::run::checkpoint::Checkpoint;
use rullama_train::run::pace::Work;
use rullama_train::run::{self, Identity, OpenBase, PreparedRun, Ready, wording};
use rullama_train::train::Trainer;
use rullama_train::train::ranks::Ranks;
use rullama_train::words::grouped;

use crate::engine::Stage;
use crate::tree;
use crate::types::{Check, Counts, FileEntry, Problem};

/// Everything that a run needs besides the base.
pub struct Opened {
    /// The recipe with a row length.
    pub recipe: Recipe,
    pub prepared: PreparedRun,
    pub loaded: Loaded,
    pub identity: Identity,
}

impl Opened {
    pub fn read(frozen: &OpenBase, recipe: &Recipe, given: Vec<FileEntry>) -> Result<Opened, Problem> {
        let names: Vec<String> = given.iter().map(|file| file.path.clone()).collect();
        tree::fill(given);
        check_files(recipe, &names)?;
        check_rewards(recipe)?;
        frozen.check(recipe)?;
        let Ready { recipe, prepared, initial } = Ready::read(recipe, frozen)?;
        let identity = prepared.identity(frozen, &initial.adapter);
        Ok(Opened { recipe, prepared, loaded: initial, identity })
    }

    /// The memory that training will need, before anything but the adapter is on the device.
    pub fn plan(&self, gpu: &Gpu, frozen: &OpenBase) -> Result<Plan, Problem> {
        let recipe = &self.recipe;
        let PreparedRun { capacity, positions, .. } = self.prepared;
        let plan = run::plan(gpu, &frozen.base, recipe, &self.loaded.adapter, capacity, positions)?;
        match run::recompute(recipe) {
            Recompute::Within(limit) if plan.total() > limit => Err(Problem::of_key(
                "train.memory_limit",
                wording::over_memory_limit(recipe, capacity, plan.total(), ""),
            )),
            _ => Ok(plan),
        }
    }

    /// Allocates the buffers for training.
    pub fn trainer<'a>(&self, stage: &Stage<'a>, recipe: &Recipe) -> Result<Trainer<'a>, Problem> {
        let (dropout, recompute) = (run::dropout(recipe), run::recompute(recipe));
        let (adapter, capacity) = (&self.loaded.adapter, self.prepared.capacity);
        let trainer = Trainer::new(stage.gpu, stage.model, adapter, capacity, dropout, recompute);
        let trainer = trainer.map(|trainer| trainer.with_objective(run::objective(recipe)));
        let mut trainer = trainer.map_err(|error| match error {
            GpuError::OverLimit { needed, .. } => Problem::of_key(
                "train.memory_limit",
                wording::over_memory_limit(recipe, capacity, needed, ""),
            ),
            error => Problem::from(error),
        })?;
        let shares = run::shares(recipe, 1)?;
        trainer.share(&Rc::new(Ranks::alone()), shares)?;
        Ok(trainer)
    }

    /// Reads the newest checkpoint among `given`; `None` if nothing is given. Fails for a checkpoint of another run.
    pub fn resume(
        &self,
        stage: &Stage,
        recipe: &Recipe,
        given: Vec<FileEntry>,
    ) -> Result<Option<Checkpoint>, Problem> {
        if given.is_empty() {
            return Ok(None);
        }
        let path = tree::checkpoint(given)?;
        let config = stage.frozen.base.config();
        let slots = |recipe: &Recipe| run::slots(recipe, config).map_err(|e| e.to_string());
        let checkpoint = Checkpoint::read(&path, config, slots).map_err(Problem::new)?;
        files::remove_folder(&path).map_err(Problem::new)?;
        let steps = self.prepared.steps.plans.len();
        let changes = checkpoint.differences(recipe, &self.identity, steps);
        match changes.is_empty() {
            true => Ok(Some(checkpoint)),
            false => Err(Problem::new(format!(
                "the checkpoint was stopped after step {} of {}, and its run differs from this one: {}. Undo that to resume, or \
                 start over without the checkpoint",
                checkpoint.step,
                checkpoint.steps,
                changes.all()
            ))),
        }
    }

    pub fn check(&self, frozen: &OpenBase, plan: &Plan) -> Check {
        let (recipe, base, data) = (&self.recipe, &frozen.base, &self.prepared.data);
        let config = base.config();
        let (layers, vocab) = (config.layers.len(), grouped(config.vocab, ' '));
        let notices = data.notices.iter().map(ToString::to_string);
        let mut warnings: Vec<String> =
            self.loaded.notices.iter().chain(&self.prepared.advice).cloned().chain(notices).collect();
        if recipe.device.backend != Backend::Auto || recipe.device.gpu.is_some() {
            warnings.push("device.backend and device.gpu: a browser chooses the GPU by itself".into());
        }
        Check {
            recipe: recipe.pinned(&frozen.fingerprint).to_resolved_toml(),
            base: format!("{}: {layers} layers, width {}, vocabulary {vocab}", base.name(), config.width),
            parameters: self.loaded.adapter.parameters(),
            template: wording::template(&frozen.template, &recipe.data.template),
            steps: self.prepared.steps.plans.len(),
            train: counts(&data.train),
            validation: counts(&data.validation),
            work: Work::of(&self.prepared, recipe.eval.steps, recipe.eval.max_new_tokens).into(),
            plan: plan.into(),
            rewards: recipe.rewards.iter().map(wording::reward).collect(),
            tries: wording::tries(recipe),
            warnings,
        }
    }
}

/// Fails if the recipe names files that are not among those given.
fn check_files(recipe: &Recipe, given: &[String]) -> Result<(), Problem> {
    let data = recipe.data.train.iter().map(|path| ("data.train", path));
    let sources = recipe.data.sources.iter().map(|source| ("data.sources", &source.path));
    let valid = recipe.data.valid.iter().map(|path| ("data.valid", path));
    let init = recipe.lora.init_from.iter().map(|adapter| ("lora.init_from", &adapter.path));
    let template = match &recipe.data.template {
        Setting::File(path) => Some(("data.template", path)),
        _ => None,
    };
    let mut all: Vec<(&str, &PathBuf)> = data.chain(sources).chain(valid).chain(init).collect();
    all.extend(template);
    let missing = |path: &PathBuf| !files::exists(path) && !dataset_files::is_pattern(path);
    let Some((key, path)) = all.into_iter().find(|(_, path)| missing(path)) else { return Ok(()) };
    let given = if given.is_empty() { "none".into() } else { given.join(", ") };
    Err(Problem::of_key(
        key,
        format!("{key}: {} is not among the files that were picked ({given})", path.display()),
    ))
}

/// Fails if a reward needs another program or a server.
fn check_rewards(recipe: &Recipe) -> Result<(), Problem> {
    let outside = |reward: &&Reward| matches!(reward.kind, RewardKind::Command { .. } | RewardKind::Url(_));
    let Some(reward) = recipe.rewards.iter().find(outside) else { return Ok(()) };
    let message = format!(
        "rewards: a browser can neither start a program nor ask a judge, so the reward \"{}\" cannot be had here; remove it, or train \
         with the program: rullama-train RECIPE",
        reward.name()
    );
    Err(Problem::of_key("rewards", message))
}

/// Counts of samples, tokens and loss tokens.
pub fn counts(samples: &[Sample]) -> Counts {
    Counts {
        samples: samples.len(),
        tokens: samples.iter().map(|s| s.ids.len()).sum(),
        loss_tokens: samples.iter().map(Sample::loss_tokens).sum(),
    }
}
