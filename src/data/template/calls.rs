//! Whether a Jinja template writes every function call of a conversation.

use std::fmt;

use serde_json::{Map, Value, json};

use super::{Conversation, Jinja};
use crate::data::tokenizer::Tokenizer;

/// The first number that stands for another one.
const FIRST_NUMBER: u64 = 9_100_000_001;

/// A call, or an argument of one, that a template leaves out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dropped {
    /// Index of the message.
    pub message: usize,
    /// The function.
    pub name: String,
    /// The argument; `None` if the whole call is left out.
    pub argument: Option<String>,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.argument {
            Some(argument) => write!(f, "the argument {argument:?} of the call of {:?}", self.name),
            None => write!(f, "the call of {:?}", self.name),
        }
    }
}

/// A text that stands for a name or a value, and the place that it is in.
struct Mark {
    text: String,
    of: Dropped,
}

/// The calls and arguments that the rendering lacks. Names and values may stand in other places of a text, so a second rendering has
/// marks in their place. Returns none if the template refuses the marks.
pub(super) fn dropped(jinja: &Jinja, tokenizer: &Tokenizer, conversation: &Conversation) -> Vec<Dropped> {
    if conversation.messages.iter().all(|message| message.tool_calls.is_empty()) {
        return Vec::new();
    }
    let (mut marked, mut marks) = (conversation.clone(), Vec::new());
    for (index, message) in marked.messages.iter_mut().enumerate() {
        for call in &mut message.tool_calls {
            let of = Dropped { message: index, name: call.name.clone(), argument: None };
            call.name = text(&mut marks, of.clone());
            for (key, value) in &mut call.arguments {
                let of = Dropped { argument: Some(key.clone()), ..of.clone() };
                replace(value, &of, &mut marks);
            }
        }
    }
    let Ok(text) = jinja.render(tokenizer, &marked, marked.messages.len(), false) else { return Vec::new() };
    marks.into_iter().filter(|mark| !text.contains(&mark.text)).map(|mark| mark.of).collect()
}

/// A new text that is part of no other one.
fn text(marks: &mut Vec<Mark>, of: Dropped) -> String {
    let text = format!("zq{}q", marks.len());
    marks.push(Mark { text: text.clone(), of });
    text
}

/// Replaces every text and number in `value`. Truth values and null stay.
fn replace(value: &mut Value, of: &Dropped, marks: &mut Vec<Mark>) {
    match value {
        Value::String(words) => *words = text(marks, of.clone()),
        Value::Number(number) => {
            let mark = FIRST_NUMBER + marks.len() as u64;
            *value = if number.is_f64() { json!(mark as f64 + 0.5) } else { json!(mark) };
            marks.push(Mark { text: mark.to_string(), of: of.clone() });
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, of, marks)),
        Value::Object(map) => Map::values_mut(map).for_each(|item| replace(item, of, marks)),
        Value::Null | Value::Bool(_) => {}
    }
}
