//! Text on which models are compared.

use crate::data::batch::{MicroBatch, Sample};
use crate::data::template::{BuiltIn, Conversation, Message, Role, Template, TrainOn};
use crate::data::tokenizer::Tokenizer;
use crate::train::Capacity;

/// Logits kept for a comparison, in values: 512 MiB, which is 512 tokens for a vocabulary of 262 144.
const MAX_LOGITS: usize = 1 << 27;
/// More tokens do not improve a comparison.
const MAX_TOKENS: usize = 1024;
/// Everyday questions and answers, which no recipe's data is about.
pub const BUILT_IN: [[&str; 2]; 8] = [
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

/// The built-in questions and answers in pieces of at most `longest` tokens; `None` if the template cannot write them.
fn samples(tokenizer: &Tokenizer, template: &Template, longest: usize) -> Option<Vec<Sample>> {
    let mut samples = Vec::new();
    for texts in BUILT_IN {
        let messages = [Role::User, Role::Assistant].into_iter().zip(texts);
        let messages = messages.map(|(role, text)| Message::new(role, text)).collect();
        let rendered = template.render(tokenizer, &Conversation::new(messages), TrainOn::Assistant).ok()?;
        let pieces = rendered.ids.chunks(longest).zip(rendered.labels.chunks(longest));
        samples.extend(pieces.map(|(ids, labels)| Sample {
            ids: ids.into(),
            labels: labels.into(),
            origin: "the built-in text".into(),
            ..Sample::default()
        }));
    }
    Some(samples)
}

/// Samples end to end in micro-batches of at most `most` tokens: few passes, whose samples do not see each other.
fn packed(samples: &[Sample], most: usize) -> Vec<MicroBatch> {
    let mut rows: Vec<(usize, Vec<&Sample>)> = Vec::new();
    for sample in samples {
        let length = sample.ids.len();
        match rows.last_mut() {
            Some((used, row)) if *used + length <= most => {
                *used += length;
                row.push(sample);
            }
            _ => rows.push((length, vec![sample])),
        }
    }
    rows.into_iter().map(|(_, row)| MicroBatch::pack(row)).collect()
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

    /// Takes a few everyday questions and answers in `template`, or in `layout` where that cannot write them, in pieces of at most `longest`
    /// tokens.
    #[must_use]
    pub fn built_in(
        tokenizer: &Tokenizer,
        (template, layout): (&Template, &'static BuiltIn),
        longest: usize,
        vocab: usize,
    ) -> HeldOut {
        let longest = longest.max(2);
        let own = samples(tokenizer, template, longest);
        let usable = own.filter(|samples| samples.iter().any(|sample| sample.loss_tokens() > 0));
        let samples = usable.unwrap_or_else(|| {
            samples(tokenizer, &Template::BuiltIn(layout), longest).expect("plain questions can be rendered")
        });
        HeldOut::of_batches(packed(&samples, longest), vocab).expect("answers have loss tokens")
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
            ..Capacity::LEAST
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
            ..Sample::default()
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
        let layout = crate::families::template(base.config());
        let of = |longest| {
            HeldOut::built_in(&tokenizer, (&Template::BuiltIn(layout), layout), longest, base.config().vocab)
        };
        let whole = of(1000);
        assert_eq!(whole.batches().len(), 1, "all in one pass");
        assert!(whole.tokens() > 100, "{} tokens", whole.tokens());
        for longest in [1, 2, 7, 30] {
            let most = of(longest).capacity().tokens;
            assert!(most <= longest.max(2), "{most} tokens at once, {longest} allowed");
        }
    }
}
