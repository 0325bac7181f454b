//! The page as the host of a run: events and files are posted to it.

use std::path::{Path, PathBuf};

use rullama_train::files;
use rullama_train::report::{self, Report};
use rullama_train::run::checkpoint::Checkpoint;
use rullama_train::run::metrics::{Evaluation, SampleReply};
use rullama_train::run::{Asked, Finished, Host, Outcome, Phase, RolloutLine, Run, RunEvent, Status};

use crate::control::Control;
use crate::events::Event;
use crate::tree;
use crate::types::{FileEntry, Problem};

/// Where checkpoints are written before they are posted.
const CHECKPOINTS: &str = ".checkpoints";
/// The output folder. Its files are posted at the end of the run.
const OUT: &str = ".out";

/// Posts the events of a run, and passes on what the page asks for.
pub struct Page<'a> {
    control: &'a Control,
    post: &'a dyn Fn(&Event),
    /// The step of the last checkpoint that was posted.
    saved: Option<usize>,
    /// The adapter of the last checkpoint, as PEFT files; `None` if it equals the initial one.
    adapter: Option<Vec<FileEntry>>,
    /// The completions of the last step, for the report.
    completions: Vec<RolloutLine>,
    /// The last progress that was posted.
    told: Option<(Phase, usize)>,
    paused: bool,
}

impl<'a> Page<'a> {
    /// `saved`: the step that the page has a checkpoint of.
    pub fn new(control: &'a Control, post: &'a dyn Fn(&Event), saved: Option<usize>) -> Page<'a> {
        Page { control, post, saved, adapter: None, completions: Vec::new(), told: None, paused: false }
    }

    fn evaluation(&self, evaluation: &Evaluation, best: bool) {
        let step = evaluation.step;
        let measured = |name: &str| evaluation.preference.get(name).copied();
        let rewards = evaluation.reward().map(|_| evaluation.preference.clone());
        (self.post)(&Event::Eval {
            step,
            scores: evaluation.scores.map(Into::into),
            best,
            margin: measured("eval_rewards/margins"),
            ranked: measured("eval_rewards/accuracies"),
            rewards: rewards.unwrap_or_default(),
        });
        for SampleReply { prompt, reply, .. } in evaluation.replies.iter().cloned() {
            (self.post)(&Event::Sample { step, prompt, reply });
        }
    }

    /// Keeps the completions of a step, and posts the best and the worst.
    fn drawn(&mut self, lines: &[RolloutLine]) {
        let Some(step) = lines.first().map(|line| line.step) else { return };
        self.completions = lines.to_vec();
        let [best, worst] =
            report::best_and_worst(lines).map(|all| all.into_iter().map(Into::into).collect());
        (self.post)(&Event::Completions { step, best, worst });
    }

    fn ended(&mut self, run: &Run, outcome: &Outcome) -> Result<(), Problem> {
        let out = Path::new(OUT);
        let mut done = Done { adapter_of_step: run.step, stopped: false, refused: None, adapter: None };
        match outcome {
            Outcome::Interrupted => {
                done.stopped = true;
                done.adapter = self.adapter.take();
            }
            Outcome::Finished(finished) => {
                done.adapter_of_step = finished.adapter_of_step;
                done.adapter = Some(self.peft_files(run, finished)?);
                self.write_logs(run, Status::of(outcome), Some(finished.adapter_of_step))?;
            }
            Outcome::Refused { adapter_of_step, reason, kept } => {
                done.adapter_of_step = *adapter_of_step;
                done.refused = Some(reason.to_string());
                done.adapter = Some(read_folder(kept)?);
                self.write_logs(run, Status::of(outcome), None)?;
            }
            // The caller reports it as an error.
            Outcome::Unmoved => return Ok(()),
        }
        let Done { adapter_of_step, stopped, refused, adapter } = done;
        let (seconds, _) = run.history.speed();
        let files = tree::take(out);
        let step = run.step;
        (self.post)(&Event::Done { step, adapter_of_step, stopped, refused, adapter, files, seconds });
        Ok(())
    }

    /// Writes report, measurements and recipe into the output folder. `kept`: the step whose adapter was exported.
    fn write_logs(&self, run: &Run, status: Status, kept: Option<usize>) -> Result<(), Problem> {
        let out = Path::new(OUT);
        let adapter = files::read(&out.join("adapter_model.safetensors")).ok().filter(|_| kept.is_some());
        let (metrics, timing) = run.history.lines();
        let report =
            Report { completions: &self.completions, ..Report::of(run, status, kept, adapter.as_deref()) };
        let texts = [
            (report::FILE, report.html()),
            ("metrics.jsonl", metrics),
            ("timing.jsonl", timing),
            ("recipe.resolved.toml", run.recipe.pinned(&run.base.fingerprint).to_resolved_toml()),
        ];
        for (name, text) in texts {
            files::write_atomic(&out.join(name), text.as_bytes()).map_err(Problem::new)?;
        }
        Ok(())
    }

    /// The finished adapter as PEFT files, whether or not the recipe exports them. Posts a notice for each failed export.
    fn peft_files(&self, run: &Run, finished: &Finished) -> Result<Vec<FileEntry>, Problem> {
        for (format, result) in finished.written.iter().flat_map(|written| &written.formats) {
            if let Err(error) = result {
                let notice = format!("{} was not exported: {error}", format.name());
                (self.post)(&Event::Notice { step: run.step, notice });
            }
        }
        let aside = Path::new(CHECKPOINTS).join("adapter");
        run.write_peft(&aside, &finished.adapter)?;
        Ok(tree::take(&aside))
    }
}

