//! The run in progress: this program as another process, which trains. It goes on when the page is closed, and stops with a
//! checkpoint when this process ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use rullama_train::adapter::Format;
use rullama_train::report;
use rullama_train::run::{REFUSED, checkpoint};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::types::{Check, Word};
use crate::cli::train::run_file;

/// Files of the output folder that the page gets besides the adapter.
const RESULTS: [&str; 4] = [report::FILE, "metrics.jsonl", "timing.jsonl", "recipe.resolved.toml"];
/// Bytes of stderr that are kept, for the error.
const KEPT: u64 = 64 << 10;

/// A run, from its start until the next one.
pub struct Running {
    pub name: String,
    /// Its folder.
    pub dir: PathBuf,
    events: Mutex<Events>,
    ended: Condvar,
    /// Whether the page has got the last event.
    delivered: AtomicBool,
    /// Whether the page gave it up before its first step.
    cancelled: AtomicBool,
    stdin: Mutex<Option<ChildStdin>>,
    child: Mutex<Child>,
    /// The samples of a resumed run.
    _samples: Option<TempDir>,
}

/// Events as lines of JSON, and who waits for further ones.
#[derive(Default)]
struct Events {
    lines: Vec<String>,
    over: bool,
    readers: Vec<UnboundedSender<String>>,
}

impl Events {
    fn push(&mut self, line: String) {
        self.readers.retain(|reader| reader.send(line.clone()).is_ok());
        self.lines.push(line);
    }
}

/// The inputs of a new run.
pub struct Task {
    pub name: String,
    pub dir: PathBuf,
    /// The recipe as a file, and overrides of its keys.
    pub recipe: PathBuf,
    pub overrides: Vec<(String, String)>,
    /// The folder that holds the samples; that of the run itself where it is `None`.
    pub samples: Option<TempDir>,
    pub check: Check,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    /// Starts the process.
    pub fn start(task: Task) -> Result<Arc<Running>> {
        let Task { name, dir, recipe, overrides, samples, check } = task;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("train").arg(recipe).args(["--json", "--commands"]);
        for (key, value) in overrides {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        command.current_dir(samples.as_ref().map_or(&*dir, TempDir::path));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        on_its_own(&mut command);
        let mut child = command.spawn().context("cannot start the program again, to train")?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let running = Arc::new(Running {
            name,
            dir,
            events: Mutex::default(),
            ended: Condvar::new(),
            delivered: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            stdin: Mutex::new(stdin),
            child: Mutex::new(child),
            _samples: samples,
        });
        let mut first = serde_json::to_value(check)?;
        first["event"] = "check".into();
        first["run"] = running.name.as_str().into();
        running.push(first.to_string());
        let run = running.clone();
        std::thread::spawn(move || {
            let errors = std::thread::spawn(move || stderr.map_or(String::new(), last_of));
            if let Some(stdout) = stdout {
                BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| run.push(line));
            }
            run.finish(&errors.join().unwrap_or_default());
        });
        Ok(running)
    }

    fn push(&self, line: String) {
        lock(&self.events).push(line);
    }

    /// Adds the last event, after the process has closed its output.
    fn finish(&self, errors: &str) {
        let status = lock(&self.child).wait();
        let code = status.ok().and_then(|status| status.code());
        let last = self.exit(code, errors).to_string();
        *lock(&self.stdin) = None;
        let mut events = lock(&self.events);
        // Whoever hears of the end may start the next run at once.
        events.over = true;
        events.push(last);
        self.delivered.fetch_or(!events.readers.is_empty(), Ordering::Relaxed);
        events.readers.clear();
        self.ended.notify_all();
    }

