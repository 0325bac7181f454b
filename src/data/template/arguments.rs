//! The arguments of function calls as JSON, in samples, requests and replies.

use std::fmt;

use serde_json::{Map, Value};

use super::ToolCall;
use crate::data::digits;

/// Names under which files and models have the arguments, OpenAI's first: Llama writes `parameters`, Gemini `args`, Anthropic `input`.
const NAMES: [&str; 4] = ["arguments", "parameters", "args", "input"];

/// Why a call's arguments cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub enum ArgumentsError {
    /// Neither an object nor one as JSON in a string.
    NotAnObject(&'static str),
    /// Two keys with different arguments.
    Several(&'static str, &'static str),
    /// No arguments, but an object under another key.
    Elsewhere(String),
}

impl fmt::Display for ArgumentsError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ArgumentsError::NotAnObject(key) => write!(f, "must have an object as {key:?}"),
            ArgumentsError::Several(one, other) => write!(f, "has different {one:?} and {other:?}"),
            ArgumentsError::Elsewhere(key) => write!(f, "has no \"arguments\", but an object as {key:?}"),
        }
    }
}

impl ToolCall {
    /// Reads the arguments in a call's object, with all digits of their integers. Without any, they are an empty object.
    pub fn read_arguments(call: &Map<String, Value>) -> Result<Map<String, Value>, ArgumentsError> {
        let mut found: Option<(&'static str, Map<String, Value>)> = None;
        for name in NAMES {
            let Some(value) = call.get(name).filter(|value| !value.is_null()) else { continue };
            let arguments = object(value).ok_or(ArgumentsError::NotAnObject(name))?;
            match &found {
                // Tables have every column in every row.
                Some(_) if arguments.is_empty() => {}
                Some((_, first)) if first.is_empty() || *first == arguments => {
                    found = Some((name, arguments))
                }
                Some((one, _)) => return Err(ArgumentsError::Several(one, name)),
                None => found = Some((name, arguments)),
            }
        }
        if let Some((_, arguments)) = found {
            return Ok(arguments);
        }
        let other = |(key, value): &(&String, &Value)| {
            *key != "function" && value.as_object().is_some_and(|o| !o.is_empty())
        };
        match call.iter().find(other) {
            Some((key, _)) => Err(ArgumentsError::Elsewhere(key.clone())),
            None => Ok(Map::new()),
        }
    }

    /// The arguments as JSON, with all digits of their integers.
    pub fn arguments_json(&self) -> String {
        digits::to_json(&Value::Object(self.arguments.clone()))
    }
}

/// An object, or one as JSON in a string.
fn object(value: &Value) -> Option<Map<String, Value>> {
    let parsed = match value {
        Value::String(text) if text.trim().is_empty() => return Some(Map::new()),
        Value::String(text) => digits::parse(text).ok()?,
        other => other.clone(),
    };
    match parsed {
        Value::Object(arguments) => Some(arguments),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(call: Value) -> Result<Value, String> {
        let Value::Object(call) = call else { panic!("an object") };
        ToolCall::read_arguments(&call).map(Value::from).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_are_read_under_every_name() {
        let given = json!({"city": "Lima"});
        for name in NAMES {
            let text = given.to_string();
            assert_eq!(read(json!({"name": "f", name: given})), Ok(given.clone()));
            assert_eq!(read(json!({"name": "f", name: text})), Ok(given.clone()));
            assert_eq!(read(json!({"name": "f", name: ""})), Ok(json!({})));
            assert_eq!(read(json!({"name": "f", name: null})), Ok(json!({})));
            assert_eq!(
                read(json!({"name": "f", name: [1]})),
                Err(format!("must have an object as {name:?}"))
            );
        }
        assert_eq!(read(json!({"name": "f", "arguments": {}, "input": given})), Ok(given.clone()));
        assert_eq!(read(json!({"name": "f", "arguments": given, "input": given})), Ok(given.clone()));
        let several = "has different \"arguments\" and \"args\"".to_owned();
        assert_eq!(read(json!({"name": "f", "arguments": given, "args": {"a": 1}})), Err(several));
        let elsewhere = "has no \"arguments\", but an object as \"kwargs\"".to_owned();
        assert_eq!(read(json!({"name": "f", "kwargs": given})), Err(elsewhere));
        assert_eq!(read(json!({"name": "f", "id": "1", "kwargs": {}})), Ok(json!({})));
    }

    #[test]
    fn long_integers_keep_their_digits() {
        let text = r#"{"id":12345678901234567890123,"list":[-9223372036854775809]}"#;
        let Value::Object(call) = json!({ "arguments": text }) else { panic!("an object") };
        let arguments = ToolCall::read_arguments(&call).expect("an object");
        let call = ToolCall { arguments, ..ToolCall::default() };
        assert_eq!(call.arguments_json(), text);
    }
}