impl Host for Page<'_> {
    type Error = Problem;

    fn on_event(&mut self, run: &Run<'_>, event: RunEvent<'_>) -> Result<(), Problem> {
        if !matches!(event, RunEvent::Progress { .. }) {
            self.told = None;
        }
        match event {
            RunEvent::Step { metrics, timing, lines } => {
                (self.post)(&Event::of_step(metrics, timing, run.history.smoothed));
                self.drawn(lines);
            }
            RunEvent::Evaluation { evaluation, is_best } => self.evaluation(evaluation, is_best),
            RunEvent::Notice(notice) => {
                (self.post)(&Event::Notice { step: notice.step, notice: notice.notice.clone() });
            }
            RunEvent::Ended(outcome) => self.ended(run, outcome)?,
            // Drawing tells of every token.
            RunEvent::Progress { phase, done, .. } if self.told == Some((phase, done)) => {}
            RunEvent::Progress { phase, done, of } => {
                self.told = Some((phase, done));
                (self.post)(&Event::Phase { phase: name(phase), done, of });
            }
            RunEvent::Started | RunEvent::Effects { .. } | RunEvent::Failed => {}
        }
        Ok(())
    }

    /// Posts the checkpoint, unless the page has it already.
    fn keep(&mut self, run: &Run<'_>, checkpoint: &Checkpoint) -> Result<(), Problem> {
        let folder = Path::new(CHECKPOINTS);
        checkpoint.write(folder, &run.base.base).map_err(Problem::new)?;
        let files = tree::take(folder);
        let moved = checkpoint.adapter.pairs != run.initial.pairs;
        self.adapter = moved.then(|| peft_of_checkpoint(&files));
        if self.saved != Some(checkpoint.step) {
            (self.post)(&Event::Checkpoint { step: checkpoint.step, files });
            self.saved = Some(checkpoint.step);
        }
        Ok(())
    }

    /// Waits while the run is paused.
    async fn asked(&mut self, run: &Run<'_>) -> Asked {
        loop {
            if self.control.wants_checkpoint() {
                self.saved = None;
                return Asked::Save;
            }
            if !self.control.is_paused() {
                break;
            }
            if !self.paused {
                (self.post)(&Event::Paused { step: run.step });
                self.paused = true;
            }
            self.control.changed().await;
        }
        if self.control.is_stopped() {
            return Asked::Stop;
        }
        if self.paused {
            (self.post)(&Event::Resumed { step: run.step });
            self.paused = false;
        }
        Asked::Nothing
    }

    fn is_stopping(&self) -> bool {
        self.control.is_stopped()
    }

    fn output(&self) -> Option<&Path> {
        Some(Path::new(OUT))
    }
}

/// The phase as events name it.
fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Reference => "reference",
        Phase::Completions => "completions",
        Phase::Rewards => "rewards",
        Phase::Validation => "validation",
        Phase::Replies => "replies",
        Phase::Answers => "answers",
        Phase::General => "general",
        Phase::Export => "export",
    }
}

/// The variable fields of [`Event::Done`].
struct Done {
    adapter_of_step: usize,
    stopped: bool,
    refused: Option<String>,
    adapter: Option<Vec<FileEntry>>,
}

/// The PEFT files among the files of a checkpoint.
fn peft_of_checkpoint(files: &[FileEntry]) -> Vec<FileEntry> {
    let name = |file: &FileEntry| file.path.rsplit('/').next().unwrap_or_default().to_string();
    let peft = files.iter().filter(|file| name(file).starts_with("adapter_"));
    peft.map(|file| FileEntry { path: name(file), bytes: file.bytes.clone() }).collect()
}

/// The files in a folder, by their names.
fn read_folder(folder: &Path) -> Result<Vec<FileEntry>, Problem> {
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files::read(&path).map(|bytes| FileEntry { path: name, bytes }).map_err(Problem::new)
    };
    files::list(folder).map_err(Problem::new)?.into_iter().map(read).collect()
}
