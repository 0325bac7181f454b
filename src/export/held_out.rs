//! Text on which models are compared before one of them is handed out.

use crate::data::batch::{MicroBatch, Sample};
use crate::data::template::{BuiltIn, Conversation, Message, Role, Template, TrainOn};
use crate::data::tokenizer::Tokenizer;
use crate::train::trainer::Capacity;

/// Logits that are kept for a comparison, in values: 512 MiB, 512 tokens of a vocabulary of 262 144.
const MOST_LOGITS: usize = 1 << 27;
/// More tokens than this make no comparison better.
const MOST_TOKENS: usize = 1024;
/// Everyday questions and answers, for adapters that come without text of their own.
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

/// Token sequences with rows whose logits are compared, and what follows there.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOut {
    batches: Vec<MicroBatch>,
}

/// There is nothing to compare.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("the samples hold no token that carries loss, so that there is nothing to compare; name other data")]
pub struct NoTokens;

impl HeldOut {
    /// Where the samples carry loss: the first tokens, at most 1024 and what half a gigabyte of logits holds.
    pub fn of_samples(samples: &[Sample], vocab: usize) -> Result<HeldOut, NoTokens> {
        HeldOut::of_batches(samples.iter().map(|sample| MicroBatch::pack([sample])), vocab)
    }

    /// The same for samples that are packed already.
    pub fn of_batches(
        batches: impl IntoIterator<Item = MicroBatch>,
        vocab: usize,
    ) -> Result<HeldOut, NoTokens> {
        let mut left = (MOST_LOGITS / vocab).clamp(1, MOST_TOKENS);
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

    /// A few everyday questions and answers in the built-in chat layout, in pieces of at most `longest` tokens.
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
            let (template, conversation) = (Template::BuiltIn(layout), Conversation::new(messages));
            let rendered = template.render(tokenizer, &conversation, TrainOn::Assistant);
            let rendered = rendered.expect("a question and its answer, without control tokens");
            let pieces = rendered.ids.chunks(longest.max(2)).zip(rendered.labels.chunks(longest.max(2)));
            samples.extend(pieces.map(|(ids, labels)| Sample {
                ids: ids.into(),
                labels: labels.into(),
                origin: "the built-in text".into(),
            }));
        }
        HeldOut::of_samples(&samples, vocab).expect("answers carry loss")
    }

    /// The micro-batches; logits are compared at their loss rows.
    pub fn batches(&self) -> &[MicroBatch] {
        &self.batches
    }

    /// Tokens whose logits are compared.
    pub fn tokens(&self) -> usize {
        self.batches.iter().map(|batch| batch.loss_rows.len()).sum()
    }

    /// What a trainer must hold for it.
    pub fn capacity(&self) -> Capacity {
        let most = |of: fn(&MicroBatch) -> usize| self.batches.iter().map(of).max().unwrap_or(1);
        Capacity {
            tokens: most(MicroBatch::len),
            longest: most(MicroBatch::longest),
            loss_tokens: most(|b| b.loss_rows.len()),
            step_loss_tokens: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Base;
    use crate::data::batch::IGNORE;

    #[test]
    fn the_first_tokens_are_kept_with_what_follows_them() {
        let sample = |n: u32| Sample {
            ids: (0..n).collect(),
            labels: (0..n as i32).map(|id| if id < 3 { IGNORE } else { id }).collect(),
            origin: String::new(),
        };
        let held_out =
            HeldOut::of_samples(&[sample(2), sample(700), sample(700), sample(9)], 100).expect("some");
        assert_eq!((held_out.tokens(), held_out.batches().len()), (MOST_TOKENS, 2));
        let last = &held_out.batches()[1];
        assert_eq!((last.loss_rows.len(), last.targets.len(), last.len()), (1024 - 697, 1024 - 697, 700));
        assert_eq!((last.loss_rows[0], last.targets[0]), (2, 3));
        let Capacity { tokens, loss_tokens, .. } = held_out.capacity();
        assert_eq!((tokens, loss_tokens), (700, 697));
        // Logits of so large a vocabulary fill half a gigabyte sooner.
        assert_eq!(HeldOut::of_samples(&[sample(700)], MOST_LOGITS / 10).map(|h| h.tokens()), Ok(10));
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
