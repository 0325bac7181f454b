//! The prompts of a Go template beside those of the template that training uses.

use super::{GoError, GoTemplate};
use crate::data::template::{Conversation, Date, Template};
use crate::data::tokenizer::Tokenizer;

/// Number of characters of a difference, and in front of it.
const SHOWN: usize = 60;

/// A comparison of the prompts that two templates render.
#[derive(Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Number of conversations that both render.
    pub compared: usize,
    /// The first difference.
    pub difference: Option<Difference>,
}

/// The first place at which two prompts differ.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// The end of what both have.
    pub before: String,
    /// The text of training from there on.
    pub trained: String,
    /// Ollama's text from there on.
    pub go: String,
}

impl GoTemplate {
    /// Compares the prompts for the answers to `conversations`. Those that `template` refuses are left out. The token that begins a
    /// sequence is not compared: Ollama adds it to the tokens.
    pub fn compare(
        &self,
        template: &Template,
        tokenizer: &Tokenizer,
        conversations: &[Conversation],
    ) -> Result<Comparison, GoError> {
        // Both write the same day.
        let today = match template {
            Template::Jinja(jinja) => jinja.today(),
            Template::BuiltIn(_) => Date(0),
        };
        let mut compared = 0;
        for conversation in conversations {
            let Ok(trained) = template.text(tokenizer, conversation, true) else { continue };
            let go = self.prompt(conversation, today)?;
            let bos = tokenizer.bos_token().unwrap_or_default();
            let [trained, go] = [&trained, &go].map(|text| text.strip_prefix(bos).unwrap_or(text));
            compared += 1;
            if trained != go {
                return Ok(Comparison { compared, difference: Some(Difference::of(trained, go)) });
            }
        }
        Ok(Comparison { compared, difference: None })
    }
}

impl Difference {
    /// The first place at which two prompts that differ do so.
    pub(crate) fn of(trained: &str, go: &str) -> Difference {
        let same = trained.char_indices().zip(go.chars()).take_while(|((_, a), b)| a == b);
        let at = same.last().map_or(0, |((at, char), _)| at + char.len_utf8());
        let start = trained[..at].char_indices().rev().nth(SHOWN - 1).map_or(0, |(start, _)| start);
        let shown = |text: &str| text[at..].chars().take(SHOWN).collect();
        Difference { before: trained[start..at].into(), trained: shown(trained), go: shown(go) }
    }
}
