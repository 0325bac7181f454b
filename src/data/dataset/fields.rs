//! The keys of records under other names: `data.fields`, and pairs of names that are common enough to be known.

use serde_json::{Map, Value};

use super::error::Problem;
use super::kinds::{Format, identifies};

/// Keys that `data.fields` can find under another name.
pub const FIELDS: [&str; 19] = [
    "messages",
    "prompt",
    "completion",
    "instruction",
    "input",
    "output",
    "conversations",
    "contents",
    "text",
    "input_ids",
    "labels",
    "chosen",
    "rejected",
    "label",
    "system",
    "tools",
    "history",
    "weight",
    "context",
];

/// Keys of `FIELDS` that a record may lack.
const OPTIONAL: [&str; 7] = ["input", "labels", "system", "tools", "history", "weight", "context"];

/// Pairs of question and answer under common names.
const PAIRS: [(&str, &str); 4] =
    [("question", "answer"), ("input", "output"), ("prompt", "response"), ("query", "response")];

/// Keys without which the answer of a pair may make no sense: a record that has one is no plain pair.
const CONTEXT: [&str; 5] = ["context", "instruction", "history", "passage", "conversations"];

/// A key and the name under which the records have it.
pub type Field = (String, String);

/// Gives the fields of a record their names. Other keys that would identify a shape are renamed out of the way.
pub(super) fn rename(object: Map<String, Value>, fields: &[Field]) -> Result<Map<String, Value>, Problem> {
    if fields.is_empty() {
        return Ok(object);
    }
    let missing = fields
        .iter()
        .find(|(key, from)| !object.contains_key(from.as_str()) && !OPTIONAL.contains(&key.as_str()));
    if let Some((key, from)) = missing {
        let found = object.keys().cloned().collect();
        return Err(Problem::NoField { key: key.clone(), from: from.clone(), found });
    }
    let renamed =
        object.into_iter().map(|(name, value)| match fields.iter().find(|(_, from)| *from == name) {
            Some((key, _)) => (key.clone(), value),
            None if identifies(&[name.as_str()]) || fields.iter().any(|(key, _)| *key == name) => {
                (format!("{name} (not in data.fields)"), value)
            }
            None => (name, value),
        });
    Ok(renamed.collect())
}

/// The names of a question and of its answer.
pub(super) type Pair = (&'static str, &'static str);

/// Renames a pair of question and answer under common names to prompt and completion, and returns its names. `None`: the
/// record is no such pair.
pub(super) fn pair(object: &Map<String, Value>, format: Format) -> Option<(Map<String, Value>, Pair)> {
    let keys: Vec<&str> = object.keys().map(String::as_str).collect();
    let other = identifies(&keys) || keys.iter().any(|key| CONTEXT.contains(key));
    if other || !matches!(format, Format::Auto | Format::PromptCompletion) {
        return None;
    }
    let is_text = |key: &str| object.get(key).is_some_and(Value::is_string);
    let pair = *PAIRS.iter().find(|(question, answer)| is_text(question) && is_text(answer))?;
    let renamed = object.iter().map(|(name, value)| match name.as_str() {
        name if name == pair.0 => ("prompt".into(), value.clone()),
        name if name == pair.1 => ("completion".into(), value.clone()),
        name => (name.into(), value.clone()),
    });
    Some((renamed.collect(), pair))
}

/// The setting that would read a record with these keys, if two of them hold text: the shorter one as prompt.
pub(super) fn suggestion(object: &Map<String, Value>) -> Option<String> {
    let known = |key: &str, names: &[&str]| names.iter().any(|name| key.to_lowercase().contains(name));
    let texts: Vec<&str> =
        object.iter().filter(|(_, v)| v.is_string()).map(|(key, _)| key.as_str()).collect();
    if texts.len() < 2 {
        return None;
    }
    let prompts = ["question", "prompt", "query", "instruction", "input", "user", "title", "source", "frage"];
    let answers =
        ["answer", "response", "completion", "output", "reply", "assistant", "target", "label", "antwort"];
    let answer = *texts.iter().find(|key| known(key, &answers)).or(texts.last())?;
    let mut others = texts.iter().filter(|key| **key != answer);
    let is_number = |key: &str| {
        let numbered = object[key].as_str().is_some_and(|text| text.trim().parse::<f64>().is_ok());
        numbered || ["id", "uuid", "nr", "no", "index"].contains(&key.to_lowercase().as_str())
    };
    let text = others.clone().find(|key| !is_number(key)).or(others.clone().next());
    let prompt = *others.find(|key| known(key, &prompts)).or(text)?;
    Some(format!("{{ prompt = {prompt:?}, completion = {answer:?} }}"))
}
