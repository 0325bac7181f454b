//! A run between its first and its last step, told to the page.

use std::path::Path;

use rullama_train::adapter::lora::Adapter;
use rullama_train::files;
use rullama_train::recipe::Recipe;
use rullama_train::report;
use rullama_train::run::checkpoint::Checkpoint;
use rullama_train::run::metrics::{History, Notice, Reply};
use rullama_train::run::{self, Recorded};
use rullama_train::train::health::Watch;
use rullama_train::train::trainer::{TrainError, Trainer};

use super::Opened;
use crate::control::Control;
use crate::engine::Stage;
use crate::tree;
use crate::types::{Event, FileEntry, Problem};

/// Where checkpoints are written before they are told.
const CHECKPOINTS: &str = ".checkpoints";
/// The output folder: what is in it at the end is told.
const OUT: &str = ".out";

pub struct Course<'a> {
    course: run::Course<'a>,
    control: &'a Control,
    hear: &'a dyn Fn(&Event),
    /// Steps at the last checkpoint.
    saved: Option<usize>,
}

/// Why no further step is taken.
#[derive(PartialEq)]
enum End {
    /// The last one is done, or the validation loss no longer falls.
    Done,
    /// Somebody asked.
    Asked,
}

impl<'a> Course<'a> {
    pub fn begin(
        stage: &'a Stage<'a>,
        recipe: &'a Recipe,
        opened: &'a Opened,
        trainer: Trainer<'a>,
        checkpoint: Option<Checkpoint>,
        control: &'a Control,
        hear: &'a dyn Fn(&Event),
    ) -> Result<Course<'a>, Problem> {
        let mut course = run::Course {
            recipe,
            gpu: stage.gpu,
            frozen: stage.frozen,
            model: stage.model,
            prepared: &opened.prepared,
            identity: &opened.identity,
            initial: &opened.loaded.adapter,
            trainer,
            history: History::default(),
            watch: Watch::default(),
            step: 0,
            best: None,
        };
        if let Some(checkpoint) = checkpoint {
            let unreadable = |e: String| Problem::new(format!("the checkpoint's {e}"));
            course.resume(checkpoint).map_err(unreadable)?;
        }
        let saved = (course.step > 0).then_some(course.step);
        Ok(Course { course, control, hear, saved })
    }

    /// To the end, which is told.
    pub async fn run(mut self) -> Result<(), Problem> {
        match self.steps_to_the_end().await? {
            End::Asked => self.stopped().await,
            End::Done => self.finished().await,
        }
    }

    /// Each turn does what is due after the steps so far, then takes the next.
    async fn steps_to_the_end(&mut self) -> Result<End, Problem> {
        loop {
            if self.course.evaluation_is_due() && !self.evaluate().await? {
                return Ok(End::Asked);
            }
            if self.course.stops_early() || self.course.step == self.course.steps() {
                self.save().await?;
                return Ok(End::Done);
            }
            if self.course.checkpoint_is_due() {
                self.save().await?;
            }
            self.listen().await?;
            if self.control.is_stopped() {
                return Ok(End::Asked);
            }
            self.take_step().await?;
        }
    }

    /// Does what was asked meanwhile: waits as long as the run is paused, and tells checkpoints.
    async fn listen(&mut self) -> Result<(), Problem> {
        let mut paused = false;
        loop {
            if self.control.wants_checkpoint() {
                self.saved = None;
                self.save().await?;
            }
            if !self.control.is_paused() {
                break;
            }
            if !paused {
                (self.hear)(&Event::Paused { step: self.course.step });
                paused = true;
            }
            self.control.changed().await;
        }
        if paused && !self.control.is_stopped() {
            (self.hear)(&Event::Resumed { step: self.course.step });
        }
        Ok(())
    }

    /// Validation and replies; false where somebody asked to stop meanwhile, and nothing was measured.
    async fn evaluate(&mut self) -> Result<bool, Problem> {
        let go_on = |_| !self.control.is_stopped();
        let Some(mut evaluation) = self.course.validate(go_on).await? else { return Ok(false) };
        let Some(replies) = self.course.replies(go_on).await? else { return Ok(false) };
        evaluation.replies = replies;
        let best = self.course.evaluated(evaluation.clone()).await?;
        let step = self.course.step;
        (self.hear)(&Event::Eval { step, scores: evaluation.scores.map(Into::into), best });
        for Reply { prompt, reply } in evaluation.replies {
            (self.hear)(&Event::Sample { step, prompt, reply });
        }
        Ok(true)
    }

    async fn take_step(&mut self) -> Result<(), Problem> {
        let taken = self.course.take_step().await;
        if let Err(TrainError::NotFinite { .. }) = taken {
            // What was done is not lost.
            self.save().await?;
        }
        let Recorded { measured, timing, notices } = taken?;
        (self.hear)(&Event::of_step(&measured, &timing, self.course.history.smoothed));
        notices.into_iter().for_each(|notice| self.notice(notice));
        Ok(())
    }

    fn notice(&self, Notice { step, notice }: Notice) {
        (self.hear)(&Event::Notice { step, notice });
    }

    /// Tells the state after the last step, unless it was told already.
    async fn save(&mut self) -> Result<(), Problem> {
        let step = self.course.step;
        if self.saved == Some(step) {
            return Ok(());
        }
        let (checkpoint, folder) = (self.course.checkpoint().await?, Path::new(CHECKPOINTS));
        checkpoint.write(folder, &self.course.frozen.base).map_err(Problem::new)?;
        (self.hear)(&Event::Checkpoint { step, files: tree::take(folder) });
        self.saved = Some(step);
        Ok(())
    }

    /// Somebody asked: what was done is told, to go on from.
    async fn stopped(mut self) -> Result<(), Problem> {
        if self.course.step > 0 {
            self.save().await?;
        }
        let (course, out) = (&self.course, Path::new(OUT));
        let (step, (seconds, _)) = (course.step, course.history.speed());
        let adapter = Adapter { pairs: course.trainer.adapter().await?, ..course.initial.clone() };
        let adapter = match adapter.pairs == course.initial.pairs {
            true => None,
            false => {
                course.write_peft(out, &adapter)?;
                Some(tree::take(out))
            }
        };
        let files = Vec::new();
        (self.hear)(&Event::Done { step, adapter_of_step: step, stopped: true, adapter, files, seconds });
        Ok(())
    }

    /// Tells the adapter and everything about it.
    async fn finished(mut self) -> Result<(), Problem> {
        let (kept, adapter) = self.course.result().await?;
        if let Some(notice) = self.course.judge(kept) {
            self.notice(notice);
        }
        let out = Path::new(OUT);
        for (format, result) in self.course.export(out, &adapter).await?.formats {
            if let Err(error) = result {
                let notice = self.course.notice(format!("{} was not exported: {error}", format.name()));
                self.notice(notice);
            }
        }
        self.write_report(out, kept)?;
        let files = tree::take(out);
        let of_peft = |file: &&FileEntry| file.path.starts_with("adapter_");
        let mut peft: Vec<FileEntry> = files.iter().filter(of_peft).cloned().collect();
        if peft.len() != 2 {
            self.course.write_peft(out, &adapter)?;
            peft = tree::take(out);
        }
        let (seconds, _) = self.course.history.speed();
        (self.hear)(&Event::Done {
            step: self.course.step,
            adapter_of_step: kept,
            stopped: false,
            adapter: Some(peft),
            files,
            seconds,
        });
        Ok(())
    }

    fn write_report(&self, out: &Path, kept: usize) -> Result<(), Problem> {
        let course = &self.course;
        let adapter = files::read(&out.join("adapter_model.safetensors")).ok();
        let (metrics, timing) = course.history.lines();
        let texts = [
            (report::FILE, course.report("finished", Some(kept), adapter.as_deref())),
            ("metrics.jsonl", metrics),
            ("timing.jsonl", timing),
            ("recipe.resolved.toml", course.recipe.pinned(&course.frozen.fingerprint).to_resolved_toml()),
        ];
        for (name, text) in texts {
            files::write_atomic(&out.join(name), text.as_bytes()).map_err(Problem::new)?;
        }
        Ok(())
    }
}
