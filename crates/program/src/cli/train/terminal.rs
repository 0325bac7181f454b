//! The program as the host of a run: output on the terminal, files in the output folder.

use std::path::Path;

use anyhow::Result;
use rullama_train::adapter::Format;
use rullama_train::adapter::lora::Adapter;
use rullama_train::files;
use rullama_train::report::{self, Report};
use rullama_train::run::checkpoint::{self, Changed, Checkpoint};
use rullama_train::run::metrics::{MetricsEvent, now};
use rullama_train::run::{Asked, Host, Outcome, RolloutLine, Run, RunEvent, Status};
use rullama_train::verify::Effect;
use serde_json::{Value, json};

use super::super::ranks::{self, RankFacts};
use super::super::recipe_args::RecipeArgs;
use super::super::setup::session::Session;
use super::super::setup::timings::Timings;
use super::super::{output, pull};
use super::commands::{Commands, Progress};
use super::console::Console;
use super::log_files::LogFiles;
use super::stop::Stop;
use super::{run_file, summary};

/// Shows a run on the terminal and writes its files.
pub struct Terminal<'a> {
    session: &'a Session,
    /// The output folder.
    dir: &'a Path,
    log: LogFiles,
    console: Console,
    /// The command line of the run.
    invocation: &'a RecipeArgs,
    ranks: &'a [RankFacts],
    stop: Stop,
    /// Commands of the program that started this one.
    commands: Option<Commands>,
    progress: Progress,
    /// When the run was started, in seconds since 1970.
    started: f64,
    /// How long measuring the effects took.
    effects_seconds: Option<f64>,
    /// Completions of the last step.
    completions: Vec<RolloutLine>,
    /// Revisions of what came from the Hub, as they were when the run started.
    revisions: Value,
}

impl<'a> Terminal<'a> {
    /// Prepares the output folder's files.
    pub fn new(
        session: &'a Session,
        run: &Run<'a>,
        console: Console,
        invocation: &'a RecipeArgs,
        ranks: &'a [RankFacts],
        stop: Stop,
    ) -> Result<Terminal<'a>> {
        let dir = &run.recipe.output.dir;
        let mut resolved = pull::pinned(run.recipe).pinned(&run.base.fingerprint).to_resolved_toml();
        for Changed { step, changes } in &run.changed {
            resolved += &format!(
                "\n# After step {step} the run was continued with changes: {}\n",
                changes.join("; ")
            );
        }
        files::write_atomic(&dir.join("recipe.resolved.toml"), resolved.as_bytes())?;
        let log = LogFiles::create(dir, &run.history, run.recipe)?;
        Ok(Terminal {
            session,
            dir,
            log,
            console,
            invocation,
            ranks,
            stop,
            commands: None,
            progress: Progress::default(),
            started: now(),
            effects_seconds: None,
            completions: Vec::new(),
            revisions: pull::revisions(run.recipe),
        })
    }

    /// Also takes commands from the program that started this one.
    pub fn with_commands(self, commands: Option<Commands>) -> Terminal<'a> {
        Terminal { commands, ..self }
    }

    /// Prints how the run starts. `resumed`: messages about resuming; `loaded`: messages about `lora.init_from`.
    pub fn begin(&self, run: &Run, resumed: &[String], loaded: &[String], timings: &Timings) -> Result<()> {
        run_file::write(self.dir, Status::Running, &self.facts(run))?;
        self.console.json(|| {
            let mut object = self.facts(run);
            object["event"] = "start".into();
            object["output"] = json!(self.dir);
            object["steps"] = run.steps().into();
            object["resumed_at"] = run.step.into();
            object["start_seconds"] = timings.json();
            object["offloaded_layers"] = json!(run.model().on_host().of_layers());
            let of_data = run.prepared.data.notices.iter().map(ToString::to_string);
            let given = loaded.iter().chain(&run.prepared.advice).chain(resumed).cloned();
            object["notices"] = of_data.chain(given).collect();
            object["recipe"] = serde_json::to_value(run.recipe).expect("tables of plain values");
            object
        });
        self.console.line("startup", &timings.to_string());
        resumed.iter().for_each(|notice| self.console.line("resume", notice));
        Ok(())
    }

    /// Ends the command of `log.hook`.
    pub fn end_hook(&mut self) {
        self.console.end_hook();
    }

    /// Facts about the run that are known before its first step.
    fn facts(&self, run: &Run) -> Value {
        let mut facts = json!({
            "device": run.gpu().description(), "kernels": run.gpu().kernels().to_string(), "base": run.base.base.name(), "digests": run.identity,
            "startup": self.started, "steps": run.steps(), "parameters": run.initial.parameters(),
            "changes": run.changed, "choices": run.gpu().choices(),
        });
        if self.revisions != json!([]) {
            facts["hub"] = self.revisions.clone();
        }
        if self.ranks.len() > 1 {
            facts["shares"] = json!(run.recipe.train.shares);
            facts["ranks"] = ranks::json(self.ranks, run.trainer.times().as_ref());
        }
        facts
    }

    fn write_report(
        &self,
        run: &Run,
        status: Status,
        kept: Option<usize>,
        effect: Option<Effect>,
    ) -> Result<()> {
        let adapter = Format::Peft.place(self.dir).join("adapter_model.safetensors");
        let adapter = kept.and_then(|_| std::fs::read(adapter).ok());
        let report = Report::of(run, status, kept, adapter.as_deref());
        let html = Report { effect, completions: &self.completions, ..report }.html();
        files::write_atomic(&self.dir.join(report::FILE), html.as_bytes())?;
        Ok(())
    }

    /// Writes the final report and status; `outcome` is `None` for a run that failed.
    fn write_end(&self, run: &Run, outcome: Option<&Outcome>) -> Result<()> {
        let status = outcome.map_or(Status::Stopped, Status::of);
        let finished = outcome.and_then(|outcome| match outcome {
            Outcome::Finished(finished) => Some(finished),
            _ => None,
        });
        let kept = finished.map(|finished| finished.adapter_of_step);
        let effect = finished.and_then(|finished| Some(finished.written.as_ref()?.effect));
        self.write_report(run, status, kept, effect)?;
        let mut facts = self.facts(run);
        facts["ended"] = now().into();
        facts["step"] = run.step.into();
        facts["adapter_of_step"] = json!(kept);
        facts["effects"] = json!(run.history.effects());
        facts["result"] = outcome.map_or("none", run_file::result).into();
        run_file::write(self.dir, status, &facts)?;
        Ok(())
    }

    fn ended(&mut self, run: &Run, outcome: &Outcome) -> Result<()> {
        self.console.finish_steps();
        self.write_end(run, Some(outcome))?;
        match outcome {
            Outcome::Interrupted => summary::interrupted(run, &self.console, self.invocation),
            Outcome::Finished(finished) => {
                summary::finished(run, finished, self.effects_seconds, &self.console);
                if self.console.is_text()
                    && let Some(times) = run.trainer.times().filter(|_| self.ranks.len() > 1)
                {
                    output::line("ranks", ranks::summary(self.ranks, &times));
                }
                if self.console.is_text()
                    && let Some(load) = self.session.experts(&run.trainer)?
                {
                    output::line("experts", load);
                }
            }
            // The caller reports these as errors.
            Outcome::Refused { .. } | Outcome::Unmoved => {}
        }
        Ok(())
    }
}

