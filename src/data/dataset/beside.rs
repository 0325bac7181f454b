//! Answers that are compared or rated, and the prompt that stands beside them, under any of the names that records have for it.

use serde_json::{Map, Value};

use super::comparison_problem::ComparisonProblem;
use super::conversation::turns;
use super::error::Problem;
use super::record::{Ignored, is_empty, text, wrong};
use super::{alpaca, gemini, messages, sharegpt};
use crate::data::template::{Message, Role};

/// Names of the two answers of a pair.
const PAIRS: [[&str; 2]; 4] = [
    ["chosen", "rejected"],
    ["chosen_messages", "rejected_messages"],
    ["chosen_response", "rejected_response"],
    ["response", "rejected_response"],
];
/// The worse answer beside a conversation that ends with the better one, as ms-swift has it.
const REJECTED: [&str; 2] = ["rejected_response", "rejected_messages"];
/// Names of a rating.
const RATINGS: [&str; 2] = ["label", "kto_tag"];
/// Keys that hold the messages of a prompt.
const LISTS: [&str; 3] = ["messages", "conversations", "contents"];
/// Keys that hold the text of a prompt.
const TEXTS: [&str; 4] = ["instruction", "question", "query", "input"];
/// Keys that belong to a prompt, beside its text.
const CONTEXT: [&str; 3] = ["context", "passage", "document"];
/// Words in keys that may hold a prompt.
const LIKE_PROMPTS: [&str; 14] = [
    "prompt",
    "question",
    "query",
    "instruction",
    "input",
    "context",
    "passage",
    "message",
    "conversation",
    "dialog",
    "history",
    "system",
    "problem",
    "user",
];

/// Whether a record has a value under `key` that is not empty.
pub(super) fn has(object: &Map<String, Value>, key: &str) -> bool {
    object.get(key).is_some_and(|value| !is_empty(value))
}

/// The names of the answers that a record compares: those of both, or that of the worse one beside a conversation.
fn compared(object: &Map<String, Value>) -> Option<([&'static str; 2], bool)> {
    let given = |key: &str| object.get(key).is_some_and(|value| !value.is_null());
    let both = PAIRS.into_iter().find(|pair| pair.iter().all(|key| given(key)));
    let list = LISTS.into_iter().find(|key| has(object, key));
    let beside =
        || -> Option<[&'static str; 2]> { Some([list?, REJECTED.into_iter().find(|key| has(object, key))?]) };
    both.map(|pair| (pair, true)).or_else(|| beside().map(|pair| (pair, false)))
}

/// The names of a record's better and worse answer. `None`: it compares nothing.
pub(super) fn pair(object: &Map<String, Value>) -> Option<[&'static str; 2]> {
    compared(object).map(|(names, _)| names)
}

/// The name of a record's rating. `None`: it rates nothing.
pub(super) fn rating(object: &Map<String, Value>) -> Option<&'static str> {
    RATINGS.into_iter().find(|key| object.get(*key).is_some_and(|value| !value.is_null()))
}

/// Whether a record has a "label" that is 0 or 1, which may be a rating or a class.
pub(super) fn is_binary(object: &Map<String, Value>) -> bool {
    match object.get("label") {
        Some(Value::String(text)) => ["0", "1"].contains(&text.trim()),
        Some(value) => value.as_f64().is_some_and(|x| x == 0.0 || x == 1.0),
        None => false,
    }
}

/// Gives the answers of a pair the names `chosen` and `rejected`, and a rating the name `label`.
pub(super) fn named(mut object: Map<String, Value>) -> Map<String, Value> {
    let rename = |object: &mut Map<String, Value>, from: &str, to: &str| {
        if from != to
            && let Some(value) = object.shift_remove(from)
        {
            object.insert(to.to_owned(), value);
        }
    };
    match compared(&object) {
        Some(([chosen, rejected], true)) => {
            rename(&mut object, chosen, "chosen");
            rename(&mut object, rejected, "rejected");
        }
        Some(([list, "rejected_messages"], false)) => {
            rename(&mut object, list, "chosen");
            rename(&mut object, "rejected_messages", "rejected");
        }
        Some(([list, rejected], false)) => {
            if let Some(answer) = object.get_mut(list).and_then(Value::as_array_mut).and_then(Vec::pop) {
                object.insert("chosen".into(), answer);
            }
            rename(&mut object, rejected, "rejected");
        }
        None => {}
    }
    if let Some(key) = rating(&object) {
        rename(&mut object, key, "label");
    }
    object
}

/// An answer: a string, one message, or a list of messages. `before`: number of messages in front of it, for errors.
pub(super) fn side(
    value: &Value,
    key: &'static str,
    before: usize,
    ignored: &mut Ignored,
) -> Result<Vec<Message>, Problem> {
    match value {
        Value::String(text) => Ok(vec![Message::new(Role::Assistant, text)]),
        Value::Array(_) => turns(value, key, before, ignored),
        Value::Object(one) if one.contains_key("from") => {
            Ok(vec![sharegpt::turn(value, key, before + 1, ignored)?])
        }
        Value::Object(_) => Ok(vec![messages::message(value, key, before + 1, ignored)?]),
        other => Err(wrong(key, "a string, a message or a list of messages", other)),
    }
}

/// The key of the prompt beside answers. Fails where several keys may be it.
pub(super) fn key(object: &Map<String, Value>) -> Result<Option<&'static str>, Problem> {
    if has(object, "prompt") {
        return Ok(Some("prompt"));
    }
    let texts = TEXTS.into_iter().filter(|key| *key != "input" || !object.contains_key("instruction"));
    let found: Vec<&'static str> = LISTS.into_iter().chain(texts).filter(|key| has(object, key)).collect();
    let context = CONTEXT.into_iter().filter(|key| has(object, key));
    match found[..] {
        [] => Ok(None),
        [list] if LISTS.contains(&list) => Ok(Some(list)),
        [text] if context.clone().next().is_none() => Ok(Some(text)),
        _ => {
            let found = found.into_iter().chain(context).map(str::to_owned).collect();
            Err(ComparisonProblem::SeveralPrompts { found }.into())
        }
    }
}

