//! The log-probabilities of a sample.

use crate::data::batch::MicroBatch;

/// The log-probabilities of a sample: sums over its rows, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Log-probability of the answer.
    pub logp: f64,
    /// Tokens of the answer.
    pub tokens: usize,
    /// Log-probability of the prompt, if its tokens have loss.
    pub prompt_logp: f64,
    /// Tokens of the prompt that have loss.
    pub prompt_tokens: usize,
}

impl Score {
    /// The scores of the samples of `batch`, from the losses of its rows.
    pub fn of(batch: &MicroBatch, losses: &[f32]) -> Vec<Score> {
        let mut scores: Vec<Score> = Vec::new();
        let mut last = None;
        for (index, (&row, &loss)) in batch.loss_rows.iter().zip(losses).enumerate() {
            let start = batch.starts[row as usize];
            if last != Some(start) {
                scores.push(Score::default());
                last = Some(start);
            }
            let Some(score) = scores.last_mut() else { continue };
            if batch.in_prompt.get(index) == Some(&true) {
                score.prompt_logp -= f64::from(loss);
                score.prompt_tokens += 1;
            } else {
                score.logp -= f64::from(loss);
                score.tokens += 1;
            }
        }
        scores
    }

    /// For another process.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let counts = [self.tokens, self.prompt_tokens].map(|count| count as u64);
        let words = [self.logp, self.prompt_logp].map(f64::to_bits).into_iter().chain(counts);
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Reads what several [`Score::to_bytes`] wrote.
    pub(crate) fn from_bytes(bytes: &[u8]) -> impl Iterator<Item = Score> {
        let (words, _) = bytes.as_chunks::<8>();
        let (scores, _) = words.as_chunks::<4>();
        scores.iter().map(|words| {
            let [logp, prompt_logp, tokens, prompt_tokens] = words.map(u64::from_le_bytes);
            Score {
                logp: f64::from_bits(logp),
                prompt_logp: f64::from_bits(prompt_logp),
                tokens: tokens as usize,
                prompt_tokens: prompt_tokens as usize,
            }
        })
    }
}
