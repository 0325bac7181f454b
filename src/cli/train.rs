//! The main job: a recipe becomes an adapter.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use pollster::block_on;
use rullama_train::export::{self, Format, HeldOut, NoTokens, Written};
use rullama_train::files;
use rullama_train::generate;
use rullama_train::gpu::Gpu;
use rullama_train::lora::Adapter;
use rullama_train::model::Model;
use rullama_train::recipe::Recipe;
use rullama_train::run::{self, Frozen};
use rullama_train::train::{Evaluation, StepReport, Trainer};
use serde_json::json;

use super::session::Session;
use super::show;

/// Trains, evaluates before and after, and writes the output folder.
pub fn run(recipe: &Recipe) -> Result<()> {
    let (session, initial, gpu) = Session::start(recipe)?;
    let model = session.model(&gpu)?;
    let mut trainer = session.trainer(recipe, &gpu, &model, &initial)?;
    show::plan(trainer.plan(), false);

    // Only now: a run that cannot start leaves an earlier one's files as they are.
    let mut metrics = Metrics::create(&recipe.pinned(&session.frozen.fingerprint))?;
    let before = evaluate(&trainer, &session)?;
    let replies_before = replies(&gpu, &model, &initial, &session, recipe)?;
    let mut last = before;
    metrics.evaluation(0, before)?;

    let optimizer = run::optimizer(recipe);
    let count = session.steps.plans.len();
    let mut progress = Progress::new(count);
    for index in 0..count {
        let step = session.steps.step(&session.data.train, index);
        let learning_rate = session.steps.schedule.learning_rate(index);
        let started = Instant::now();
        let report = block_on(trainer.step(&step, index as u64 + 1, &optimizer, learning_rate))?;
        let tokens: usize = step.micro_batches.iter().map(|b| b.len()).sum();
        metrics.step(index + 1, &report, learning_rate, tokens)?;
        progress.step(&report, learning_rate, tokens, started.elapsed());
        let due = recipe.eval.steps > 0 && (index + 1).is_multiple_of(recipe.eval.steps);
        if due && index + 1 < count {
            last = evaluate(&trainer, &session)?;
            metrics.evaluation(index + 1, last)?;
            if let Some(e) = last {
                progress.say(&format!("step {}: validation loss {:.4}", index + 1, e.loss()));
            }
        }
    }
    let (seconds, tokens_per_second) = progress.finish();
    if count > 0 {
        last = evaluate(&trainer, &session)?;
        metrics.evaluation(count, last)?;
    }
    let adapter = finished(&trainer, &initial)?;
    let replies_after = replies(&gpu, &model, &adapter, &session, recipe)?;
    let written = write(recipe, &mut trainer, &adapter, &session)?;

    show::text("");
    let steps = show::count(count, "step");
    show::line("trained", format_args!("{steps} in {seconds:.1} s, {tokens_per_second:.0} tokens/s"));
    if let (Some(b), Some(a)) = (before, last) {
        let (b_loss, a_loss) = (b.loss(), a.loss());
        let (b_ppl, a_ppl) = (b.perplexity(), a.perplexity());
        show::line(
            "validation",
            format_args!("loss {b_loss:.4} → {a_loss:.4}, perplexity {b_ppl:.2} → {a_ppl:.2}"),
        );
    }
    for (((prompt, _), before), after) in session.prompts.iter().zip(&replies_before).zip(&replies_after) {
        show::text(format_args!("\n  {prompt}\n    before  {before}\n    after   {after}"));
    }
    show::text("");
    show::written(written)?;
    show::line("written", recipe.output.dir.display());
    Ok(())
}

fn evaluate(trainer: &Trainer, session: &Session) -> Result<Option<Evaluation>> {
    if session.validation.is_empty() {
        return Ok(None);
    }
    let bar = bar(session.validation.len(), "validation {bar:30} {pos}/{len}");
    let evaluation = block_on(trainer.evaluate(&session.validation, |done| bar.set_position(done as u64)))?;
    bar.finish_and_clear();
    Ok(Some(evaluation))
}

fn replies(
    gpu: &Gpu,
    model: &Model,
    adapter: &Adapter,
    session: &Session,
    recipe: &Recipe,
) -> Result<Vec<String>> {
    let bar = bar(session.prompts.len(), "replies {bar:30} {pos}/{len}");
    let (tokenizer, longest) = (&session.frozen.tokenizer, recipe.eval.max_new_tokens);
    let prompts: Vec<&[u32]> = session.prompts.iter().map(|(_, ids)| &ids[..]).collect();
    let done = |n| bar.set_position(n as u64);
    let replies = block_on(generate::greedy(gpu, model, tokenizer, adapter, prompts, longest, done))?;
    bar.finish_and_clear();
    Ok(replies)
}

/// The adapter as it ended; one that did not move is an error.
fn finished(trainer: &Trainer, initial: &Adapter) -> Result<Adapter> {
    let pairs = block_on(trainer.adapter())?;
    if pairs == initial.pairs {
        bail!(
            "training changed nothing: the adapter equals its start. Check train.learning_rate, and that the run has \
             more than its warm-up steps"
        );
    }
    Ok(Adapter { pairs, ..initial.clone() })
}

