//! Evaluations on the way: validation and replies.

use anyhow::Result;
use pollster::block_on;
use rullama_train::run::metrics::Event;

use super::Run;

impl Run<'_> {
    /// Validation and replies; false where somebody asked to stop meanwhile, and nothing was measured.
    pub(super) fn evaluate(&mut self) -> Result<bool> {
        let (course, stop) = (&self.course, &self.stop);
        let batches = course.prepared.validation.iter().map(|file| file.batches.len()).sum();
        let bar = self.console.phase("validation", batches);
        let go_on = |done: usize| {
            bar.set_position(done as u64);
            !stop.asked()
        };
        let validation = block_on(course.validate(go_on))?;
        bar.finish_and_clear();
        let Some(mut evaluation) = validation else { return Ok(false) };

        let bar = self.console.phase("replies", course.prepared.prompts.len());
        let go_on = |done: usize| {
            bar.set_position(done as u64);
            !stop.asked()
        };
        let replies = block_on(course.replies(go_on))?;
        bar.finish_and_clear();
        let Some(replies) = replies else { return Ok(false) };
        evaluation.replies = replies;

        self.record.push(&Event::Evaluation(evaluation.clone()))?;
        let is_best = block_on(self.course.evaluated(evaluation.clone()))?;
        self.console.evaluation(&evaluation, is_best);
        self.console.start_steps(self.course.step);
        Ok(true)
    }
}