impl Host for Terminal<'_> {
    type Error = anyhow::Error;

    fn on_event(&mut self, run: &Run<'_>, event: RunEvent<'_>) -> Result<()> {
        if !matches!(event, RunEvent::Progress { .. }) && self.console.end_phase() {
            self.console.start_steps(run.step);
        }
        match event {
            RunEvent::Started => self.console.start_steps(run.step),
            RunEvent::Step { metrics, timing, lines } => {
                self.log.step(metrics, timing)?;
                self.log.rollouts(lines)?;
                if !lines.is_empty() {
                    self.completions = lines.to_vec();
                }
                self.console.step(metrics, timing, &run.history);
                self.console.completions(lines);
            }
            RunEvent::Evaluation { evaluation, is_best } => {
                self.log.event(&MetricsEvent::Evaluation(evaluation.clone()))?;
                let before = run.history.evaluation(0).and_then(|e| e.scores).map(|scores| scores.eval_loss);
                self.console.evaluation(evaluation, is_best, before);
                self.console.start_steps(run.step);
            }
            RunEvent::Effects { effects, seconds } => {
                self.log.event(&MetricsEvent::Effects(effects.clone()))?;
                self.console.effects(effects, seconds);
                self.effects_seconds = Some(seconds);
            }
            RunEvent::Notice(notice) => {
                self.log.event(&MetricsEvent::Notice(notice.clone()))?;
                self.console.notice(notice);
            }
            RunEvent::Progress { phase, done, of } => {
                if self.commands.is_some() && self.progress.is_due(phase) {
                    let name = Progress::name(phase);
                    self.console.json(|| json!({ "event": "phase", "phase": name, "done": done, "of": of }));
                }
                self.console.progress(phase, done, of);
            }
            RunEvent::Ended(outcome) => self.ended(run, outcome)?,
            RunEvent::Failed => {
                self.console.finish_steps();
                self.write_end(run, None)?;
            }
        }
        Ok(())
    }

    /// Writes the checkpoint, removes old ones, and writes the report so far.
    fn keep(&mut self, run: &Run<'_>, checkpoint: &Checkpoint) -> Result<()> {
        let path = checkpoint.write(self.dir, &run.base.base)?;
        checkpoint::prune(self.dir, run.recipe.output.save_total_limit)?;
        self.console.checkpoint(checkpoint.step, &path);
        self.write_report(run, Status::Running, None, None)
    }

    async fn asked(&mut self, run: &Run<'_>) -> Asked {
        let tell = |event: &str| self.console.json(|| json!({ "event": event, "step": run.step }));
        match &self.commands {
            Some(commands) => commands.next(|| self.stop.asked(), tell),
            None if self.stop.asked() => Asked::Stop,
            None => Asked::Nothing,
        }
    }

    fn is_stopping(&self) -> bool {
        self.stop.asked() || self.commands.as_ref().is_some_and(Commands::is_stopped)
    }

    fn output(&self) -> Option<&Path> {
        Some(self.dir)
    }
}

/// Fails if the disk has too little room for checkpoints and exports.
pub fn check_space(run_dir: &Path, keep: usize, exports: usize, adapter: &Adapter) -> Result<()> {
    let existing = run_dir.ancestors().find(|p| p.is_dir()).unwrap_or(Path::new("."));
    // A file system that does not report its free space does not stop the run.
    let Ok(free) = files::available_space(existing) else { return Ok(()) };
    let matrices = 4 * adapter.parameters() as u64;
    // A checkpoint holds the adapter, two moments and the best adapter. While one is written, one more than `keep` exist.
    let more = (keep + 1).saturating_sub(checkpoint::list(run_dir).len()).max(1);
    let needed = 4 * matrices * more as u64 + matrices * exports as u64;
    if free < needed {
        anyhow::bail!(
            "{} has {} free, but checkpoints and exports need {}; free some space, lower output.save_total_limit, or choose \
             another output.dir",
            existing.display(),
            output::bytes(free),
            output::bytes(needed)
        );
    }
    Ok(())
}
