//! `check --lr`: a range test that proposes a learning rate.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::files;
use rullama_train::recipe::{OptimizerKind, Recipe};
use rullama_train::report::Range;
use rullama_train::run;
use rullama_train::run::range_test::{Point, RangeTest, STEPS};
use rullama_train::words::power_of_ten;
use serde_json::json;

use super::output::{self, Progress, line, text};
use super::setup::summary;
use super::setup::timings::Timings;

/// Options of the range test.
#[derive(Args)]
pub struct RateArgs {
    /// Propose a learning rate: some tens of steps with a rising rate, on a copy of the adapter. The run's folder is not touched.
    #[arg(long, conflicts_with_all = ["gradients", "measure"])]
    pub lr: bool,
    /// Page with the chart, for --lr [default: RECIPE-lr.html].
    #[arg(long, value_name = "FILE", requires = "lr")]
    lr_page: Option<PathBuf>,
}

/// Rows of the chart in the terminal.
const HEIGHT: usize = 10;

/// Tests the rates, prints a chart and a proposal, and writes the page.
pub fn run(recipe: &Recipe, recipe_file: &Path, args: &RateArgs) -> Result<()> {
    if recipe.grpo.is_some() {
        bail!(
            "--lr compares losses, and those of train.objective = \"grpo\" say nothing about progress; watch the reward of a short run instead"
        );
    }
    let page = args.lr_page.clone().unwrap_or_else(|| {
        let stem = recipe_file.file_stem().unwrap_or_default().to_string_lossy();
        format!("{stem}-lr.html").into()
    });
    files::check_file(&page)?;
    let mut timings = Timings::start();
    let (session, initial, gpu) = summary::opened(recipe, &mut timings)?;
    let recipe = &session.recipe;
    session.learn_in_memory(recipe, &gpu)?;
    let bar = output::spinner("loading the base");
    let model = session.model(recipe, &gpu, &initial.adapter)?;
    let trainer = session.trainer(recipe, &gpu, &model, &initial.adapter)?;
    bar.set_message("trying the longest batch");
    let tried = session.dry_pass(&trainer, &mut timings)?;
    bar.finish_and_clear();
    line("dry run", tried.text);
    if session.prepared.needs_reference() {
        block_on(session.prepared.compute_reference(&trainer, Vec::new(), |_, _, _| anyhow::Ok(true)))?;
    }
    let (steps, samples) = (&session.prepared.steps, &session.prepared.data.train);
    let bar = Progress::new("rates", STEPS);
    let progress = |done: usize| bar.set_position(done);
    let test = block_on(RangeTest::run(&trainer, steps, samples, &run::optimizer(recipe), progress))?;
    bar.finish_and_clear();

    let advice = advice(recipe, &test);
    text("");
    chart(&test.points, test.proposal().map(|proposal| proposal.learning_rate)).iter().for_each(text);
    text("");
    line("tested", tested(&test));
    advice.iter().for_each(|sentence| line("advice", sentence));
    let range = Range {
        proposed: test.proposal().map(|proposal| proposal.learning_rate),
        under: &format!("{} · {}", recipe.model.base, gpu.description()),
        points: test.points.iter().map(|p| [p.learning_rate, p.loss, p.smoothed]).collect(),
        advice,
    };
    files::write_atomic(&page, range.html().as_bytes())?;
    line("page", page.display());
    output::finish(json!({ "learning_rate": range.proposed, "page": page, "advice": range.advice }));
    Ok(())
}

fn tested(test: &RangeTest) -> String {
    let [first, last] = [test.points.first(), test.points.last()].map(|p| p.map_or(0.0, |p| p.learning_rate));
    let stopped = test.stopped.map(|why| format!("; it ended there because {why}")).unwrap_or_default();
    format!("{}, rates from {first:.0e} to {last:.0e}{stopped}", output::count(test.points.len(), "step"))
}

