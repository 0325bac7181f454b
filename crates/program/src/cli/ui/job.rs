//! Requests of the page to the thread that uses the device, and the answers to those that need no model.

use std::path::PathBuf;
use std::sync::mpsc::Sender;

use rullama_train::adapter::Loaded;
use rullama_train::gpu::Gpu;
use rullama_train::model::plan::Plan;
use rullama_train::run::pace::Work;
use rullama_train::run::{self, PreparedRun, wording};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::problem::Problem;
use super::recipe::Allowed;
use super::types::{self, Check, Counts, Message, Sampling};
use crate::cli::output::grouped;
use crate::cli::setup::session::Session;

/// A request to the thread.
pub enum Job {
    /// Describe the device.
    Gpu(oneshot::Sender<Result<Value, Problem>>),
    Check(Box<Allowed>, oneshot::Sender<Result<Check, Problem>>),
    Chat(Box<Chat>),
    /// Make room on the device.
    Release(oneshot::Sender<()>),
    /// End the thread.
    End,
}

/// A conversation to continue.
pub struct Chat {
    pub base: String,
    /// Folder or file of the adapter, and the temporary folder that it is in, if any.
    pub adapter: Option<(Option<TempDir>, PathBuf)>,
    pub messages: Vec<Message>,
    pub sampling: Sampling,
    /// Gets the reply in pieces. Closed when the page no longer wants it.
    pub pieces: UnboundedSender<Piece>,
}

/// A part of a reply.
pub enum Piece {
    Text(String),
    Failed(Problem),
    /// The reply is whole.
    Done,
}

/// Answers a request that needs no model on the device.
pub fn quick(job: Job, gpu: Result<&Gpu, &Problem>) {
    let gpu = gpu.map_err(Problem::clone);
    // Whoever asked may be gone.
    match job {
        Job::Gpu(answer) => drop(answer.send(gpu.map(types::gpu))),
        Job::Check(what, answer) => drop(answer.send(gpu.and_then(|gpu| check(gpu, &what)))),
        Job::Release(answer) => drop(answer.send(())),
        Job::Chat(_) | Job::End => {}
    }
}

/// Sends a request to the thread and waits for the answer.
pub async fn ask<T>(jobs: &Sender<Job>, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Result<T, Problem> {
    let (sender, receiver) = oneshot::channel();
    let gone = || Problem::new("the program is ending");
    jobs.send(job(sender)).map_err(|_| gone())?;
    receiver.await.map_err(|_| gone())
}

/// Everything up to the first step that needs no weights on the device, and the memory plan.
fn check(gpu: &Gpu, what: &Allowed) -> Result<Check, Problem> {
    let (session, loaded) = Session::read(&what.rooted)?;
    let plan = plan(gpu, &session, &loaded)?;
    let (frozen, prepared) = (&session.frozen, &session.prepared);
    let (base, data) = (&frozen.base, &prepared.data);
    let config = base.config();
    let recipe = &session.recipe;
    if let Some(limit) =
        recipe.train.memory_limit.filter(|gib| plan.total() as f64 > gib * f64::from(1 << 30))
    {
        let message = wording::over_memory_limit(recipe, prepared.capacity, plan.total(), "");
        return Err(Problem::of_key(
            "train.memory_limit",
            format!("{message} (train.memory_limit = {limit})"),
        ));
    }
    let notices = data.notices.iter().map(ToString::to_string);
    let mut fitted = what.recipe.clone();
    fitted.data.max_seq_len = recipe.data.max_seq_len;
    Ok(Check {
        recipe: fitted.pinned(&frozen.fingerprint).to_resolved_toml(),
        base: format!(
            "{}: {} layers, width {}, vocabulary {}",
            base.name(),
            config.layers.len(),
            config.width,
            grouped(config.vocab)
        ),
        parameters: loaded.adapter.parameters(),
        template: wording::template(&frozen.template, &recipe.data.template),
        steps: prepared.steps.plans.len(),
        train: Counts::of(&data.train),
        validation: Counts::of(&data.validation),
        work: Work::of(prepared, recipe.eval.steps, recipe.eval.max_new_tokens),
        plan: types::plan(&plan),
        rewards: recipe.rewards.iter().map(wording::reward).collect(),
        tries: wording::tries(recipe),
        warnings: loaded.notices.iter().chain(&prepared.advice).cloned().chain(notices).collect(),
    })
}

/// The memory plan that the run will have.
fn plan(gpu: &Gpu, session: &Session, loaded: &Loaded) -> Result<Plan, Problem> {
    let PreparedRun { capacity, positions, .. } = session.prepared;
    let (recipe, base) = (&session.recipe, &session.frozen.base);
    let plan = run::plan(gpu, base, recipe, &loaded.adapter, capacity, positions);
    plan.map_err(|error| Problem::new(error.to_string()))
}
