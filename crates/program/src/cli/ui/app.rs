//! The work behind the routes.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use super::folders::{Folders, plain};
use super::job::{self, Job};
use super::problem::Problem;
use super::recipe::{self, Allowed};
use super::run::{self, Running};
use super::samples;
use super::tools;
use super::types::{Check, Export, Merge, Sent, Start, Task};
use super::uploads::{self, Uploads};
use crate::cli::models::{self, Found};

/// Results of `export` that are kept for the page to fetch.
const OUTPUTS: usize = 4;

/// State that all requests share.
pub struct App {
    pub folders: Folders,
    pub uploads: Uploads,
    pub jobs: Sender<Job>,
    /// Description of the device, which is opened once.
    gpu: OnceCell<Result<Value, Problem>>,
    run: Mutex<Option<Arc<Running>>>,
    /// One run, export or merge begins at a time.
    turn: tokio::sync::Mutex<()>,
    outputs: Mutex<Vec<TempDir>>,
}

/// A task whose files have their names.
struct Prepared {
    allowed: Allowed,
    files: TempDir,
    /// The folder of the run.
    out: PathBuf,
}

/// Calls `work` on a thread that may wait for the disk.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    spawn_blocking(work).await.map_err(|error| Problem::new(format!("internal error: {error}")))?
}

impl App {
    pub fn new(folders: Folders, uploads: Uploads, jobs: Sender<Job>) -> App {
        App {
            folders,
            uploads,
            jobs,
            gpu: OnceCell::new(),
            run: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            outputs: Mutex::default(),
        }
    }

    /// Description of the device. Only the first caller waits for the thread that uses it.
    pub async fn gpu(&self) -> Result<Value, Problem> {
        self.gpu.get_or_try_init(|| job::ask(&self.jobs, Job::Gpu)).await?.clone()
    }

    /// The run in progress, or the last one.
    pub fn run(&self) -> Option<Arc<Running>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The run in progress, or the last one. An error if there was none.
    pub fn last_run(&self) -> Result<Arc<Running>, Problem> {
        self.run().ok_or_else(|| Problem::missing("no run was started"))
    }

    /// The models on this machine and in the folders.
    pub fn bases(&self) -> Vec<Value> {
        let files = self.folders.models();
        let named = files.iter().map(|path| Found::of_file(path));
        models::all(None).into_iter().chain(named).map(|found| found.json()).collect()
    }

    /// Fails while a run uses the device.
    pub fn check_free(&self) -> Result<(), Problem> {
        match self.run().filter(|run| !run.is_over()) {
            Some(run) => {
                Err(Problem::busy(format!("the run {} uses the GPU; wait for its end, or stop it", run.name)))
            }
            None => Ok(()),
        }
    }

    /// Reads a task's recipe, with its files in a temporary folder in `parent`. `resume` names the run to continue.
    fn prepare(
        &self,
        task: &Task,
        more: &[Sent],
        resume: Option<&str>,
        parent: Option<&Path>,
    ) -> Result<Prepared, Problem> {
        let base = self.folders.base(&task.base)?;
        let sent: Vec<Sent> = task.files.iter().chain(more).cloned().collect();
        let files = self.uploads.staged(&sent, parent)?;
        let out = match resume {
            Some(name) => self.folders.run(name).ok_or_else(|| {
                let folder = self.folders.runs().join(name);
                Problem::new(format!(
                    "the run is no longer in {}; train again from the start",
                    folder.display()
                ))
            })?,
            None => self.new_run(task),
        };
        let allowed = recipe::read(&task.recipe, &base, files.path(), &out, &self.folders);
        let allowed = allowed.map_err(|problem| problem.without(files.path()))?;
        Ok(Prepared { allowed, files, out })
    }

    /// A folder for a new run, named after samples and base.
    fn new_run(&self, task: &Task) -> PathBuf {
        let stem = |path: &str| {
            let name = Path::new(path).file_stem().unwrap_or_default().to_string_lossy().into_owned();
            plain(name.split('.').next().unwrap_or_default())
        };
        let samples = task.files.first().map_or("run".into(), |file| stem(&file.path));
        let name = format!("{samples}-{}", stem(&task.base));
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let mut names =
            std::iter::once(name.clone()).chain(numbered).map(|name| self.folders.runs().join(name));
        names.find(|path| !path.exists()).expect("there is no end of numbers")
    }

    /// The samples as a table, and a recipe that fits them. A mistake in the page's recipe does not matter here.
    pub fn samples(&self, task: &Task) -> Result<Value, Problem> {
        let any = || Task { recipe: samples::ANY_RECIPE.into(), ..task.clone() };
        let prepared = self.prepare(task, &[], None, None).or_else(|problem| {
            // Without its rewards, samples would be read as something else.
            if problem.is_of("rewards") {
                return Err(problem);
            }
            let any = any();
            let base = self.folders.base(&any.base)?;
            let files = self.uploads.staged(&any.files, None)?;
            std::fs::write(files.path().join("samples"), "")?;
            let allowed =
                recipe::read(&any.recipe, &base, files.path(), &self.folders.runs(), &self.folders)?;
            Ok::<_, Problem>(Prepared { allowed, files, out: PathBuf::new() })
        })?;
        let folder = prepared.files.path();
        samples::read(&prepared.allowed.rooted, &task.files, folder)
            .map_err(|problem| problem.without(folder))
    }

