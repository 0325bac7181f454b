//! Greedy replies, by running the whole sequence again for each token. Fit for a few short samples, not for chat.

use crate::batch::{MicroBatch, Sample};
use crate::gpu::GpuError;
use crate::run::Frozen;
use crate::train::Trainer;

/// The reply to `prompt`, at most `max_new_tokens` tokens, ended by any of the model's end tokens.
pub async fn greedy(
    trainer: &Trainer<'_>,
    frozen: &Frozen,
    prompt: &[u32],
    max_new_tokens: usize,
) -> Result<String, GpuError> {
    let tokenizer = &frozen.tokenizer;
    let mut ids = prompt.to_vec();
    for _ in 0..max_new_tokens {
        let sample = Sample { labels: vec![crate::batch::IGNORE; ids.len()], ids, origin: String::new() };
        let batch = MicroBatch::pack([&sample]);
        ids = sample.ids;
        let logits = trainer.logits(&batch, &[ids.len() as u32 - 1]).await?;
        let next = likeliest(&logits) as u32;
        if next == tokenizer.turn_end() || tokenizer.eos().contains(&next) {
            break;
        }
        ids.push(next);
    }
    Ok(tokenizer.decode(&ids[prompt.len()..]))
}

/// Index of the largest of a row of logits; the first of equals, 0 of none.
pub fn likeliest(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a))).unwrap_or_default()
}
