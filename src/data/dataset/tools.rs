//! Declared functions and function calls, under OpenAI's keys.

use serde_json::{Map, Value, json};

use super::error::Problem;
use super::record::{is_empty, kind, list, wrong};
use crate::data::template::ToolCall;

/// Reads `"tools"`: a list of `{"type": "function", "function": {…}}` or of bare functions, or such a list as a JSON string
/// (Parquet cannot store lists of differing objects).
pub(super) fn declared(tools: Option<&Value>) -> Result<Vec<Value>, Problem> {
    let Some(tools) = tools.filter(|tools| !is_empty(tools)) else { return Ok(Vec::new()) };
    let parsed;
    let tools = match tools {
        Value::String(text) => {
            parsed = serde_json::from_str(text).map_err(|_| {
                wrong("tools", "a list of functions, or such a list as JSON in a string", tools)
            })?;
            &parsed
        }
        list => list,
    };
    list(tools, "tools", "functions")?.iter().map(function).collect()
}

fn function(tool: &Value) -> Result<Value, Problem> {
    let named = |function: &Value| function["name"].is_string();
    match tool {
        tool if named(&tool["function"]) => {
            let mut tool = tool.clone();
            if tool["function"]["description"].is_null() {
                tool["function"]["description"] = "".into();
            }
            Ok(tool)
        }
        tool if named(tool) => function(&json!({"type": "function", "function": tool})),
        other => {
            let expected =
                "each of \"tools\" to be {\"type\": \"function\", \"function\": {\"name\": …}}".into();
            Err(Problem::Type { expected, found: kind(other) })
        }
    }
}

/// Reads `"tool_calls"` of message `number`: `[{"function": {"name": "…", "arguments": {…}}}, …]`.
pub(super) fn calls(calls: &Value, number: usize) -> Result<Vec<ToolCall>, Problem> {
    list(calls, "tool_calls", "calls")?.iter().map(|value| call(value, number)).collect()
}

/// Reads one call, with or without the enclosing `"function"`.
pub(super) fn call(value: &Value, number: usize) -> Result<ToolCall, Problem> {
    let function = if value["function"].is_object() { &value["function"] } else { value };
    let Some(name) = function["name"].as_str() else {
        return Err(Problem::Call { number, problem: "has no \"name\"" });
    };
    Ok(ToolCall {
        id: value["id"].as_str().unwrap_or_default().to_owned(),
        name: name.to_owned(),
        arguments: arguments(&function["arguments"])
            .ok_or(Problem::Call { number, problem: "must have an object as \"arguments\"" })?,
    })
}

/// Reads arguments: an object, or OpenAI's JSON string. Missing arguments become an empty object. Nulls are dropped, because
/// Parquet adds every argument that any call has.
fn arguments(value: &Value) -> Option<Map<String, Value>> {
    match value {
        Value::Null => Some(Map::new()),
        Value::Object(arguments) => Some(arguments.clone()),
        Value::String(text) if text.trim().is_empty() => Some(Map::new()),
        Value::String(text) => serde_json::from_str(text).ok(),
        _ => None,
    }
}
