//! Forty conversations and transformers' renderings of them, written by tests/fixtures/template/make.py.
#![allow(dead_code, reason = "each test uses a part")]

use rullama_train::data::dataset::conversation;
use rullama_train::data::template::{Conversation, Date, Jinja, Role, Template};
use rullama_train::data::tokenizer::Tokenizer;
use serde_json::Value;

/// The date that make.py lets templates write: 5 September 2026.
pub const DAY: Date = Date(20_701);

/// One conversation.
pub struct Case {
    pub name: String,
    pub conversation: Conversation,
    renderings: Value,
}

impl Case {
    /// All of them.
    pub fn all() -> Vec<Case> {
        let json = include_str!("../fixtures/template/template.json");
        let cases: Vec<Value> = serde_json::from_str(json).expect("the fixture is JSON");
        let case = |case: Value| Case {
            name: case["name"].as_str().expect("a name").to_owned(),
            conversation: conversation(case["record"].as_object().expect("a record")).expect("sound"),
            renderings: case["renderings"].clone(),
        };
        cases.into_iter().map(case).collect()
    }

    /// transformers' rendering with a template: the text, or `None` if the template raises an error.
    pub fn expected(&self, template: &str, prompt: bool) -> Option<&str> {
        self.renderings[template][if prompt { "prompt" } else { "sample" }]["text"].as_str()
    }

    /// The text that transformers marks as the assistant's.
    pub fn spans(&self, template: &str) -> Vec<&str> {
        let spans = self.renderings[template]["sample"]["spans"].as_array().expect("spans");
        spans.iter().map(|span| span.as_str().expect("text")).collect()
    }

    /// Whether any message has reasoning.
    pub fn thinks(&self) -> bool {
        self.conversation.messages.iter().any(|m| !m.thinking.is_empty())
    }

    /// As above, for a template that has no place for thoughts: transformers drops them without a word, and asks to think.
    pub fn without_thoughts(&self) -> Case {
        let mut conversation = self.conversation.clone();
        conversation.kwargs.insert("enable_thinking".into(), self.conversation.thinks().into());
        conversation.messages.iter_mut().for_each(|message| message.thinking.clear());
        Case { name: self.name.clone(), conversation, renderings: self.renderings.clone() }
    }

    /// Compares the texts of sample and prompt. The error shows where they differ.
    pub fn compare(&self, tokenizer: &Tokenizer, template: &Template, key: &str) -> Result<(), String> {
        let mut asked = self.conversation.clone();
        let thinks = asked.thinks();
        let last = asked.messages.iter().rposition(|m| m.role == Role::Assistant).expect("an answer");
        asked.messages.truncate(last);
        asked.kwargs.insert("enable_thinking".into(), thinks.into());
        for (conversation, prompt) in [(&self.conversation, false), (&asked, true)] {
            let found = template.text(tokenizer, conversation, prompt);
            let expected = self.expected(key, prompt);
            if found.as_deref().ok() != expected {
                let [found, expected] =
                    [found.unwrap_or_else(|e| e.to_string()), expected.unwrap_or("refusal").into()];
                let at = found.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
                let from = |text: &str| {
                    String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(40).min(text.len())..])
                        .chars()
                        .take(120)
                        .collect::<String>()
                };
                let (found, expected, name) = (from(&found), from(&expected), &self.name);
                return Err(format!(
                    "{key}, {name}, prompt {prompt}:\n  found    …{found:?}\n  expected …{expected:?}"
                ));
            }
        }
        Ok(())
    }
}

/// This project's own template.
pub fn own() -> Template {
    let source = include_str!("../fixtures/template/own.jinja");
    Template::Jinja(Box::new(Jinja::new(source, DAY).expect("sound")))
}
