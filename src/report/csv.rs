//! `metrics.csv`: the measurements of a run for spreadsheets, one row per step and per evaluation.

use crate::run::metrics::{History, MetricsEvent, StepMetrics, Timing};
use crate::train::objective::PreferenceMetrics;

const HEADER: &str =
    "step,loss,accuracy,grad_norm,update_ratio,learning_rate,tokens,seconds,eval_loss,eval_accuracy";

/// The first row. `compares`: whether the objective compares samples, which has columns of its own.
fn header(compares: bool) -> String {
    let names = PreferenceMetrics::default().named().map(|(name, _)| name);
    let own = names.iter().map(|name| format!(",{name}"));
    let own = own.chain(names.iter().map(|name| format!(",eval_{name}")));
    format!("{HEADER}{}\n", if compares { own.collect() } else { String::new() })
}

/// The row of an event; `None` for notices and for evaluations without scores. A value that is unknown is empty. `compares`: whether the
/// objective compares samples.
pub fn row(event: &MetricsEvent, timing: Option<&Timing>, compares: bool) -> Option<String> {
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
            let scores = evaluation.scores?;
            let mut cells: [String; 10] = Default::default();
            cells[0] = evaluation.step.to_string();
            cells[8] = scores.eval_loss.to_string();
            cells[9] = scores.eval_accuracy.to_string();
            cells
        }
        MetricsEvent::Effects(_) | MetricsEvent::Notice(_) => return None,
    };
    let mut row = cells.join(",");
    if compares {
        let named = PreferenceMetrics::default().named().map(|(name, _)| name);
        let of_step = |step: &StepMetrics| step.preference.named().map(|(_, value)| value);
        let (steps, evaluations) = match event {
            MetricsEvent::Step(step) => (of_step(step), [None; 12]),
            MetricsEvent::Evaluation(evaluation) => {
                let value = |name| evaluation.preference.get(&format!("eval_{name}")).copied();
                ([None; 12], named.map(value))
            }
            MetricsEvent::Effects(_) | MetricsEvent::Notice(_) => return None,
        };
        steps.into_iter().chain(evaluations).for_each(|value| row += &format!(",{}", text(value)));
    }
    Some(row + "\n")
}

/// The file after all events so far.
pub fn replayed(history: &History, compares: bool) -> String {
    let mut text = header(compares);
    for event in &history.events {
        let timing = match event {
            MetricsEvent::Step(step) => history.timing.iter().find(|timing| timing.step == step.step),
            _ => None,
        };
        text.extend(row(event, timing, compares));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::metrics::{Evaluation, RunNotice, Scores};
    use crate::train::StepReport;

    #[test]
    fn every_row_has_every_column() {
        let report = StepReport {
            loss: 0.5,
            accuracy: 0.25,
            grad_norm: f64::NAN,
            update_ratio: 1e-3,
            preference: Default::default(),
        };
        let step = MetricsEvent::Step(StepMetrics::taken(1, &report, 1e-4, 7));
        let notice = MetricsEvent::Notice(RunNotice { step: 1, notice: "a, b".into() });
        let timing = Timing { step: 1, time: 9.0, seconds: 2.0, tokens_per_second: 3.5 };
        let text = replayed(&History::replay(vec![step, notice], vec![timing], None), false);
        assert_eq!(text, format!("{HEADER}\n1,0.5,0.25,,0.001,0.0001,7,2,,\n"));
    }

    #[test]
    fn comparisons_have_columns_of_their_own() {
        let preference =
            PreferenceMetrics { rewards_margins: Some(1.5), kl: Some(0.25), ..PreferenceMetrics::default() };
        let report = StepReport { loss: 0.5, accuracy: 1.0, grad_norm: 1.0, update_ratio: 1.0, preference };
        let step = MetricsEvent::Step(StepMetrics::taken(1, &report, 1e-4, 7));
        let evaluation = MetricsEvent::Evaluation(Evaluation {
            scores: Some(Scores::default()),
            preference: preference.of_evaluation(),
            ..Evaluation::default()
        });
        let text = replayed(&History::replay(vec![step, evaluation], Vec::new(), None), true);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert!(rows.iter().all(|row| row.len() == 34), "{text}");
        let column = |name: &str| rows[0].iter().position(|cell| *cell == name).expect("a column");
        assert_eq!([rows[1][column("rewards/margins")], rows[1][column("eval_kl")]], ["1.5", ""]);
        assert_eq!([rows[2][column("eval_kl")], rows[2][column("kl")]], ["0.25", ""]);
    }
}
