//! Functions as Qwen 3.5 declares and calls them, printed as Ollama prints them.

use serde_json::{Map, Value};

use crate::data::digits::{digits, to_json};
use crate::data::template::{ToolCall, float};

/// Power of ten from which Go writes a number with an exponent.
const GO_EXPONENT: i32 = 21;

/// The text around the declarations of functions.
pub(super) const DECLARED: (&str, &str) = (
    "# Tools\n\nYou have access to the following functions:\n\n<tools>",
    concat!(
        "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n",
        "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n",
        "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n</parameter>\n",
        "</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n",
        "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within ",
        "<tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n",
        "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after\n",
        "- If there is no function call available, answer the question like normal with your current knowledge and do not tell ",
        "the user about function calls\n</IMPORTANT>",
    ),
);

/// A declaration with the keys that Ollama's API has, in its order.
pub(super) fn declaration(tool: &Value) -> String {
    let function = &tool["function"];
    let mut parameters = picked(&function["parameters"], &["type", "$defs", "items", "required"]);
    parameters.insert("properties".into(), properties(&function["parameters"]["properties"]));
    let mut declared = picked(function, &["name", "description"]);
    declared.insert("parameters".into(), parameters.into());
    let mut out = picked(tool, &["type"]);
    out.insert("function".into(), declared.into());
    json(&out.into())
}

/// `<tool_call>…</tool_call>`.
pub(super) fn call(call: &ToolCall) -> String {
    let mut out = format!("<tool_call>\n<function={}>\n", call.name);
    for (name, value) in &call.arguments {
        out += &format!("<parameter={name}>\n{}\n</parameter>\n", argument(value));
    }
    out + "</function>\n</tool_call>"
}

/// An argument as Go prints it.
fn argument(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(x) if number.is_f64() => float(x, GO_EXPONENT),
            _ => number.to_string(),
        },
        other => to_json(other),
    }
}

/// The fields of `keys` that `value` has.
fn picked(value: &Value, keys: &[&str]) -> Map<String, Value> {
    let field = |key: &&str| Some(((*key).to_owned(), value.get(*key).filter(|v| !v.is_null())?.clone()));
    keys.iter().filter_map(field).collect()
}

/// Parameters, each with its type in front of its description.
fn properties(properties: &Value) -> Value {
    let Value::Object(properties) = properties else { return Value::Object(Map::new()) };
    let one = |(name, property): (&String, &Value)| {
        let mut out = picked(property, &["anyOf", "type", "items", "description", "enum"]);
        if property["properties"].is_object() {
            out.insert("properties".into(), self::properties(&property["properties"]));
        }
        out.extend(picked(property, &["required"]));
        (name.clone(), out.into())
    };
    Value::Object(properties.iter().map(one).collect())
}

/// JSON with a space behind each comma and colon.
fn json(value: &Value) -> String {
    match value {
        value if digits(value).is_some() => to_json(value),
        Value::Array(items) => format!("[{}]", items.iter().map(json).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let field =
                |(key, value): (&String, &Value)| format!("{}: {}", Value::from(key.as_str()), json(value));
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}
