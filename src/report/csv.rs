//! `metrics.csv`: the measurements of a run for spreadsheets, one row per step and per evaluation.

use crate::recipe::Recipe;
use crate::run::metrics::{History, MetricsEvent, Timing};
use crate::train::objective::PreferenceMetrics;

const HEADER: &str =
    "step,loss,accuracy,grad_norm,update_ratio,learning_rate,tokens,seconds,eval_loss,eval_accuracy";

/// The columns of an objective, besides those of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// None.
    Plain,
    /// Those of comparisons, and of a teacher.
    Compared,
    /// Those of rewards.
    Rewarded,
}

/// Columns of rewards in rows of steps; those of evaluations follow.
const REWARDED: [&str; 4] = ["reward", "reward_std", "frac_reward_zero_std", "completions/mean_length"];

impl Columns {
    /// The columns for the objective of `recipe`.
    pub fn of(recipe: &Recipe) -> Columns {
        match (&recipe.grpo, recipe.train.objective.name.is_sft()) {
            (Some(_), _) => Columns::Rewarded,
            (None, true) => Columns::Plain,
            (None, false) => Columns::Compared,
        }
    }

    fn names(self) -> Vec<&'static str> {
        match self {
            Columns::Plain => Vec::new(),
            Columns::Compared => PreferenceMetrics::default().named().map(|(name, _)| name).to_vec(),
            Columns::Rewarded => REWARDED.to_vec(),
        }
    }
}

/// The first row.
fn header(columns: Columns) -> String {
    let names = columns.names();
    let own = names.iter().map(|name| format!(",{name}"));
    let own = own.chain(names.iter().map(|name| format!(",eval_{name}")));
    format!("{HEADER}{}\n", own.collect::<String>())
}

/// The row of an event; `None` for notices and for evaluations that measure nothing. A value that is unknown is empty.
pub fn row(event: &MetricsEvent, timing: Option<&Timing>, columns: Columns) -> Option<String> {
    let text = |x: Option<f64>| x.map_or(String::new(), |x| x.to_string());
    let cells = match event {
        MetricsEvent::Step(step) => [
            step.step.to_string(),
            text(step.loss),
            text(step.accuracy),
            text(step.grad_norm),
            text(step.update_ratio),
            step.learning_rate.to_string(),
            step.tokens.to_string(),
            text(timing.map(|timing| timing.seconds)),
            String::new(),
            String::new(),
        ],
        MetricsEvent::Evaluation(evaluation) => {
            if evaluation.scores.is_none() && evaluation.reward().is_none() {
                return None;
            }
            let mut cells: [String; 10] = Default::default();
            cells[0] = evaluation.step.to_string();
            cells[8] = text(evaluation.scores.map(|scores| scores.eval_loss));
            cells[9] = text(evaluation.scores.map(|scores| scores.eval_accuracy));
            cells
        }
        MetricsEvent::Effects(_) | MetricsEvent::Notice(_) => return None,
    };
    let mut row = cells.join(",");
    let names = columns.names();
    let value = |name: &str, prefix: &str| match event {
        MetricsEvent::Step(step) if prefix.is_empty() => {
            let compared = step.preference.named().into_iter().find(|(known, _)| *known == name);
            compared.and_then(|(_, value)| value).or_else(|| step.rewards.get(name).copied())
        }
        MetricsEvent::Evaluation(evaluation) => {
            evaluation.preference.get(&format!("{prefix}{name}")).copied()
        }
        _ => None,
    };
    for prefix in ["", "eval_"] {
        names.iter().for_each(|name| row += &format!(",{}", text(value(name, prefix))));
    }
    Some(row + "\n")
}

/// The file after all events so far.
pub fn replayed(history: &History, columns: Columns) -> String {
    let mut text = header(columns);
    for event in &history.events {
        let timing = match event {
            MetricsEvent::Step(step) => history.timing.iter().find(|timing| timing.step == step.step),
            _ => None,
        };
        text.extend(row(event, timing, columns));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::metrics::{Evaluation, RunNotice, Scores, StepMetrics};
    use crate::train::StepReport;

    #[test]
    fn every_row_has_every_column() {
        let report = StepReport {
            loss: 0.5,
            accuracy: 0.25,
            grad_norm: f64::NAN,
            update_ratio: 1e-3,
            preference: Default::default(),
            rewards: Default::default(),
        };
        let step = MetricsEvent::Step(StepMetrics::taken(1, &report, 1e-4, 7));
        let notice = MetricsEvent::Notice(RunNotice { step: 1, notice: "a, b".into() });
        let timing = Timing { step: 1, time: 9.0, seconds: 2.0, tokens_per_second: 3.5 };
        let text = replayed(&History::replay(vec![step, notice], vec![timing], None), Columns::Plain);
        assert_eq!(text, format!("{HEADER}\n1,0.5,0.25,,0.001,0.0001,7,2,,\n"));
    }

    #[test]
    fn comparisons_have_columns_of_their_own() {
        let preference =
            PreferenceMetrics { rewards_margins: Some(1.5), kl: Some(0.25), ..PreferenceMetrics::default() };
        let rewards = Default::default();
        let report =
            StepReport { loss: 0.5, accuracy: 1.0, grad_norm: 1.0, update_ratio: 1.0, preference, rewards };
        let step = MetricsEvent::Step(StepMetrics::taken(1, &report, 1e-4, 7));
        let evaluation = MetricsEvent::Evaluation(Evaluation {
            scores: Some(Scores::default()),
            preference: preference.of_evaluation(),
            ..Evaluation::default()
        });
        let text = replayed(&History::replay(vec![step, evaluation], Vec::new(), None), Columns::Compared);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert!(rows.iter().all(|row| row.len() == 34), "{text}");
        let column = |name: &str| rows[0].iter().position(|cell| *cell == name).expect("a column");
        assert_eq!([rows[1][column("rewards/margins")], rows[1][column("eval_kl")]], ["1.5", ""]);
        assert_eq!([rows[2][column("eval_kl")], rows[2][column("kl")]], ["0.25", ""]);
    }
}
