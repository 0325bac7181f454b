//! How a run ends: stopped, failed or finished, and what it then writes and says.

use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::export::{self, Format, Written};
use rullama_train::files;
use rullama_train::report;
use rullama_train::run::checkpoint;
use rullama_train::run::metrics::{Event, now};
use rullama_train::train::trainer::TrainError;
use serde_json::{Value, json};

use super::super::{message, output as show};
use super::state::{self, Status};
use super::{Run, stop};

impl Run<'_> {
    /// Somebody asked: what was done is saved, and how to go on is said.
    pub(super) fn stopped(&mut self) -> Result<ExitCode> {
        let (step, steps, dir) = (self.course.step, self.course.steps(), &self.course.recipe.output.dir);
        let how = if step > 0 {
            self.save()?;
            format!("after step {step} of {steps}; the same command goes on from there")
        } else {
            "before the first step; nothing was to be saved".to_string()
        };
        self.end(Status::Stopped, None)?;
        self.console.json(|| json!({ "event": "stopped", "step": step, "output": dir }));
        self.console.line("stopped", &format!("{how} ({})", dir.display()));
        Ok(ExitCode::from(stop::STATUS))
    }

    /// An error: the state before it is saved where it is sound, and how to go on once the cause is gone is said.
    pub(super) fn failed(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.console.finish_steps();
        if self.course.step > 0 && matches!(error.downcast_ref(), Some(TrainError::NotFinite { .. })) {
            // Where even that fails, an earlier checkpoint is named.
            let _ = self.save();
        }
        let _ = self.end(Status::Stopped, None);
        match checkpoint::list(&self.course.recipe.output.dir).first() {
            Some((step, _)) => {
                let message = message(&error);
                anyhow!(
                    "{message}. The run is saved as it was after step {step}; the same command goes on from there"
                )
            }
            None => error,
        }
    }

    /// Writes the adapter and everything about it.
    pub(super) fn finished(&mut self, early: bool) -> Result<ExitCode> {
        let (kept, adapter) = match block_on(self.course.result()) {
            Err(error @ TrainError::Unmoved) => {
                self.end(Status::Finished, None)?;
                return Err(error.into());
            }
            result => result?,
        };
        if let Some(notice) = self.course.judge(kept) {
            self.console.notice(&notice);
            self.record.push(&Event::Notice(notice))?;
        }
        let written = self.export(&adapter)?;
        let whole = written.formats.iter().all(|(_, result)| result.is_ok());
        // A format that failed for want of room, for instance, is tried again by the same command.
        self.end(if whole { Status::Finished } else { Status::Stopped }, Some(kept))?;
        self.say_finished(early, kept, &written);
        if self.console.words() {
            if let Some(load) = self.session.experts(&self.course.trainer)? {
                show::line("experts", load);
            }
            show::written(written)?;
            show::line("written", self.course.recipe.output.dir.display());
            show::line("report", self.course.recipe.output.dir.join(report::FILE).display());
        } else if let Some(Err(error)) = written.formats.into_iter().map(|(_, r)| r).find(Result::is_err) {
            return Err(error.into());
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Writes every format of the recipe. An adapter that is refused is kept apart, as hours of training may be in it.
    fn export(&mut self, adapter: &Adapter) -> Result<Written> {
        let dir = &self.course.recipe.output.dir;
        let bar = self.console.phase("comparing what is exported", 0);
        let written = block_on(self.course.export(dir, adapter));
        bar.finish_and_clear();
        written.or_else(|error| {
            let kept = self.course.write_peft(&dir.join("refused"), adapter)?;
            self.end(Status::Finished, None)?;
            bail!("{error}; what was trained is kept in {}", kept.display())
        })
    }

    fn say_finished(&self, early: bool, kept: usize, written: &Written) {
        let history = &self.course.history;
        let (seconds, speed) = history.speed();
        let scores = |step: usize| history.evaluation(step).and_then(|e| e.scores);
        let (before, after) = (scores(0), scores(kept));
        self.console.json(|| {
            json!({
                "event": "finished", "step": self.course.step, "adapter_of_step": kept, "stopped_early": early,
                "seconds": seconds, "tokens_per_second": speed, "output": self.course.recipe.output.dir,
                "eval_loss_before": before.map(|s| s.eval_loss), "eval_loss": after.map(|s| s.eval_loss),
                "effect": written.effect.to_string(), "exported": exported(written),
            })
        });
        if !self.console.words() {
            return;
        }
        show::text("");
        let steps = show::count(self.course.step, "step");
        show::line("trained", format_args!("{steps} in {seconds:.1} s, {speed:.0} tokens/s"));
        if early {
            let patience = show::count(self.course.recipe.eval.early_stopping_patience, "evaluation");
            show::line(
                "early",
                format_args!(
                    "{patience} without a lower validation loss: no further step of {}",
                    self.course.steps()
                ),
            );
        }
        if kept != self.course.step {
            show::line("best", format_args!("after step {kept}: this adapter is written, not the last one"));
        }
        if let (Some(b), Some(a)) = (before, after) {
            let loss = format!("loss {:.4} → {:.4}", b.eval_loss, a.eval_loss);
            let perplexity = format!("perplexity {:.2} → {:.2}", b.eval_perplexity, a.eval_perplexity);
            let accuracy =
                format!("accuracy {:.1} % → {:.1} %", 100.0 * b.eval_accuracy, 100.0 * a.eval_accuracy);
            show::line("validation", format_args!("{loss}, {perplexity}, {accuracy}"));
        }
        let replies = |step: usize| history.evaluation(step).map_or(&[][..], |e| &e.replies);
        for (before, after) in replies(0).iter().zip(replies(kept)) {
            show::text(format_args!(
                "\n  {}\n    before  {}\n    after   {}",
                before.prompt, before.reply, after.reply
            ));
        }
        show::text("");
    }

    /// The last words in the folder: status and report.
    fn end(&self, status: Status, kept: Option<usize>) -> Result<()> {
        let dir = &self.course.recipe.output.dir;
        self.write_report(status, kept)?;
        let mut facts = self.facts();
        facts["ended"] = now().into();
        facts["step"] = self.course.step.into();
        facts["adapter_of_step"] = json!(kept);
        state::write(dir, status, &facts)?;
        Ok(())
    }

    /// What is known of the run before its first step.
    pub(super) fn facts(&self) -> Value {
        let course = &self.course;
        json!({
            "device": course.gpu.description(), "base": course.frozen.base.name(), "digests": course.identity,
            "started": self.started, "steps": course.steps(), "parameters": course.initial.parameters(),
        })
    }

    pub(super) fn write_report(&self, status: Status, kept: Option<usize>) -> Result<()> {
        let dir = &self.course.recipe.output.dir;
        let adapter = Format::Peft.place(dir).join("adapter_model.safetensors");
        let adapter = kept.and_then(|_| std::fs::read(adapter).ok());
        let html = self.course.report(status.name(), kept, adapter.as_deref());
        files::write_atomic(&dir.join(report::FILE), html.as_bytes())?;
        Ok(())
    }
}

/// What became of each format.
fn exported(written: &Written) -> Value {
    let of = |(format, result): &(Format, Result<export::Exported, export::Error>)| match result {
        Ok(found) => json!({
            "format": format.name(), "place": found.place, "read_back": found.fidelity.to_string(),
        }),
        Err(error) => json!({ "format": format.name(), "error": error.to_string() }),
    };
    written.formats.iter().map(of).collect()
}
