//! How a run ends: stopped, failed or finished, and what it then writes and says.

use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use pollster::block_on;
use rullama_train::checkpoint;
use rullama_train::export::{self, Format, HeldOut, NoTokens, Written};
use rullama_train::lora::Adapter;
use rullama_train::metrics::{Event, Notice};
use rullama_train::report::{self, Report};
use rullama_train::run::Frozen;
use rullama_train::train::TrainError;
use rullama_train::{digest, files};
use serde_json::{Value, json};

use super::super::{message, show};
use super::record::now;
use super::state::{self, Status};
use super::{Run, stop};

impl Run<'_> {
    /// Somebody asked: what was done is saved, and how to go on is said.
    pub(super) fn stopped(&mut self) -> Result<ExitCode> {
        let (step, steps, dir) = (self.step, self.steps(), self.recipe.output.dir.display());
        let how = if step > 0 {
            self.save()?;
            format!("after step {step} of {steps}; the same command goes on from there")
        } else {
            "before the first step; nothing was to be saved".to_string()
        };
        self.end(Status::Stopped, None)?;
        self.console.json(|| json!({ "event": "stopped", "step": step, "output": self.recipe.output.dir }));
        self.console.line("stopped", &format!("{how} ({dir})"));
        Ok(ExitCode::from(stop::STATUS))
    }

    /// An error: the state before it is saved where it is sound, and how to go on once the cause is gone is said.
    pub(super) fn failed(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.console.finish_steps();
        if self.step > 0 && matches!(error.downcast_ref(), Some(TrainError::NotFinite { .. })) {
            // Where even that fails, an earlier checkpoint is named.
            let _ = self.save();
        }
        let _ = self.end(Status::Stopped, None);
        match checkpoint::list(&self.recipe.output.dir).first() {
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
        let best = self.best.take().filter(|best| best.step != self.step);
        let kept = best.as_ref().map_or(self.step, |best| best.step);
        let pairs = match best {
            Some(best) => best.pairs,
            None => block_on(self.trainer.adapter())?,
        };
        if pairs == self.initial.pairs {
            self.end(Status::Finished, None)?;
            bail!(
                "training changed nothing: the adapter equals its start. Check train.learning_rate, and that the run has \
                 more than its warm-up steps"
            );
        }
        let loss = |step: usize| Some(self.record.history.evaluation(step)?.scores?.eval_loss);
        if let (Some(before), Some(after)) = (loss(0), loss(kept))
            && after >= before
        {
            let notice =
                format!("the validation loss did not fall: {before:.4} before training, {after:.4} after it");
            let notice = Notice { step: self.step, notice };
            self.console.notice(&notice);
            self.record.push(Event::Notice(notice))?;
        }
        let written = self.export(&Adapter { pairs, ..self.initial.clone() })?;
        let whole = written.formats.iter().all(|(_, result)| result.is_ok());
        // A format that failed for want of room, for instance, is tried again by the same command.
        self.end(if whole { Status::Finished } else { Status::Stopped }, Some(kept))?;
        self.say_finished(early, kept, &written);
        if self.console.words() {
            if let Some(load) = self.session.experts(&self.trainer)? {
                show::line("experts", load);
            }
            show::written(written)?;
            show::line("written", self.recipe.output.dir.display());
            show::line("report", self.recipe.output.dir.join(report::FILE).display());
        } else if let Some(Err(error)) = written.formats.into_iter().map(|(_, r)| r).find(Result::is_err) {
            return Err(error.into());
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Writes every format of the recipe, each compared with the adapter in memory on validation samples, or on a built-in
    /// text where there are none. An adapter that is refused is kept apart, as hours of training may be in it.
    fn export(&mut self, adapter: &Adapter) -> Result<Written> {
        let (recipe, Frozen { base, tokenizer, layout, fingerprint, .. }) =
            (self.recipe, &self.session.frozen);
        let base_model = recipe.output.base_model_name.as_deref().unwrap_or(&recipe.model.base);
        let fingerprint = Some(&*fingerprint.to_string());
        let options = export::Options { base_model, dropout: recipe.lora.dropout, fingerprint };
        let (vocab, longest) = (base.config().vocab, self.trainer.capacity().tokens);
        let batches = self.session.prepared.validation.iter().flat_map(|file| file.batches.iter().cloned());
        let held_out = HeldOut::of_batches(batches, vocab)
            .unwrap_or_else(|NoTokens| HeldOut::built_in(tokenizer, *layout, longest, vocab));
        let (dir, formats) = (&recipe.output.dir, &recipe.output.export);
        let bar = self.console.phase("comparing what is exported", 0);
        let written =
            export::write_verified_by(&mut self.trainer, dir, formats, adapter, &options, &held_out);
        let written = block_on(written);
        bar.finish_and_clear();
        written.or_else(|error| {
            let kept = export::write(&dir.join("refused"), Format::Peft, adapter, base.config(), &options)?;
            self.end(Status::Finished, None)?;
            bail!("{error}; what was trained is kept in {}", kept.display())
        })
    }

    fn say_finished(&self, early: bool, kept: usize, written: &Written) {
        let history = &self.record.history;
        let (seconds, speed) = history.speed();
        let scores = |step: usize| history.evaluation(step).and_then(|e| e.scores);
        let (before, after) = (scores(0), scores(kept));
        self.console.json(|| {
            json!({
                "event": "finished", "step": self.step, "adapter_of_step": kept, "stopped_early": early,
                "seconds": seconds, "tokens_per_second": speed, "output": self.recipe.output.dir,
                "eval_loss_before": before.map(|s| s.eval_loss), "eval_loss": after.map(|s| s.eval_loss),
                "effect": written.effect.to_string(), "exported": exported(written),
            })
        });
        if !self.console.words() {
            return;
        }
        show::text("");
        let steps = show::count(self.step, "step");
        show::line("trained", format_args!("{steps} in {seconds:.1} s, {speed:.0} tokens/s"));
        if early {
            let patience = show::count(self.recipe.eval.early_stopping_patience, "evaluation");
            show::line(
                "early",
                format_args!(
                    "{patience} without a lower validation loss: no further step of {}",
                    self.steps()
                ),
            );
        }
        if kept != self.step {
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
        let dir = &self.recipe.output.dir;
        self.write_report(status, kept)?;
        let mut facts = self.facts();
        facts["ended"] = now().into();
        facts["step"] = self.step.into();
        facts["adapter_of_step"] = json!(kept);
        state::write(dir, status, &facts)?;
        Ok(())
    }

    /// What is known of the run before its first step.
    pub(super) fn facts(&self) -> Value {
        json!({
            "device": self.gpu.description(), "base": self.session.frozen.base.name(), "digests": self.identity,
            "started": self.started, "steps": self.steps(), "parameters": self.initial.parameters(),
        })
    }

    pub(super) fn write_report(&self, status: Status, kept: Option<usize>) -> Result<()> {
        let adapter = Format::Peft.place(&self.recipe.output.dir).join("adapter_model.safetensors");
        let written = kept.and_then(|_| std::fs::read(adapter).ok());
        let report = Report {
            recipe: self.recipe,
            history: &self.record.history,
            status: status.name(),
            steps: self.steps(),
            kept,
            device: &self.gpu.description(),
            base: self.session.frozen.base.name(),
            identity: &self.identity,
            adapter_digest: written.map(|bytes| digest::bytes(&bytes)),
            parameters: self.initial.parameters(),
            planned_bytes: self.trainer.plan().total(),
            train_samples: self.session.prepared.data.train.len(),
            validation_samples: self.session.prepared.data.validation.len(),
        };
        let path = self.recipe.output.dir.join(report::FILE);
        files::write_atomic(&path, report.html().as_bytes())?;
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
