//! Functions in Gemma 4's notation: declarations, calls and results. Strings are quoted by `<|"|>`, keys are sorted by their
//! bytes, types are in capitals, as in Ollama's model/renderers/gemma4.go.

use serde_json::{Map, Value};

use crate::data::digits::digits;
use crate::data::template::{Message, ToolCall, float};

pub(super) const QUOTE: &str = "<|\"|>";
/// Power of ten from which Go writes a number with an exponent.
const GO_EXPONENT: i32 = 21;

/// `<|tool>declaration:NAME{…}<tool|>` of `{"type": "function", "function": {…}}`.
pub(super) fn declaration(tool: &Value) -> String {
    let function = &tool["function"];
    let (name, description) = (text(&function["name"]), text(&function["description"]));
    let mut fields = vec![format!("description:{QUOTE}{description}{QUOTE}")];
    let parameters = &function["parameters"];
    if parameters["properties"].is_object() || parameters["type"].is_string() {
        let mut inner = Vec::new();
        let properties = typed(&parameters["properties"]);
        if !properties.is_empty() {
            inner.push(format!("properties:{{{}}}", self::properties(&properties)));
        }
        inner.extend(required(&parameters["required"]));
        inner.extend(type_name(&parameters["type"]));
        fields.push(format!("parameters:{{{}}}", inner.join(",")));
    }
    format!("<|tool>declaration:{name}{{{}}}<tool|>", fields.join(","))
}

/// `<|tool_call>call:NAME{…}<tool_call|>`.
pub(super) fn call(call: &ToolCall) -> String {
    format!("<|tool_call>call:{}{}<tool_call|>", call.name, object(&call.arguments, false))
}

/// `response:NAME{…}<tool_response|>`, without the opening token: result number `position` after `calls`. A result without the
/// name of a function and without the id of a call answers the call at its own position.
pub(super) fn result(message: &Message, calls: &[ToolCall], position: usize) -> String {
    let of_call = calls.iter().find(|call| !call.id.is_empty() && call.id == message.tool_call_id);
    let unnamed = message.name.is_empty() && message.tool_call_id.is_empty();
    let named = of_call.or(calls.get(position).filter(|_| unnamed));
    let name = match named {
        Some(call) => &call.name,
        None if message.name.is_empty() => "unknown",
        None => &message.name,
    };
    let value = match &message.result {
        Some(Value::Object(fields)) => object(fields, false),
        Some(other) => format!("{{value:{}}}", argument(other, false)),
        None => format!("{{value:{QUOTE}{}{QUOTE}}}", message.content),
    };
    format!("response:{name}{value}<tool_response|>")
}

/// The parts of parameters that Ollama's API has: unions become lists of types, and `nullable` is missing.
fn typed(properties: &Value) -> Map<String, Value> {
    let Value::Object(properties) = properties else { return Map::new() };
    let one = |(name, property): (&String, &Value)| {
        let mut out = Map::new();
        let types = match &property["type"] {
            Value::Null => bare_types(&property["anyOf"]),
            types => types.clone(),
        };
        match &types {
            Value::Array(list) if list.len() != 1 => {
                let names: Vec<String> =
                    list.iter().map(|t| format!("'{}'", text(t).to_uppercase())).collect();
                // The template prints a list in Python's way here.
                out.insert("type".into(), format!("[{}]", names.join(", ")).into());
            }
            Value::Array(list) => drop(out.insert("type".into(), list[0].clone())),
            Value::String(_) => drop(out.insert("type".into(), types)),
            _ => {}
        }
        for key in ["description", "enum", "items", "required"] {
            if let Some(value) = property.get(key).filter(|value| !value.is_null()) {
                out.insert(key.into(), value.clone());
            }
        }
        if property["properties"].is_object() {
            out.insert("properties".into(), typed(&property["properties"]).into());
        }
        (name.clone(), out.into())
    };
    properties.iter().filter(|(_, property)| property.is_object()).map(one).collect()
}

/// The types of a union whose branches have a type only; null otherwise.
fn bare_types(any_of: &Value) -> Value {
    let branches = any_of.as_array().map(Vec::as_slice).unwrap_or_default();
    let bare = |branch: &Value| match branch.as_object() {
        Some(fields) if fields.len() == 1 => fields.get("type").cloned(),
        _ => None,
    };
    match branches.iter().map(bare).collect::<Option<Vec<Value>>>() {
        Some(types) if !types.is_empty() => types.into(),
        _ => Value::Null,
    }
}

