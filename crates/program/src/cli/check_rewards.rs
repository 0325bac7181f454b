//! `check` for recipes that learn from rewards: one group of completions, and the cost of a step.

use std::time::Instant;

use anyhow::Result;
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::run::grpo::{Learning, Setup};
use rullama_train::run::warnings::SPREAD;
use rullama_train::run::{self, Batches, Phase, RolloutLine};
use rullama_train::train::Trainer;

use super::output;
use super::setup::session::Session;

/// Characters of a completion that are shown.
const SHOWN: usize = 160;

/// Draws the completions of the first prompt, and prints them with rewards and advantages. Times `measure` steps after a first one.
pub fn run(
    session: &Session,
    setup: &Setup,
    trainer: &Trainer,
    initial: &Adapter,
    measure: usize,
) -> Result<()> {
    let mut learning = Learning::new(setup, &session.frozen, &session.prepared, initial);
    let bar = output::Progress::new("completions", setup.keys.num_generations);
    let mut hear = |_: Phase, done: usize, _: usize| {
        bar.set_position(done);
        true
    };
    let lines = block_on(learning.first_group(trainer, &mut hear))?;
    bar.finish_and_clear();
    group(&lines);
    output::line("sequences", format_args!("{} are drawn at once", trainer.plan().sequences));
    let spread = lines.iter().any(|line| line.advantage != 0.0);
    if !spread {
        output::line(
            "",
            format_args!("all rewards are equal, so nothing is learnt from this prompt: {SPREAD}"),
        );
    }
    if lines.iter().all(|line| !line.finished) {
        output::line(
            "",
            "every completion was cut at grpo.max_completion_length: raise it, or reward shorter ones",
        );
    }
    if measure > 0 {
        time(session, learning, trainer, measure)?;
    }
    Ok(())
}

/// Prints a prompt with its completions.
fn group(lines: &[RolloutLine]) {
    let Some(first) = lines.first() else { return };
    output::text("");
    output::line("prompt", format_args!("{} ({})", first.prompt_text(), first.sample));
    for line in lines {
        let value = |value: Option<f64>| value.map_or("none".into(), |value| format!("{value:.3}"));
        let each = line.rewards.iter().map(|(name, reward)| format!("{name} {}", value(reward.as_f64())));
        let each = each.collect::<Vec<_>>().join(", ");
        let shown: String = line.completion.chars().take(SHOWN).collect();
        let more = if shown.len() < line.completion.len() { "…" } else { "" };
        let cut = if line.finished { "" } else { ", cut" };
        output::line(
            &format!("{:+.3}", line.advantage),
            format_args!(
                "{shown:?}{more} · {each} · reward {} · {} tokens{cut}",
                value(line.reward),
                line.tokens
            ),
        );
    }
}

/// Times whole steps. The very first is a warm-up, in which pipelines are compiled.
fn time(session: &Session, mut learning: Learning, trainer: &Trainer, measure: usize) -> Result<()> {
    let (total, optimizer) = (learning.steps(), run::optimizer(&session.recipe));
    let measure = measure.min(total.saturating_sub(1));
    let (mut drawing, mut training) = (0.0, 0.0);
    let bar = output::Progress::new("timing", measure + 1);
    for index in 0..=measure {
        bar.set_position(index);
        let started = Instant::now();
        let Some(step) = block_on(learning.next(index, trainer, &mut |_, _, _| true))? else { return Ok(()) };
        let drawn = started.elapsed().as_secs_f64();
        let rate = session.prepared.steps.schedule.learning_rate(index);
        block_on(run::take(&learning, trainer, (index, &step), &optimizer, rate, false))?;
        if index > 0 || measure == 0 {
            drawing += drawn;
            training += started.elapsed().as_secs_f64() - drawn;
        }
    }
    bar.finish_and_clear();
    let steps = measure.max(1) as f64;
    let (drawing, training) = (drawing / steps, training / steps);
    output::line(
        "time",
        format_args!(
            "{:.2} s a step: {drawing:.2} s for completions and rewards, {training:.2} s for training; {} for {}",
            drawing + training,
            output::duration(std::time::Duration::from_secs_f64((drawing + training) * total as f64)),
            output::count(total, "step"),
        ),
    );
    Ok(())
}
