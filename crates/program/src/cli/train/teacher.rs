//! The teacher's pass over the samples, before the base is loaded.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use pollster::block_on;
use rullama_train::recipe::Recipe;
use rullama_train::run::distill::lessons::Rows;
use rullama_train::run::distill::{self, Job, Place, Unfinished, pass};
use rullama_train::train::TrainError;
use rullama_train::train::ranks::Ranks;
use serde_json::json;

use super::super::output;
use super::super::setup::device::Device;
use super::super::setup::session::Session;
use super::commands::Commands;
use super::console::Console;
use super::stop::Stop;

/// The first pass compiles kernels, so that later ones tell how long all take.
const WARM_UP: usize = 1;
/// Seconds from which on the remaining time is worth a line.
const LONG: f64 = 10.0;

/// Who may ask to stop.
pub struct Asking {
    stop: Stop,
    commands: Option<Commands>,
}

impl Asking {
    /// Listens for Ctrl-C in a run in the folder `dir`, and to `commands`.
    pub fn listen(dir: &Path, commands: Option<&Commands>) -> Result<Asking> {
        Ok(Asking { stop: Stop::listen(dir.to_owned())?, commands: commands.cloned() })
    }

    /// For the run.
    pub fn into_stop(self) -> Stop {
        self.stop
    }

    fn stops(&self) -> bool {
        self.stop.asked() || self.commands.as_ref().is_some_and(Commands::is_stopped)
    }
}

/// Hands what the teacher says to the run, from the file that is there, or after its pass. Returns false if the user asked to stop.
pub fn learn(
    recipe: &Recipe,
    session: &Session,
    gpu: &Device,
    ranks: &Ranks,
    asking: Option<&Asking>,
    console: &Console,
) -> Result<bool> {
    let Some(teacher) = &session.teacher else { return Ok(true) };
    let job = session.prepared.lessons(recipe, &session.frozen, teacher);
    let rows = if ranks.is_first() { first(recipe, &job, gpu, asking, console)? } else { None };
    // The others wait for the file.
    let done = ranks.broadcast(vec![u8::from(rows.is_some())])? == [1];
    if !done {
        return Ok(false);
    }
    let rows = match rows {
        Some(rows) => rows,
        None => complete(recipe, &job)?,
    };
    session.prepared.learn(&rows);
    Ok(true)
}

/// [`learn`] of the process that writes the file; `None` if the user asked to stop.
fn first(
    recipe: &Recipe,
    job: &Job,
    gpu: &Device,
    asking: Option<&Asking>,
    console: &Console,
) -> Result<Option<Arc<Rows>>> {
    let (name, path) = (job.teacher.base.name(), distill::path(recipe));
    job.teacher.notices.iter().for_each(|notice| console.line("note", notice));
    let bytes = output::bytes(job.header.bytes());
    let (unfinished, notice) = match distill::open(recipe, &job.header)? {
        Place::Complete(rows) => {
            console.line("teacher", &format!("{name}: {} has what it says, {bytes}", path.display()));
            return Ok(Some(rows));
        }
        Place::Unfinished(unfinished, notice) => (unfinished, notice),
    };
    notice.iter().for_each(|notice| console.line("note", notice));
    let of = if job.header.whole {
        "all tokens".into()
    } else {
        format!("the {} likeliest tokens", job.header.top)
    };
    console.line(
        "teacher",
        &format!(
            "{name} reads {}, {}, before the base is loaded: {of} at each of {} take {bytes} in {}",
            output::count(job.samples.len(), "sample"),
            output::count(job.tokens(), "token"),
            output::count(job.header.rows, "loss token"),
            path.display()
        ),
    );
    let event = |done: usize| {
        let (bytes, of) = (job.header.bytes(), job.header.rows);
        json!({ "event": "phase", "phase": "teacher", "teacher": name, "file": path, "bytes": bytes, "done": done, "of": of })
    };
    let before = unfinished.blocks.rows();
    if before > 0 {
        let of = output::grouped(job.header.rows);
        console.line(
            "resume",
            &format!("the teacher goes on after {} of {of} loss tokens", output::grouped(before)),
        );
    }
    console.json(|| event(before));
    let started = Instant::now();
    let done = read(recipe, job, gpu, asking, console, *unfinished)?;
    if !done {
        return Ok(None);
    }
    console.json(|| event(job.header.rows));
    let seconds = started.elapsed().as_secs_f64();
    console.line("teacher", &format!("has read them in {seconds:.1} s; {bytes} in {}", path.display()));
    complete(recipe, job).map(Some)
}

/// Lets the teacher read what is missing, and puts the file in its place. Returns false if the user asked to stop.
fn read(
    recipe: &Recipe,
    job: &Job,
    gpu: &Device,
    asking: Option<&Asking>,
    console: &Console,
    mut unfinished: Unfinished,
) -> Result<bool> {
    let bar = console.bar("teacher", job.header.rows);
    let (mut passes, mut clock, mut told) = (0, Instant::now(), false);
    let mut timed_from = 0;
    let progress = |done: usize, of: usize| -> Result<bool, TrainError> {
        bar.set_position(done);
        if passes == WARM_UP {
            (clock, timed_from) = (Instant::now(), done);
        } else if passes > WARM_UP && !told {
            told = true;
            let left = clock.elapsed().as_secs_f64() * (of - done) as f64 / (done - timed_from).max(1) as f64;
            if left >= LONG {
                console.line(
                    "teacher",
                    &format!("about {} left", output::duration(std::time::Duration::from_secs_f64(left))),
                );
            }
        }
        passes += 1;
        Ok(done == of || !asking.is_some_and(Asking::stops))
    };
    let Unfinished { blocks, sink, .. } = &mut unfinished;
    let done = block_on(pass::run(gpu, recipe, job, blocks, sink, progress))?;
    bar.finish_and_clear();
    if done {
        unfinished.finish()?;
    }
    Ok(done)
}

/// The rows of a file that must be complete.
fn complete(recipe: &Recipe, job: &Job) -> Result<Arc<Rows>> {
    match distill::open(recipe, &job.header)? {
        Place::Complete(rows) => Ok(rows),
        Place::Unfinished(..) => bail!(
            "{} is not there after the teacher's pass; it must be on a disk that all processes of the run see: set distill.file",
            distill::path(recipe).display()
        ),
    }
}