fn properties(properties: &Map<String, Value>) -> String {
    let one =
        |(name, property): (&String, &Value)| Some(format!("{name}:{{{}}}", schema(property.as_object()?)));
    sorted(properties).filter_map(one).collect::<Vec<_>>().join(",")
}

/// The fields of one schema.
fn schema(schema: &Map<String, Value>) -> String {
    let get = |key: &str| schema.get(key).unwrap_or(&Value::Null);
    let types = get("type");
    let first = types.as_array().and_then(|list| list.first()).unwrap_or(types);
    let kind = text(first).to_uppercase();
    let mut fields = Vec::new();
    let description = text(get("description"));
    if !description.is_empty() {
        fields.push(format!("description:{QUOTE}{description}{QUOTE}"));
    }
    match (kind.as_str(), get("enum"), get("items")) {
        ("STRING", Value::Array(values), _) if !values.is_empty() => {
            let values: Vec<String> = values.iter().map(|v| format!("{QUOTE}{}{QUOTE}", bare(v))).collect();
            fields.push(format!("enum:[{}]", values.join(",")));
        }
        ("ARRAY", _, Value::Object(inner)) if !inner.is_empty() => {
            fields.push(format!("items:{{{}}}", items(inner)));
        }
        _ => {}
    }
    if get("nullable") == &Value::Bool(true) {
        fields.push("nullable:true".into());
    }
    if kind == "OBJECT" {
        let standard = ["description", "type", "properties", "required", "nullable"];
        let inner = match get("properties") {
            Value::Object(inner) => properties(inner),
            _ => {
                let rest = schema.iter().filter(|(key, _)| !standard.contains(&key.as_str()));
                properties(&rest.map(|(key, value)| (key.clone(), value.clone())).collect())
            }
        };
        fields.push(format!("properties:{{{inner}}}"));
        fields.extend(required(get("required")));
    }
    fields.extend(type_name(types));
    fields.join(",")
}

/// The schema of a list's items, with all its keys.
fn items(items: &Map<String, Value>) -> String {
    let one = |(key, value): (&String, &Value)| match key.as_str() {
        _ if value.is_null() => None,
        "properties" => {
            let empty = Map::new();
            Some(format!("properties:{{{}}}", properties(value.as_object().unwrap_or(&empty))))
        }
        "required" => Some(required(value).unwrap_or_else(|| "required:[]".into())),
        "type" => type_name(value),
        _ => Some(format!("{key}:{}", argument(value, true))),
    };
    sorted(items).filter_map(one).collect::<Vec<_>>().join(",")
}

fn required(value: &Value) -> Option<String> {
    let names = value.as_array()?.iter().filter_map(Value::as_str);
    let names: Vec<String> = names.map(|name| format!("{QUOTE}{name}{QUOTE}")).collect();
    (!names.is_empty()).then(|| format!("required:[{}]", names.join(",")))
}

fn type_name(value: &Value) -> Option<String> {
    let quoted = |name: &str| format!("{QUOTE}{}{QUOTE}", name.to_uppercase());
    match value {
        Value::String(name) => Some(format!("type:{}", quoted(name))),
        Value::Array(names) => {
            let names: Vec<String> = names.iter().filter_map(Value::as_str).map(quoted).collect();
            match &names[..] {
                [] => None,
                [one] => Some(format!("type:{one}")),
                _ => Some(format!("type:[{}]", names.join(","))),
            }
        }
        _ => None,
    }
}

/// A value in Gemma's notation. Only schemas quote their keys.
fn argument(value: &Value, quoted_keys: bool) -> String {
    match value {
        value if digits(value).is_some() => digits(value).unwrap_or_default().to_owned(),
        Value::String(text) => format!("{QUOTE}{text}{QUOTE}"),
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(|item| argument(item, quoted_keys)).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(map) => object(map, quoted_keys),
        other => bare(other),
    }
}

fn object(map: &Map<String, Value>, quoted_keys: bool) -> String {
    let quote = if quoted_keys { QUOTE } else { "" };
    let field =
        |(key, value): (&String, &Value)| format!("{quote}{key}{quote}:{}", argument(value, quoted_keys));
    format!("{{{}}}", sorted(map).map(field).collect::<Vec<_>>().join(","))
}

/// A value as Go prints it, without quotes.
fn bare(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => match number.as_f64() {
            Some(x) if number.is_f64() && x.fract() == 0.0 && x.abs() < 9e18 => format!("{}", x as i64),
            Some(x) if number.is_f64() => float(x, GO_EXPONENT),
            _ => number.to_string(),
        },
        Value::String(text) => text.clone(),
        other => argument(other, false),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn sorted(map: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    entries.into_iter()
}