    /// The event of the process's end: its error, and the files of the adapter and the results.
    fn exit(&self, code: Option<i32>, errors: &str) -> Value {
        let result = run_file::read(&self.dir);
        let refused = result["status"] == "finished" && result["result"] == "refused";
        let finished = result["status"] == "finished" && result["result"] == "exported";
        let last = checkpoint::list(&self.dir).into_iter().next();
        let folder = match (&last, finished, refused) {
            (_, true, _) => Format::Peft.place(&self.dir),
            (_, _, true) => self.dir.join(REFUSED),
            (Some((_, path)), ..) => path.clone(),
            _ => self.dir.join("none"),
        };
        let peft = ["adapter_model.safetensors", "adapter_config.json"].map(|name| folder.join(name));
        let results = RESULTS.map(|name| self.dir.join(name));
        let stopped =
            code == Some(crate::cli::train::STOPPED.into()) || self.cancelled.load(Ordering::Relaxed);
        let problem = (code != Some(0) && !stopped).then(|| {
            let error = errors.rfind("error: ").map(|at| errors[at + 7..].trim());
            error.unwrap_or("the process that trains ended without an error; is the memory full?").to_owned()
        });
        json!({
            "event": "exit", "code": code, "problem": problem, "refused": refused, "finished": finished,
            "adapter": self.names(&peft), "files": self.names(&results), "folder": self.dir,
        })
    }

    /// The paths of those files that exist, from the folder of the run.
    fn names(&self, paths: &[PathBuf]) -> Vec<String> {
        let name = |path: &PathBuf| {
            let name = path.strip_prefix(&self.dir).ok().filter(|_| path.is_file())?;
            Some(name.to_string_lossy().replace('\\', "/"))
        };
        paths.iter().filter_map(name).collect()
    }

    /// All events from number `from` on, and then every further one.
    pub fn read(&self, from: usize) -> UnboundedReceiver<String> {
        let (sender, receiver) = unbounded_channel();
        let mut events = lock(&self.events);
        for line in events.lines.iter().skip(from) {
            let _ = sender.send(line.clone());
        }
        match events.over {
            true => self.delivered.store(true, Ordering::Relaxed),
            false => events.readers.push(sender),
        }
        receiver
    }

    /// Whether the process has ended.
    pub fn is_over(&self) -> bool {
        lock(&self.events).over
    }

    /// Whether the run is over and a page has got its last event.
    pub fn is_delivered(&self) -> bool {
        self.is_over() && self.delivered.load(Ordering::Relaxed)
    }

    /// Passes a command on. Does nothing after the end of the run.
    pub fn command(&self, word: Word) {
        // Until the run has told that it starts, there is nothing to save.
        let waits = lock(&self.events).lines.len() == 1;
        if waits && matches!(word, Word::Cancel | Word::Stop) && !self.is_over() {
            self.cancelled.store(true, Ordering::Relaxed);
            return self.kill();
        }
        if let Some(stdin) = &mut *lock(&self.stdin) {
            let _ = stdin.write_all(word.line().as_bytes()).and_then(|()| stdin.flush());
        }
    }

    /// Stops the run with a checkpoint, and waits for its end.
    pub fn end(&self) {
        *lock(&self.stdin) = None;
        let mut events = lock(&self.events);
        while !events.over {
            events = self.ended.wait(events).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the process at once.
    pub fn kill(&self) {
        let _ = lock(&self.child).kill();
    }

    /// A file of the run's folder.
    pub fn file(dir: &Path, path: &str) -> Option<PathBuf> {
        let dir = dir.canonicalize().ok()?;
        let found = dir.join(path).canonicalize().ok()?;
        (found.starts_with(&dir) && found.is_file()).then_some(found)
    }
}

/// The last bytes of a stream, as text.
fn last_of(mut stream: impl Read) -> String {
    let mut text = Vec::new();
    let mut part = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut part) {
        text.extend_from_slice(&part[..read]);
        let surplus = text.len().saturating_sub(KEPT as usize);
        text.drain(..surplus);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Keeps Ctrl-C from the process: this one asks it to stop.
#[cfg(unix)]
fn on_its_own(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
}

#[cfg(windows)]
fn on_its_own(command: &mut Command) {
    use std::os::windows::process::CommandExt;
    const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
    command.creation_flags(CREATE_NEW_PROCESS_GROUP);
}

#[cfg(not(any(unix, windows)))]
fn on_its_own(_: &mut Command) {}
