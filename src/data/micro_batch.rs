//! The samples of one forward and backward pass.

use std::sync::Arc;

use super::sample::{IGNORE, Sample};
use super::teacher::TeacherRows;

/// The tokens of one forward and backward pass: samples laid end to end, without padding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroBatch {
    /// Token ids, `[T]`.
    pub tokens: Vec<u32>,
    /// Position within the sample, `[T]`.
    pub positions: Vec<u32>,
    /// Row of the sample's first token, `[T]`.
    pub starts: Vec<u32>,
    /// One past the row of the sample's last token, `[T]`.
    pub ends: Vec<u32>,
    /// Rows whose next token is a loss token, ascending, `[N]`.
    pub loss_rows: Vec<u32>,
    /// The id that each loss row must predict, `[N]`.
    pub targets: Vec<u32>,
    /// Whether each loss row predicts a token of the prompt, `[N]`. Empty if none does.
    pub in_prompt: Vec<bool>,
    /// The teacher's distributions of the loss rows, for objectives that have one.
    pub teacher: Option<Arc<TeacherRows>>,
}

impl MicroBatch {
    /// Tokens of the longest sample.
    pub fn longest(&self) -> usize {
        let lengths = self.starts.iter().zip(&self.ends).map(|(start, end)| end - start);
        lengths.max().unwrap_or(0) as usize
    }

    /// Lays samples end to end.
    #[must_use]
    pub fn pack<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> MicroBatch {
        let mut batch = MicroBatch::default();
        for sample in samples {
            let start = batch.tokens.len() as u32;
            let end = start + sample.ids.len() as u32;
            batch.tokens.extend(&sample.ids);
            batch.positions.extend(0..end - start);
            batch.starts.resize(end as usize, start);
            batch.ends.resize(end as usize, end);
            for (t, &label) in sample.labels.iter().enumerate().skip(1).filter(|(_, l)| **l != IGNORE) {
                batch.loss_rows.push(start + t as u32 - 1);
                batch.targets.push(label as u32);
            }
        }
        batch
    }

    /// Lays samples end to end as [`MicroBatch::pack`] does. The good ones also have loss on the tokens of their prompts.
    pub fn pack_with_prompts<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> MicroBatch {
        let (mut whole, mut in_prompt) = (Vec::new(), Vec::new());
        for sample in samples {
            let mut sample = sample.clone();
            let beside = |t: usize, label: i32| t > 0 && label == IGNORE && sample.side.is_good();
            let labels = sample.labels.iter().enumerate().map(|(t, &label)| (t, label, beside(t, label)));
            let labels: Vec<(usize, i32, bool)> = labels.collect();
            for (t, label, beside) in
                labels.into_iter().skip(1).filter(|(_, label, b)| *b || *label != IGNORE)
            {
                sample.labels[t] = if beside { sample.ids[t] as i32 } else { label };
                in_prompt.push(beside);
            }
            whole.push(sample);
        }
        MicroBatch { in_prompt, ..MicroBatch::pack(&whole) }
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.starts.chunk_by(|a, b| a == b).count()
    }

    /// Number of tokens `T`.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}
