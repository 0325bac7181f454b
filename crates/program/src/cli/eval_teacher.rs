//! The teacher in `eval`: what it says about the validation samples, and how well it predicts them itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use pollster::block_on;
use rullama_train::data::batch::targets;
use rullama_train::gpu::Gpu;
use rullama_train::recipe::Recipe;
use rullama_train::run::distill::lessons::{Lessons, Rows};
use rullama_train::run::distill::teacher::Teacher;
use rullama_train::run::distill::{Job, learn_files, pass};
use rullama_train::run::metrics::Scores;
use rullama_train::run::{Data, OpenBase, ValidationFile, objective};
use rullama_train::train::{Capacity, LossTotals, TrainError};
use serde_json::{Value, json};

use super::output;

/// The teacher's own scores.
pub struct Taught {
    name: String,
    scores: Scores,
}

/// Lets the teacher, if the recipe has one, read the validation samples, and hands what it says to their files. Grows `capacity` to fit that.
pub fn learn(
    recipe: &Recipe,
    frozen: &OpenBase,
    gpu: &Gpu,
    files: &[ValidationFile],
    data: &Data,
    capacity: &mut Capacity,
) -> Result<Option<(Taught, Vec<String>)>> {
    let Some(teacher) = Teacher::open(recipe, &frozen.base)? else { return Ok(None) };
    let job = Job::new(recipe, frozen, &teacher, data.validation.iter().collect(), *capacity);
    let bar = output::Progress::new("teacher", job.header.rows);
    let progress = |done: usize, _| -> Result<bool, TrainError> {
        bar.set_position(done);
        Ok(true)
    };
    let rows = block_on(pass::in_memory(gpu, recipe, &job, progress))?;
    bar.finish_and_clear();
    let Some(rows) = rows else { return Ok(None) };
    learn_files(files, &data.validation, &rows, 0);
    let mut first = 0;
    for file in files {
        capacity.include(&file.step(&data.validation, first)?);
        first += file.count;
    }
    let taught = Taught { name: teacher.base.name().to_owned(), scores: scores(recipe, &rows, &job)? };
    Ok(Some((taught, teacher.notices.clone())))
}

/// Loss and accuracy of the teacher.
fn scores(recipe: &Recipe, rows: &Arc<Rows>, job: &Job) -> Result<Scores> {
    let mut next = 0;
    let mut place = |rows: usize| {
        next += rows;
        Some(next - rows)
    };
    let places = job.samples.iter().map(|sample| place(sample.loss_tokens())).collect();
    let lessons = Lessons::new(rows, places);
    let mut totals = LossTotals::default();
    for (index, sample) in job.samples.iter().enumerate() {
        for (token, target) in lessons.of(index, sample)?.iter().zip(targets(&sample.labels)) {
            totals.loss_sum += f64::from(token.loss);
            totals.tokens += 1;
            let likeliest = token.row.tokens.first().map(|(id, _)| *id as i32);
            totals.right += usize::from(likeliest == Some(target));
        }
    }
    let loss = objective(recipe).distill().map_or(totals.loss(), |distill| distill.loss(0.0, totals.loss()));
    Ok(Scores { eval_loss: loss, ..totals.into() })
}

impl Taught {
    /// Its entry in the list of results.
    pub fn json(&self) -> Value {
        let mut object = serde_json::to_value(self.scores).expect("plain values under text keys");
        object["model"] = "teacher".into();
        object["name"] = json!(self.name);
        object
    }

    /// Prints its scores, and how far from it the models with these metrics are.
    pub fn print(&self, metrics: &[&BTreeMap<String, f64>]) {
        output::lessons::change(metrics).iter().for_each(|change| output::line("distance", change));
        let Scores { eval_perplexity, eval_accuracy, .. } = self.scores;
        let accuracy = 100.0 * eval_accuracy;
        output::line(
            "teacher",
            format_args!("{}: perplexity {eval_perplexity:.2}, accuracy {accuracy:.1} %", self.name),
        );
    }
}