/// All keys that the prompt under `key` is read from.
pub(super) fn keys(key: &'static str) -> Vec<&'static str> {
    match key {
        "instruction" => alpaca::PROMPT.to_vec(),
        "contents" => [&[key][..], &gemini::SYSTEM].concat(),
        "question" | "query" | "input" => vec![key, "history"],
        key => vec![key],
    }
}

/// The messages of the prompt under `key`.
pub(super) fn prompt(
    object: &Map<String, Value>,
    key: &'static str,
    ignored: &mut Ignored,
) -> Result<Vec<Message>, Problem> {
    match (key, &object[key]) {
        ("instruction", _) => alpaca::prompt(object),
        ("contents", _) => gemini::contents(object, ignored),
        ("prompt", Value::String(text)) => Ok(vec![Message::new(Role::User, text)]),
        ("prompt", value @ (Value::Array(_) | Value::Object(_))) => side(value, key, 0, ignored),
        ("prompt", other) => Err(wrong(key, "a string or a list of messages", other)),
        (key, value) if LISTS.contains(&key) => turns(value, key, 0, ignored),
        (key, _) => {
            let mut messages = alpaca::history(object)?;
            messages.push(Message::new(Role::User, text(object, key)?));
            Ok(messages)
        }
    }
}

/// A key, other than those in `known`, that may hold the prompt of two bare texts.
pub(super) fn like_a_prompt<'a>(object: &'a Map<String, Value>, known: &[&str]) -> Option<&'a str> {
    let like = |key: &str| {
        let key = key.to_lowercase();
        let named = ["_id", "id", "_source", "_type", "_len", "_length", "_hash"]
            .iter()
            .any(|end| key.ends_with(end));
        !named && LIKE_PROMPTS.iter().any(|word| key.contains(word))
    };
    let holds = |value: &Value| matches!(value, Value::String(_) | Value::Array(_)) && !is_empty(value);
    let mut keys = object.iter().filter(|(_, value)| holds(value)).map(|(key, _)| key.as_str());
    keys.find(|key| !known.contains(key) && like(key))
}
