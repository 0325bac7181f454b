//! Properties of a template that short conversations show.

use super::{Conversation, Message, Role, Template, TrainOn};
use crate::data::batch::IGNORE;
use crate::data::tokenizer::Tokenizer;

/// Stands for a system message: two characters that no template writes.
const SYSTEM: &str = "\u{2621}\u{2622}";

impl Template {
    /// The system message that the template writes where a conversation has none; `None` if it writes none.
    pub fn own_system(&self, tokenizer: &Tokenizer) -> Option<String> {
        let question = Message::new(Role::User, "?");
        let text = |messages| self.text(tokenizer, &Conversation::new(messages), true).ok();
        let with = text(vec![Message::new(Role::System, SYSTEM), question.clone()])?;
        let without = text(vec![question])?;
        let (before, after) = with.split_once(SYSTEM)?;
        let own = without.strip_prefix(before)?.strip_suffix(after)?.trim();
        (!own.is_empty()).then(|| own.to_owned())
    }

    /// The token in which the last answer of a conversation ends in training; `None` if the template renders no short one.
    pub fn reply_end(&self, tokenizer: &Tokenizer) -> Option<u32> {
        let messages = vec![Message::new(Role::User, "Hello"), Message::new(Role::Assistant, "Hi!")];
        let rendered = self.render(tokenizer, &Conversation::new(messages), TrainOn::Assistant).ok()?;
        last_loss(tokenizer, &rendered.labels)
    }
}

/// The last token with loss that is not white space.
pub(crate) fn last_loss(tokenizer: &Tokenizer, labels: &[i32]) -> Option<u32> {
    let trained = labels.iter().rev().filter(|label| **label != IGNORE).map(|label| *label as u32);
    let mut words = trained.filter(|id| !tokenizer.token_bytes(*id).trim_ascii().is_empty());
    words.next()
}