/// Writes every format of the recipe, each compared with the adapter in memory on validation samples, or on a built-in text
/// where there are none. An adapter that is refused is kept apart, as hours of training may be in it.
fn write(recipe: &Recipe, trainer: &mut Trainer, adapter: &Adapter, session: &Session) -> Result<Written> {
    let Frozen { base, tokenizer, layout, fingerprint, .. } = &session.frozen;
    let base_model = recipe.output.base_model_name.as_deref().unwrap_or(&recipe.model.base);
    let fingerprint = Some(&*fingerprint.to_string());
    let options = export::Options { base_model, dropout: recipe.lora.dropout, fingerprint };
    let (vocab, longest) = (base.config().vocab, trainer.capacity().tokens);
    let held_out = HeldOut::of_batches(session.validation.iter().cloned(), vocab)
        .unwrap_or_else(|NoTokens| HeldOut::built_in(tokenizer, *layout, longest, vocab));
    let (dir, formats) = (&recipe.output.dir, &recipe.output.export);
    block_on(export::write_verified_by(trainer, dir, formats, adapter, &options, &held_out)).or_else(
        |error| {
            let kept = export::write(&dir.join("refused"), Format::Peft, adapter, base.config(), &options)?;
            bail!("{error}; what was trained is kept in {}", kept.display())
        },
    )
}

/// `metrics.jsonl` in the output folder, beside `recipe.resolved.toml`.
struct Metrics(BufWriter<File>);

impl Metrics {
    /// Makes the folder before any time is spent on steps.
    fn create(recipe: &Recipe) -> Result<Metrics> {
        let dir = &recipe.output.dir;
        files::write_atomic(&dir.join("recipe.resolved.toml"), recipe.to_toml().as_bytes())?;
        let path = dir.join("metrics.jsonl");
        let file = File::create(&path).map_err(|source| files::Error { path, source })?;
        Ok(Metrics(BufWriter::new(file)))
    }

    fn step(&mut self, step: usize, report: &StepReport, learning_rate: f64, tokens: usize) -> Result<()> {
        let StepReport { loss, grad_norm } = report;
        self.write(json!({
            "step": step, "loss": loss, "grad_norm": grad_norm, "learning_rate": learning_rate, "tokens": tokens
        }))
    }

    fn evaluation(&mut self, step: usize, evaluation: Option<Evaluation>) -> Result<()> {
        let Some(e) = evaluation else { return Ok(()) };
        self.write(json!({ "step": step, "eval_loss": e.loss(), "eval_perplexity": e.perplexity() }))
    }

    fn write(&mut self, line: serde_json::Value) -> Result<()> {
        writeln!(self.0, "{line}")
            .and_then(|()| self.0.flush())
            .context("cannot write metrics.jsonl in output.dir")
    }
}

/// A bar on a terminal, plain lines elsewhere.
struct Progress {
    bar: ProgressBar,
    steps: usize,
    done: usize,
    tokens: usize,
    /// Time of the steps alone: no evaluation.
    elapsed: Duration,
    /// Exponential mean of the loss, as the bar shows it.
    smoothed: Option<f64>,
}

impl Progress {
    fn new(steps: usize) -> Progress {
        let bar = bar(steps, "step {pos}/{len} {bar:30} {msg} · {eta} left");
        Progress { bar, steps, done: 0, tokens: 0, elapsed: Duration::ZERO, smoothed: None }
    }

    fn step(&mut self, report: &StepReport, learning_rate: f64, tokens: usize, elapsed: Duration) {
        self.done += 1;
        self.tokens += tokens;
        self.elapsed += elapsed;
        let smoothed = self.smoothed.map_or(report.loss, |s| 0.9 * s + 0.1 * report.loss);
        self.smoothed = Some(smoothed);
        let (loss, norm, rate) = (report.loss, report.grad_norm, self.rate());
        let message = format!(
            "loss {loss:.4} (smoothed {smoothed:.4}) · lr {learning_rate:.2e} · grad {norm:.3} · {rate:.0} tokens/s"
        );
        self.bar.set_message(message.clone());
        self.bar.set_position(self.done as u64);
        // About twenty lines where there is no terminal.
        let every = self.steps.div_ceil(20);
        if self.bar.is_hidden() && (self.done.is_multiple_of(every) || self.done == self.steps) {
            show::text(format_args!("step {}/{}  {message}", self.done, self.steps));
        }
    }

    fn say(&self, text: &str) {
        self.bar.suspend(|| show::text(text));
    }

    fn rate(&self) -> f64 {
        self.tokens as f64 / self.elapsed.as_secs_f64()
    }

    /// Seconds, and tokens a second.
    fn finish(self) -> (f64, f64) {
        self.bar.finish_and_clear();
        (self.elapsed.as_secs_f64(), self.rate())
    }
}

fn bar(len: usize, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).expect("templates are tested by running");
    ProgressBar::new(len as u64).with_style(style)
}
