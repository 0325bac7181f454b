//! Log-probabilities of tokens: those of the model's softmax over its logits, before penalties, temperature and cuts.

use std::collections::VecDeque;

use crate::ops::argmax::top::RowTop;
use crate::talk::sampling;

/// Most of the likeliest tokens that are shown beside a token.
pub const MAX_TOP: usize = 20;
/// The log-probability of a token that the model never chooses, as in OpenAI's API: JSON has no infinity.
const NEVER: f64 = -9999.0;

/// A token and its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// The likeliest tokens at its place and their log-probabilities, likeliest first.
    pub top: Vec<(u32, f64)>,
}

impl Score {
    /// The score of token `id` by a row of logits, with up to `top` of the likeliest tokens. `None` if the logits are not finite.
    pub fn of(logits: &[f32], id: u32, top: usize) -> Option<Score> {
        let largest = *logits.get(sampling::likeliest(logits))?;
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
        let log = Log { largest, sum };
        let head = if top == 0 { Vec::new() } else { sampling::head(logits, top) };
        let top = head.iter().map(|c| (c.id, log.of(c.logit))).collect();
        let logit = *logits.get(id as usize)?;
        log.is_sound().then(|| Score { id, logprob: log.of(logit), top })
    }

    /// The score of token `id`, the target of a row on the device. `None` if its logits are not finite.
    pub(super) fn of_row(row: &RowTop, id: u32) -> Option<Score> {
        let log = Log { largest: row.largest, sum: f64::from(row.sum) };
        let top = row.top.iter().map(|found| (found.index, log.of(found.value))).collect();
        log.is_sound().then(|| Score { id, logprob: log.of(row.target), top })
    }
}

/// The log-probability of token `id` by a row of logits divided by `temperature`, or by the logits where that is 0. `None` if the logits
/// are not finite.
pub(super) fn tempered(logits: &[f32], id: u32, temperature: f64) -> Option<f32> {
    let divisor = if temperature == 0.0 { 1.0 } else { temperature };
    let largest = *logits.get(sampling::likeliest(logits))?;
    let of = |logit: f32| f64::from(logit - largest) / divisor;
    let sum: f64 = logits.iter().map(|&logit| of(logit).exp()).sum();
    let log = Log { largest, sum };
    let logprob = (of(*logits.get(id as usize)?) - sum.ln() + 0.0).max(NEVER);
    log.is_sound().then_some(logprob as f32)
}

/// `log softmax` of a row: its largest logit, and `Σ exp(logit − largest)`.
struct Log {
    largest: f32,
    sum: f64,
}

impl Log {
    fn of(&self, logit: f32) -> f64 {
        // Adding 0 makes a certain token's -0 a 0.
        (f64::from(logit) - f64::from(self.largest) - self.sum.ln() + 0.0).max(NEVER)
    }

    fn is_sound(&self) -> bool {
        self.largest.is_finite() && self.largest > -3.4e38 && self.sum.is_finite()
    }
}

/// The scores of a reply's tokens, held back until the text in which they begin is known to be part of the reply.
#[derive(Default)]
pub(super) struct Held {
    /// Scores, and the byte of the reply at which each token begins.
    scores: VecDeque<(usize, Score)>,
}

impl Held {
    /// Adds the score of a token that begins at byte `start`.
    pub fn push(&mut self, start: usize, score: Option<Score>) {
        self.scores.extend(score.map(|score| (start, score)));
    }

    /// Takes the scores of tokens that begin before byte `end`.
    pub fn until(&mut self, end: usize) -> Vec<Score> {
        let count = self.scores.iter().take_while(|(start, _)| *start < end).count();
        self.scores.drain(..count).map(|(_, score)| score).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_softmax() {
        let logits = [1.0f32, 3.0, 3.0, f32::NEG_INFINITY, 0.5];
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        let of = |l: f64| (l.exp() / total).ln();
        let score = Score::of(&logits, 4, 3).expect("finite");
        assert!((score.logprob - of(0.5)).abs() < 1e-12, "{score:?}");
        let ids: Vec<u32> = score.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [1, 2, 0], "the smaller id first among equals");
        assert!((score.top[0].1 - of(3.0)).abs() < 1e-12);
        assert_eq!(Score::of(&logits, 3, 0).map(|s| (s.logprob, s.top)), Some((NEVER, vec![])));
        // The likeliest token has exactly the largest of the log-probabilities beside it: evaluation programs compare them.
        let first = Score::of(&logits, 1, 1).expect("finite");
        assert_eq!(first.logprob, first.top[0].1);
        let certain = Score::of(&[0.0, f32::NEG_INFINITY], 0, 0).expect("finite");
        assert!(certain.logprob == 0.0 && certain.logprob.is_sign_positive());
        assert_eq!(Score::of(&[1.0, f32::NAN], 0, 1), None);
        assert_eq!(Score::of(&[1.0, f32::INFINITY], 0, 1), None);
        assert_eq!(Score::of(&[], 0, 1), None);
    }

    #[test]
    fn a_temperature_divides_the_logits() {
        let logits = [1.0f32, 3.0, -2.0];
        let of = |t: f64| (-2.0 / t) - logits.iter().map(|&l| (f64::from(l) / t).exp()).sum::<f64>().ln();
        let found = |t: f64| f64::from(tempered(&logits, 2, t).expect("finite"));
        assert!((found(0.5) - of(0.5)).abs() < 1e-5 && (found(2.0) - of(2.0)).abs() < 1e-6);
        assert_eq!(found(0.0), found(1.0));
        assert_eq!(tempered(&[f32::NAN, 1.0], 1, 1.0), None);
    }

    #[test]
    fn scores_wait_for_their_text() {
        let score = |id| Some(Score { id, logprob: 0.0, top: Vec::new() });
        let mut held = Held::default();
        // Tokens 1 and 2 are parts of one character.
        for (start, id) in [(0, 0), (2, 1), (2, 2), (5, 3)] {
            held.push(start, score(id));
        }
        let ids = |scores: Vec<Score>| scores.iter().map(|s| s.id).collect::<Vec<_>>();
        assert_eq!(ids(held.until(2)), [0]);
        assert_eq!(ids(held.until(2)), [] as [u32; 0]);
        assert_eq!(ids(held.until(5)), [1, 2]);
        assert_eq!(ids(held.until(usize::MAX)), [3]);
    }
}