    /// A resolved recipe.
    pub async fn check(self: Arc<App>, task: Task) -> Result<Check, Problem> {
        let app = self.clone();
        let prepared = blocking(move || app.prepare(&task, &[], None, None)).await?;
        let files = prepared.files;
        self.plan(prepared.allowed, files.path()).await
    }

    async fn plan(&self, allowed: Allowed, files: &Path) -> Result<Check, Problem> {
        let checked = job::ask(&self.jobs, |answer| Job::Check(Box::new(allowed), answer)).await?;
        checked.map_err(|problem| problem.without(files))
    }

    /// Starts a run.
    pub async fn train(self: Arc<App>, start: Start) -> Result<Arc<Running>, Problem> {
        let _turn = self.turn.lock().await;
        self.check_free()?;
        let Start { task, resume, checkpoint } = start;
        if let Some(file) = checkpoint.iter().find(|file| !file.path.starts_with("checkpoint-")) {
            return Err(Problem::new(format!(
                "{} is not a file of a checkpoint, checkpoint-STEP/…",
                file.path
            )));
        }
        let resumes = resume.is_some();
        let (app, text) = (self.clone(), task.recipe.clone());
        let Prepared { allowed, files, out } = blocking(move || {
            std::fs::create_dir_all(app.folders.runs())?;
            // A new run's folder is made from this one; a resumed run only reads its samples there.
            let runs = app.folders.runs();
            let parent = if resumes { None } else { Some(runs.as_path()) };
            let prepared = app.prepare(&task, &checkpoint, resume.as_deref(), parent)?;
            std::fs::write(prepared.files.path().join("recipe.toml"), text)?;
            Ok(prepared)
        })
        .await?;
        let overrides = allowed.overrides.clone();
        job::ask(&self.jobs, Job::Release).await?;
        let check = self.plan(allowed, files.path()).await?;
        let name = out.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let recipe = |folder: &Path| folder.join("recipe.toml");
        let task = match resumes {
            true => {
                let recipe = recipe(files.path());
                run::Task { name, dir: out, recipe, overrides, samples: Some(files), check }
            }
            false => {
                let staged = files.keep();
                std::fs::rename(&staged, &out).with_context(|| format!("cannot create {}", out.display()))?;
                let recipe = recipe(&out);
                run::Task { name, dir: out, recipe, overrides, samples: None, check }
            }
        };
        let running = Running::start(task)?;
        *self.run.lock().unwrap_or_else(PoisonError::into_inner) = Some(running.clone());
        Ok(running)
    }

    /// The adapter among sent files, in a temporary folder.
    pub fn adapter(&self, sent: &[Sent]) -> Result<Option<(TempDir, PathBuf)>, Problem> {
        if sent.is_empty() {
            return Ok(None);
        }
        let folder = self.uploads.staged(sent, None)?;
        let path = uploads::adapter(folder.path(), sent)?;
        Ok(Some((folder, path)))
    }

    fn needed_adapter(&self, sent: &[Sent]) -> Result<(TempDir, PathBuf), Problem> {
        self.adapter(sent)?.ok_or_else(|| Problem::new("the request has no adapter"))
    }

    /// Converts an adapter. Returns the id and the names of the files, which the page then fetches.
    pub async fn export(self: Arc<App>, what: Export) -> Result<(String, Vec<String>), Problem> {
        let _turn = self.turn.lock().await;
        self.check_free()?;
        job::ask(&self.jobs, Job::Release).await?;
        let app = self.clone();
        blocking(move || {
            let base = app.folders.base(&what.base)?;
            let (folder, adapter) = app.needed_adapter(&what.adapter)?;
            let out = tempfile::Builder::new().prefix("out-").tempdir()?;
            let merged = out.path().join("merged.gguf");
            let words = match &what.to[..] {
                "gguf-merged" => tools::merge(&base, &adapter, &merged, None),
                to => tools::export(&base, &adapter, to, out.path()),
            };
            tools::run(&words, folder.path()).map_err(|problem| problem.without(folder.path()))?;
            let id = out.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            let files = tools::files(out.path());
            let mut outputs = app.outputs.lock().unwrap_or_else(PoisonError::into_inner);
            outputs.push(out);
            let surplus = outputs.len().saturating_sub(OUTPUTS);
            outputs.drain(..surplus);
            Ok((id, files))
        })
        .await
    }

    /// A file of an export.
    pub fn output(&self, id: &str, path: &str) -> Option<PathBuf> {
        let outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        let folder =
            outputs.iter().find(|folder| folder.path().file_name().is_some_and(|name| name == id))?;
        Running::file(folder.path(), path)
    }

    /// Merges an adapter into its base. Returns the file, and what the program printed.
    pub async fn merge(self: Arc<App>, what: Merge) -> Result<(PathBuf, String), Problem> {
        let _turn = self.turn.lock().await;
        self.check_free()?;
        job::ask(&self.jobs, Job::Release).await?;
        let app = self.clone();
        blocking(move || {
            let base = app.folders.base(&what.base)?;
            let (folder, adapter) = app.needed_adapter(&what.adapter)?;
            let place = tools::place(&app.folders.first().join("models"), &what.name)?;
            let words = tools::merge(&base, &adapter, &place, what.ollama.then_some(&what.name[..]));
            let printed =
                tools::run(&words, folder.path()).map_err(|problem| problem.without(folder.path()))?;
            Ok((place, printed))
        })
        .await
    }
}