/// The proposal with its reason, one sentence each.
fn advice(recipe: &Recipe, test: &RangeTest) -> Vec<String> {
    let Some(proposal) = test.proposal() else {
        return vec![
            "no rate lowered the loss, so none is proposed. Check the samples and their loss tokens with `check`; a base that knows \
             them already has nothing to learn"
                .into(),
        ];
    };
    let (rate, set) = (proposal.learning_rate, recipe.train.learning_rate);
    let mut advice = vec![format!(
        "train.learning_rate = {rate:e}: the loss was lowest at {:.0e} ({:.0} % of that before training), and a run of many steps \
         wants an eighth of that",
        proposal.lowest_at,
        100.0 * proposal.lowest
    )];
    let ratio = set / rate;
    advice.push(match ratio {
        r if r > 2.5 => {
            format!("the recipe uses {set:e}, {r:.0}× the suggestion: training may diverge")
        }
        r if r < 0.4 => format!("the recipe has {set:e}, {:.0} times less: it learns slowly", 1.0 / r),
        _ => format!("the recipe has {set:e}, which is about that"),
    });
    if recipe.train.optimizer == OptimizerKind::Sgd {
        advice.push("this holds for optimizer = \"sgd\" only: rates of AdamW are far lower".into());
    }
    advice
}

/// The smoothed loss, a column per step, with the proposed rate marked.
fn chart(points: &[Point], proposed: Option<f64>) -> Vec<String> {
    if points.is_empty() {
        return Vec::new();
    }
    let values = || points.iter().map(|point| point.smoothed);
    let (low, high) = values().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
    let row_of = |value: f64| {
        let share = (value - low) / (high - low).max(1e-9);
        HEIGHT - 1 - (share * (HEIGHT - 1) as f64).round() as usize
    };
    let mark = proposed.and_then(|rate| points.iter().position(|point| point.learning_rate >= rate));
    let cell = |row: usize, (column, point): (usize, &Point)| match row == row_of(point.smoothed) {
        true => '•',
        false if mark == Some(column) => '│',
        false => ' ',
    };
    let label = |row: usize| match row {
        0 => format!("{:>4.0} %", 100.0 * high),
        _ if row == HEIGHT - 1 => format!("{:>4.0} %", 100.0 * low),
        _ => " ".repeat(6),
    };
    let line = |row: usize| -> String {
        let cells: String = points.iter().enumerate().map(|column| cell(row, column)).collect();
        format!("{} ┤{}", label(row), cells.trim_end())
    };
    let mut lines = vec!["        smoothed loss against the learning rate".to_string()];
    lines.extend((0..HEIGHT).map(line));
    lines.push(format!("       └{}", "─".repeat(points.len())));
    let powers = (-6..=3).map(power_of_ten);
    lines.push(labels(points, powers));
    lines.extend(proposed.map(|rate| labels(points, [rate]) + " proposed"));
    lines
}

/// Rates below their columns. One that would touch the last is left out.
fn labels(points: &[Point], rates: impl IntoIterator<Item = f64>) -> String {
    let mut line = " ".repeat(8);
    for rate in rates {
        let tested = points[0].learning_rate * 0.99..=points[points.len() - 1].learning_rate * 1.01;
        let column = points.iter().position(|point| point.learning_rate >= rate * (1.0 - 1e-9));
        let Some(column) = column.filter(|_| tested.contains(&rate)) else { continue };
        let gap = (8 + column).saturating_sub(line.chars().count());
        if gap > 0 || column == 0 {
            line += &format!("{}{rate:e}", " ".repeat(gap));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_fits_a_terminal_and_marks_the_proposal() {
        let point = |i: usize| {
            let smoothed = 1.0 - 0.01 * (i.min(40) as f64) + 0.05 * (i.saturating_sub(40) as f64);
            Point { learning_rate: 1e-6 * 1.26f64.powi(i as i32), loss: smoothed, smoothed }
        };
        let points: Vec<Point> = (0..STEPS).map(point).collect();
        let lines = chart(&points, Some(1e-3));
        assert_eq!(lines.len(), HEIGHT + 4);
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        assert_eq!(lines.concat().matches('•').count(), STEPS, "one mark per step");
        assert!(lines.concat().contains('│'), "{lines:#?}");
        assert!(lines[HEIGHT + 2].contains("1e-6      ") && lines[HEIGHT + 2].contains("1e-2"), "{lines:#?}");
        let mark = lines.iter().find_map(|line| line.chars().position(|c| c == '│')).expect("a mark");
        assert_eq!(lines[HEIGHT + 3].find("1e-3 proposed"), Some(mark), "{lines:#?}");
        assert!(chart(&[], None).is_empty());
    }
}
