//! The comparisons of several validation files as one.

use std::collections::BTreeMap;

use super::metrics::Scores;
use crate::data::batch::Comparison;
use crate::train::LossTotals;
use crate::train::objective::{Distill, Objective, PreferenceMetrics, Tally};

/// Sums over validation files; the files count by their pairs or rated samples.
#[derive(Default)]
pub struct Compared {
    units: f64,
    loss: f64,
    /// The loss of an objective that has a teacher, and its sums over all files.
    taught: Option<(Distill, LossTotals)>,
    /// Sum and weight of each metric.
    metrics: BTreeMap<String, [f64; 2]>,
}

impl Compared {
    /// Adds a file, and returns its scores.
    pub fn add(
        &mut self,
        objective: &Objective,
        tally: &Tally,
        comparison: &Comparison,
        totals: LossTotals,
    ) -> Scores {
        if let Some(distill) = objective.distill() {
            let (_, all) = self.taught.get_or_insert((distill, LossTotals::default()));
            *all += totals;
            return taught(&distill, totals);
        }
        let Some(preference) = objective.preference() else { return totals.into() };
        let (units, good) = (comparison.units as f64, comparison.good_tokens);
        let loss = tally.loss(preference, good);
        self.units += units;
        self.loss += units * loss;
        let found: PreferenceMetrics = tally.metrics(preference, good);
        for (name, value) in found.of_evaluation() {
            let sums = self.metrics.entry(name).or_default();
            sums[0] += units * value;
            sums[1] += units;
        }
        Scores { eval_loss: loss, ..totals.into() }
    }

    /// The scores of all files: those of the tokens, with the objective as the loss if it compares samples.
    pub fn scores(&self, totals: LossTotals) -> Scores {
        if let Some((distill, all)) = &self.taught {
            return taught(distill, *all);
        }
        let scores = Scores::from(totals);
        match self.units > 0.0 {
            true => Scores { eval_loss: self.loss / self.units, ..scores },
            false => scores,
        }
    }

    /// The mean of each metric.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        if let Some((_, all)) = self.taught.filter(|(_, all)| all.tokens > 0) {
            return all.lesson().of_evaluation();
        }
        self.metrics.iter().map(|(name, [sum, weight])| (name.clone(), sum / weight)).collect()
    }
}

/// Scores whose loss is that of training.
fn taught(distill: &Distill, totals: LossTotals) -> Scores {
    Scores { eval_loss: distill.loss(totals.divergence(), totals.loss()), ..totals.into() }
}
