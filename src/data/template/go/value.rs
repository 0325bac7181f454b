//! Values of Go templates, and how Go prints them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value as Json;

/// A value. Copies are cheap.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
    /// Part of a list.
    List(Arc<[Value]>, Range<usize>),
    /// The variables of a template by name. One that is missing is `nil`.
    Map(Arc<BTreeMap<&'static str, Value>>),
    /// Fields by name.
    Fields(Arc<BTreeMap<&'static str, Value>>),
    /// A value that Ollama prints as JSON: arguments of a call.
    Json(Arc<Json>),
}

impl Value {
    pub fn text(text: impl Into<Arc<str>>) -> Value {
        Value::Text(text.into())
    }

    pub fn list(items: Vec<Value>) -> Value {
        let len = items.len();
        Value::List(items.into(), 0..len)
    }

    pub fn fields<const N: usize>(fields: [(&'static str, Value); N]) -> Value {
        Value::Fields(Arc::new(fields.into()))
    }

    /// Whether a condition holds for it.
    pub fn is_true(&self) -> bool {
        match self {
            Value::Nil => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(_, range) => !range.is_empty(),
            Value::Map(fields) => !fields.is_empty(),
            Value::Fields(_) => true,
            Value::Json(json) => match &**json {
                Json::Object(map) => !map.is_empty(),
                Json::Array(items) => !items.is_empty(),
                _ => true,
            },
        }
    }

    /// Bytes of a text, or number of items.
    pub fn len(&self) -> Option<usize> {
        match self {
            Value::Text(text) => Some(text.len()),
            Value::List(_, range) => Some(range.len()),
            Value::Json(json) => json.as_object().map(serde_json::Map::len),
            _ => None,
        }
    }

    /// The text that an action writes.
    pub fn display(&self) -> String {
        match self {
            Value::Nil => "<no value>".into(),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) => value.to_string(),
            Value::Text(text) => text.to_string(),
            Value::List(items, range) => {
                let items: Vec<String> = items[range.clone()].iter().map(Value::display).collect();
                format!("[{}]", items.join(" "))
            }
            Value::Map(_) | Value::Fields(_) | Value::Json(_) => go_json(&self.json()),
        }
    }

    /// The value as JSON, with the names of fields as Go has them.
    pub fn json(&self) -> Json {
        match self {
            Value::Nil => Json::Null,
            Value::Bool(value) => (*value).into(),
            Value::Int(value) => (*value).into(),
            Value::Float(value) => (*value).into(),
            Value::Text(text) => (**text).into(),
            Value::List(items, range) => items[range.clone()].iter().map(Value::json).collect(),
            Value::Map(fields) | Value::Fields(fields) => {
                Json::Object(fields.iter().map(|(name, value)| ((*name).to_owned(), value.json())).collect())
            }
            Value::Json(json) => (**json).clone(),
        }
    }
}

/// JSON as Go's `json.Marshal` writes it, which escapes what HTML could misread.
pub(super) fn go_json(json: &Json) -> String {
    let mut out = String::new();
    for char in json.to_string().chars() {
        match char {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", char as u32)),
            _ => out.push(char),
        }
    }
    out
}
