//! Text on which models are compared.

use crate::data::batch::{MicroBatch, Sample};
use crate::data::template::{BuiltIn, Conversation, Message, Role, Template, TrainOn};
use crate::data::tokenizer::Tokenizer;
use crate::train::Capacity;

/// Logits kept for a comparison, in values: 512 MiB, which is 512 tokens for a vocabulary of 262 144.
const MAX_LOGITS: usize = 1 << 27;
/// More tokens do not improve a comparison.
const MAX_TOKENS: usize = 1024;
/// Everyday questions and answers, for adapters without validation samples.
const BUILT_IN: [[&str; 2]; 8] = [
    ["What is the capital of France?", "The capital of France is Paris."],
    ["How much is 12 plus 30?", "12 plus 30 is 42."],
    ["Write one sentence about the sea.", "The sea was calm, and the boats lay still in the harbour."],
    ["Name three colours.", "Red, green and blue."],
    ["What do bees make?", "Bees make honey from the nectar of flowers, and wax for their combs."],
    ["Translate \"good morning\" into Spanish.", "Good morning is \"buenos días\" in Spanish."],
    ["Which month comes after June?", "July comes after June."],
    ["Is water wet?", "Yes, and so is whatever it touches."],
];

/// Held-out token sequences. Logits are compared at their loss tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOut {
    batches: Vec<MicroBatch>,
}

/// The samples have no loss token.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("the samples have no loss token, so there is nothing to compare; name other data")]
pub struct NoTokens;

impl HeldOut {
    /// Takes the first loss tokens of the samples: at most 1024, and at most 512 MiB of logits.
    pub fn of_samples(samples: &[Sample], vocab: usize) -> Result<HeldOut, NoTokens> {
        HeldOut::of_batches(samples.iter().map(|sample| MicroBatch::pack([sample])), vocab)
    }

    /// Takes the first loss tokens of micro-batches, with the limits of [`HeldOut::of_samples`].
    pub fn of_batches(
        batches: impl IntoIterator<Item = MicroBatch>,
        vocab: usize,
    ) -> Result<HeldOut, NoTokens> {
        let mut left = (MAX_LOGITS / vocab).clamp(1, MAX_TOKENS);
        let mut kept = Vec::new();
        for mut batch in batches.into_iter().filter(|batch| !batch.loss_rows.is_empty()) {
            batch.loss_rows.truncate(left);
            batch.targets.truncate(left);
            left -= batch.loss_rows.len();
            kept.push(batch);
            if left == 0 {
                break;
            }
        }
        if kept.is_empty() { Err(NoTokens) } else { Ok(HeldOut { batches: kept }) }
    }

    /// Takes a few everyday questions and answers in the built-in chat template, in pieces of at most `longest` tokens.
    pub fn built_in(
        tokenizer: &Tokenizer,
        layout: &'static BuiltIn,
        longest: usize,
        vocab: usize,
    ) -> HeldOut {
        let mut samples = Vec::new();
        for texts in BUILT_IN {
            let messages = [Role::User, Role::Assistant].into_iter().zip(texts);
            let messages = messages.map(|(role, text)| Message::new(role, text)).collect();
            let template = Template::BuiltIn(layout);
            let conversation = Conversation::new(messages);
            let rendered = template.render(tokenizer, &conversation, TrainOn::Assistant);
            let rendered = rendered.expect("plain questions and answers can be rendered");
            let pieces = rendered.ids.chunks(longest.max(2)).zip(rendered.labels.chunks(longest.max(2)));
            samples.extend(pieces.map(|(ids, labels)| Sample {
                ids: ids.into(),
                labels: labels.into(),
                origin: "the built-in text".into(),
                side: Default::default(),
            }));
        }
        HeldOut::of_samples(&samples, vocab).expect("answers have loss tokens")
    }

    /// The micro-batches. Logits are compared at their loss rows.
    pub fn batches(&self) -> &[MicroBatch] {
        &self.batches
    }

    /// Number of tokens whose logits are compared.
    pub fn tokens(&self) -> usize {
        self.batches.iter().map(|batch| batch.loss_rows.len()).sum()
    }

    /// The capacity that a trainer needs for these micro-batches.
    pub fn capacity(&self) -> Capacity {
        let most = |of: fn(&MicroBatch) -> usize| self.batches.iter().map(of).max().unwrap_or(1);
        Capacity {
            tokens: most(MicroBatch::len),
            longest: most(MicroBatch::longest),
            loss_tokens: most(|b| b.loss_rows.len()),
            step_loss_tokens: 1,
            reply: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Base;
    use crate::data::batch::IGNORE;

    #[test]
    fn the_first_loss_tokens_and_their_targets_are_kept() {
        let sample = |n: u32| Sample {
            ids: (0..n).collect(),
            labels: (0..n as i32).map(|id| if id < 3 { IGNORE } else { id }).collect(),
            origin: String::new(),
            side: Default::default(),
        };
        let held_out =
            HeldOut::of_samples(&[sample(2), sample(700), sample(700), sample(9)], 100).expect("some");
        assert_eq!((held_out.tokens(), held_out.batches().len()), (MAX_TOKENS, 2));
        let last = &held_out.batches()[1];
        assert_eq!((last.loss_rows.len(), last.targets.len(), last.len()), (1024 - 697, 1024 - 697, 700));
        assert_eq!((last.loss_rows[0], last.targets[0]), (2, 3));
        let Capacity { tokens, loss_tokens, .. } = held_out.capacity();
        assert_eq!((tokens, loss_tokens), (700, 697));
        // With a large vocabulary, fewer tokens fit the memory limit.
        assert_eq!(HeldOut::of_samples(&[sample(700)], MAX_LOGITS / 10).map(|h| h.tokens()), Ok(10));
        assert_eq!(HeldOut::of_samples(&[sample(3)], 100), Err(NoTokens));
    }

    #[test]
    fn the_built_in_text_fits_any_length() {
        let base = Base::tiny().expect("part of the program");
        let tokenizer = Tokenizer::from_gguf(base.gguf()).expect("it has one");
        let of = |longest| {
            HeldOut::built_in(
                &tokenizer,
                crate::families::template(base.config()),
                longest,
                base.config().vocab,
            )
        };
        let whole = of(1000);
        assert_eq!(whole.batches().len(), BUILT_IN.len());
        assert!(whole.tokens() > 100, "{} tokens", whole.tokens());
        for longest in [1, 2, 7, 30] {
            let most = of(longest).capacity().tokens;
            assert!(most <= longest.max(2), "{most} tokens at once, {longest} allowed");
        }
    }
}
