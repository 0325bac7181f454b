//! Reading JSON fields from a request, with errors that name the field.

use rullama_train::data::to_json;
use serde_json::{Map, Value, json};

use crate::cli::http::ApiError;

/// Fields that are accepted and ignored, because they do not affect the reply.
const IGNORED: [&str; 7] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// A JSON object whose fields are removed as they are read, so that unknown fields remain. A null field counts as missing.
pub struct Fields(pub Map<String, Value>);

impl Fields {
    /// Removes and returns a field.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|v| !v.is_null())
    }

    fn typed<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let wrong = || ApiError::at(name, format!("expected {expected}, found {}", to_json(&value)));
        read(&value).ok_or_else(wrong).map(Some)
    }

    pub fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a string", |v| v.as_str().map(str::to_owned))
    }

    pub fn number(&mut self, name: &str) -> Result<Option<f64>, ApiError> {
        self.typed(name, "a number", Value::as_f64)
    }

    pub fn integer(&mut self, name: &str) -> Result<Option<i64>, ApiError> {
        self.typed(name, "an integer", Value::as_i64)
    }

    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub fn count(&mut self, name: &str, least: usize) -> Result<Option<usize>, ApiError> {
        let read = |v: &Value| v.as_u64().map(|n| n as usize).filter(|n| *n >= least);
        self.typed(name, &format!("an integer >= {least}"), read)
    }

    pub fn up_to(&mut self, name: &str, most: usize) -> Result<Option<usize>, ApiError> {
        let read = |v: &Value| v.as_u64().map(|n| n as usize).filter(|n| *n <= most);
        self.typed(name, &format!("an integer from 0 to {most}"), read)
    }

    /// Rejects the remaining fields, unless they are ignored or have the value that this server implements.
    pub fn finish(mut self) -> Result<(), ApiError> {
        let supported = [
            ("n", json!(1)),
            ("best_of", json!(1)),
            ("logit_bias", json!({})),
            ("parallel_tool_calls", json!(true)),
            ("response_format", json!({"type": "text"})),
            ("modalities", json!(["text"])),
        ];
        for (name, value) in supported {
            if self.take(name).is_some_and(|found| found != value) {
                return Err(ApiError::at(name, format!("only {value} is supported; remove this field")));
            }
        }
        let unknown = self.0.iter().find(|(name, v)| !v.is_null() && !IGNORED.contains(&name.as_str()));
        match unknown {
            Some((name, _)) => Err(ApiError::at(name, "is not supported; remove this field")),
            None => Ok(()),
        }
    }
}

/// The JSON type of a value, with its article.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
