//! Declared functions and function calls, under OpenAI's keys. Any part of them may be JSON in a string, as columns of tables need it.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::error::Problem;
use super::record::{is_empty, kind, list, without_nulls, wrong};
use crate::data::digits;
use crate::data::template::ToolCall;

/// Keys of a schema that hold further schemas under names.
const NAMED_SCHEMAS: [&str; 4] = ["properties", "$defs", "definitions", "patternProperties"];
/// Keys of a schema that hold a schema, or a list of schemas.
const SCHEMAS: [&str; 7] = ["items", "anyOf", "oneOf", "allOf", "not", "additionalProperties", "prefixItems"];
/// Keys of a schema that hold lists.
const LISTS: [&str; 2] = ["required", "enum"];

/// Reads `"tools"`: a list of `{"type": "function", "function": {…}}` or of bare functions. Adds to `padding` the names of the keys that
/// are null, which a table has for the sake of other functions.
pub(super) fn declared(tools: Option<&Value>, padding: &mut HashSet<String>) -> Result<Vec<Value>, Problem> {
    let Some(tools) = tools.filter(|tools| !is_empty(tools)) else { return Ok(Vec::new()) };
    let mut read = unpacked(tools.clone());
    if read.is_string() {
        return Err(wrong("tools", "a list of functions, or such a list as JSON in a string", tools));
    }
    if let Value::Object(_) = read {
        read = vec![read].into();
    }
    if tools.is_array() {
        without_nulls(&mut read, padding);
    }
    list(&read, "tools", "functions")?.iter().map(|tool| function(tool.clone())).collect()
}

fn function(tool: Value) -> Result<Value, Problem> {
    let mut tool = unpacked(tool);
    let named = |function: &Value| function["name"].is_string();
    if tool["function"].is_string() {
        tool["function"] = unpacked(tool["function"].take());
    }
    if !named(&tool["function"]) {
        let is_function = tool["type"] == "function";
        if !named(&tool) {
            let expected =
                "each of \"tools\" to be {\"type\": \"function\", \"function\": {\"name\": …}}".into();
            return Err(Problem::Type { expected, found: kind(&tool) });
        }
        if let (Value::Object(fields), true) = (&mut tool, is_function) {
            fields.shift_remove("type");
        }
        tool = json!({"type": "function", "function": tool});
    }
    let Value::Object(function) = &mut tool["function"] else { return Ok(tool) };
    // The name of `parameters` in Anthropic's API.
    if let (Some(schema), false) =
        (function.get("input_schema").cloned(), function.contains_key("parameters"))
    {
        function.shift_remove("input_schema");
        function.insert("parameters".into(), schema);
    }
    match function.get("parameters").cloned() {
        Some(Value::String(text)) if text.trim().is_empty() => drop(function.shift_remove("parameters")),
        Some(parameters) => {
            let parameters = schema(parameters);
            if !parameters.is_object() && !parameters.is_null() {
                let name = function["name"].as_str().unwrap_or_default();
                let expected = format!(
                    "\"parameters\" of the function \"{name}\" to be an object, or one as JSON in a string"
                );
                return Err(Problem::Type { expected, found: kind(&parameters) });
            }
            function.insert("parameters".into(), parameters);
        }
        None => {}
    }
    Ok(tool)
}

/// A schema whose parts are no longer JSON in strings.
fn schema(value: Value) -> Value {
    let mut value = unpacked(value);
    match &mut value {
        Value::Array(items) => items.iter_mut().for_each(|item| *item = schema(item.take())),
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                let key = key.as_str();
                if NAMED_SCHEMAS.contains(&key) {
                    *value = unpacked(value.take());
                    if let Value::Object(named) = value {
                        named.values_mut().for_each(|inner| *inner = schema(inner.take()));
                    }
                } else if SCHEMAS.contains(&key) {
                    *value = schema(value.take());
                } else if LISTS.contains(&key) {
                    *value = unpacked(value.take());
                }
            }
        }
        _ => {}
    }
    value
}

/// A list or an object that is JSON in a string as what it is.
fn unpacked(value: Value) -> Value {
    let parsed = match &value {
        Value::String(text) if text.trim_start().starts_with(['{', '[']) => digits::parse(text).ok(),
        _ => None,
    };
    parsed.unwrap_or(value)
}

/// Reads `"tool_calls"` of message `number`: `[{"function": {"name": "…", "arguments": {…}}}, …]`.
pub(super) fn calls(calls: &Value, number: usize) -> Result<Vec<ToolCall>, Problem> {
    let calls = unpacked(calls.clone());
    list(&calls, "tool_calls", "calls")?.iter().map(|value| call(value, number)).collect()
}

/// Reads a call, or a list of calls, that may be JSON in a string.
pub(super) fn written(value: &Value, number: usize) -> Result<Vec<ToolCall>, Problem> {
    match &unpacked(value.clone()) {
        Value::Array(calls) => calls.iter().map(|value| call(value, number)).collect(),
        one @ Value::Object(_) => Ok(vec![call(one, number)?]),
        _ => Err(Problem::Call { number, problem: "must be JSON".into() }),
    }
}

/// Reads one call, with or without the enclosing `"function"`.
fn call(value: &Value, number: usize) -> Result<ToolCall, Problem> {
    let value = &unpacked(value.clone());
    let inner = unpacked(value["function"].clone());
    let function = inner.as_object().or(value.as_object());
    let name = function.and_then(|function| function.get("name")?.as_str());
    let (Some(name), Some(function)) = (name, function) else {
        return Err(Problem::Call { number, problem: "has no \"name\"".into() });
    };
    let arguments = ToolCall::read_arguments(function);
    Ok(ToolCall {
        id: value["id"].as_str().unwrap_or_default().to_owned(),
        name: name.to_owned(),
        arguments: arguments.map_err(|problem| Problem::Call { number, problem: problem.to_string() })?,
    })
}
