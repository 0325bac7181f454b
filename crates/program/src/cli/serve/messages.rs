//! Reading messages, tools and tool calls from a request.

use rullama_train::data::template::{ArgumentsError, Message, Role, ToolCall};
use serde_json::Value;

use super::fields::{Fields, kind};
use crate::cli::http::ApiError;

/// Reads `"messages"`.
pub fn messages_of(value: Value) -> Result<Vec<Message>, ApiError> {
    each(value, "messages", "messages", message)
}

/// Reads `"tools"`: a list of `{"type": "function", "function": {"name": …}}`, the form that templates expect.
pub fn tools_of(value: Value) -> Result<Vec<Value>, ApiError> {
    each(value, "tools", "functions", tool)
}

/// Reads the items of a list with `read`, which gets the item's name for errors: `messages[0]`.
fn each<T>(
    value: Value,
    name: &str,
    of: &str,
    read: impl Fn(Value, &str) -> Result<T, ApiError>,
) -> Result<Vec<T>, ApiError> {
    let Value::Array(list) = value else {
        return Err(ApiError::at(name, format!("expected a list of {of}, found {}", kind(&value))));
    };
    list.into_iter().enumerate().map(|(i, value)| read(value, &format!("{name}[{i}]"))).collect()
}

fn object(value: Value, at: &str) -> Result<Fields, ApiError> {
    match value {
        Value::Object(fields) => Ok(Fields(fields)),
        other => Err(ApiError::at(at, format!("expected an object, found {}", kind(&other)))),
    }
}

fn message(value: Value, at: &str) -> Result<Message, ApiError> {
    let mut fields = object(value, at)?;
    let of = |field: &str| format!("{at}.{field}");
    let name = text(&mut fields, "role", at)?
        .ok_or_else(|| ApiError::at(&of("role"), "is missing: expected a role"))?;
    let role = Role::from_name(&name).ok_or_else(|| {
        let roles = "expected \"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";
        ApiError::at(&of("role"), format!("found {name:?}, {roles}"))
    })?;
    let mut message = Message { role, ..Message::default() };
    if role == Role::Assistant {
        message.thinking = text(&mut fields, "reasoning_content", at)?.unwrap_or_default();
        if let Some(calls) = fields.take("tool_calls") {
            message.tool_calls = each(calls, &of("tool_calls"), "calls", call)?;
        }
    }
    if role == Role::Tool {
        message.tool_call_id = text(&mut fields, "tool_call_id", at)?.unwrap_or_default();
        message.name = text(&mut fields, "name", at)?.unwrap_or_default();
    }
    message.content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            parts.iter().map(|part| text_part(part, &of("content"))).collect::<Result<String, _>>()?
        }
        None if !message.tool_calls.is_empty() => String::new(),
        other => {
            let found = other.as_ref().map_or("nothing", kind);
            return Err(ApiError::at(
                &of("content"),
                format!("expected a string or a list of text parts, found {found}"),
            ));
        }
    };
    finish(fields, at)?;
    Ok(message)
}

fn text(fields: &mut Fields, name: &str, at: &str) -> Result<Option<String>, ApiError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => {
            Err(ApiError::at(&format!("{at}.{name}"), format!("expected a string, found {}", kind(&other))))
        }
    }
}

/// Rejects unknown fields unless they are empty: clients send messages back as they received them.
fn finish(fields: Fields, at: &str) -> Result<(), ApiError> {
    let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    match fields.0.iter().find(|(_, value)| !empty(value)) {
        Some((name, _)) => Err(ApiError::at(&format!("{at}.{name}"), "is not supported; remove this field")),
        None => Ok(()),
    }
}

fn text_part(part: &Value, at: &str) -> Result<String, ApiError> {
    let kind = part.get("type").and_then(Value::as_str);
    let text = part.get("text").and_then(Value::as_str);
    match (kind, text) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        (Some(other), _) if other != "text" => {
            Err(ApiError::at(at, format!("found a part of type {other:?}, only \"text\" is supported")))
        }
        _ => Err(ApiError::at(at, "expected parts of the form {\"type\": \"text\", \"text\": \"…\"}")),
    }
}

/// Reads a tool call: `{"id": …, "type": "function", "function": {"name": …, "arguments": "{…}"}}`.
fn call(value: Value, at: &str) -> Result<ToolCall, ApiError> {
    let mut fields = object(value, at)?;
    let id = text(&mut fields, "id", at)?.unwrap_or_default();
    let mut function = function_of(&mut fields, at)?;
    let at = format!("{at}.function");
    let name = text(&mut function, "name", &at)?
        .ok_or_else(|| ApiError::at(&format!("{at}.name"), "expected the name of a function"))?;
    let arguments = ToolCall::read_arguments(&function.0).map_err(|error| match error {
        ArgumentsError::NotAnObject(key) => {
            ApiError::at(&format!("{at}.{key}"), "expected a JSON object in a string")
        }
        other => ApiError::at(&at, format!("the call {other}; expected \"arguments\"")),
    })?;
    Ok(ToolCall { id, name, arguments })
}

/// The object under `"function"`. An error if the type is not "function".
fn function_of(fields: &mut Fields, at: &str) -> Result<Fields, ApiError> {
    let kind = text(fields, "type", at)?;
    if let Some(other) = kind.filter(|kind| kind != "function") {
        return Err(ApiError::at(
            &format!("{at}.type"),
            format!("found {other:?}, only \"function\" is supported"),
        ));
    }
    object(fields.take("function").unwrap_or_default(), &format!("{at}.function"))
}

fn tool(value: Value, at: &str) -> Result<Value, ApiError> {
    let mut fields = object(value, at)?;
    let Fields(mut function) = function_of(&mut fields, at)?;
    let at = format!("{at}.function");
    if function.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(ApiError::at(&format!("{at}.name"), "expected the name of a function"));
    }
    if function.remove("strict").is_some_and(|strict| strict == true) {
        return Err(ApiError::at(
            &format!("{at}.strict"),
            "is not supported: output is not constrained to a schema; remove this field",
        ));
    }
    for (key, valid) in [
        ("description", function.get("description").is_none_or(|v| v.is_string() || v.is_null())),
        ("parameters", function.get("parameters").is_none_or(|v| v.is_object() || v.is_null())),
    ] {
        if !valid {
            let expected = if key == "description" { "a string" } else { "a JSON schema" };
            return Err(ApiError::at(&format!("{at}.{key}"), format!("expected {expected}")));
        }
    }
    // As in training samples, a function without a description gets none.
    function.retain(|key, value| key != "description" || !value.is_null());
    Ok(serde_json::json!({ "type": "function", "function": function }))
}
