//! Marks of reasoning and function calls in replies.
//!
//! ```text
//! …\n</think>\n\nwords\n\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nvalue\n</parameter>\n</function>\n</tool_call>
//! ```

use serde_json::{Map, Value};

use crate::data::digits;
use crate::data::template::{ReplySyntax, ToolCall};
use crate::families::tool_calls;

pub(in crate::families) static SYNTAX: ReplySyntax = ReplySyntax { parse_calls: parse, ..tool_calls::QWEN };

/// The calls in `text`: one with a mark per argument, or JSON as Qwen 3 writes it.
fn parse(text: &str, tools: &[Value]) -> Vec<ToolCall> {
    let text = text.trim();
    match text.strip_prefix("<function=") {
        Some(rest) => call(rest, tools).into_iter().collect(),
        None => tool_calls::parse(text, tools),
    }
}

/// `NAME>…</function>`.
fn call(text: &str, tools: &[Value]) -> Option<ToolCall> {
    let (name, mut rest) = text.split_once('>')?;
    let name = name.trim();
    let properties = properties(tools, name);
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if rest.strip_prefix("</function>").is_some_and(|rest| rest.trim().is_empty()) {
            break;
        }
        let (key, behind) = rest.strip_prefix("<parameter=")?.split_once('>')?;
        let (value, behind) = behind.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let value = typed(value, properties.and_then(|properties| properties.get(key)));
        if key.is_empty() || arguments.insert(key.to_owned(), value).is_some() {
            return None;
        }
        rest = behind;
    }
    (!name.is_empty()).then(|| ToolCall { id: String::new(), name: name.to_owned(), arguments })
}

/// The declared parameters of a function.
fn properties<'a>(tools: &'a [Value], name: &str) -> Option<&'a Map<String, Value>> {
    let tool = tools.iter().find(|tool| tool["function"]["name"] == name)?;
    tool["function"]["parameters"]["properties"].as_object()
}

/// The value of an argument, which the reply has as text. The declaration says whether that is a text; without one, it is what it looks
/// like.
fn typed(text: &str, declared: Option<&Value>) -> Value {
    let is_text = |kind: &Value| *kind == "string";
    let texts = declared.is_some_and(|declared| match &declared["type"] {
        Value::Array(kinds) => kinds.iter().all(is_text),
        kind => is_text(kind),
    });
    let words = || Value::String(text.to_owned());
    match text.trim() {
        _ if texts => words(),
        // Qwen 3.5's template prints Python's words.
        "True" => true.into(),
        "False" => false.into(),
        "None" => Value::Null,
        text => match digits::parse(text) {
            Ok(Value::String(_)) | Err(_) => words(),
            Ok(value) => value,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::template::Part;
    use crate::families::tool_calls::tests::{called, long, parts, thought, words};

    const CALL: &str = "<tool_call>\n<function=weather>\n<parameter=city>\nLima\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
                        </function>\n</tool_call>";

    /// The parts of a reply, whatever pieces it comes in.
    fn read(thinks: bool, text: &str) -> Vec<Part> {
        let whole = parts(&SYNTAX, thinks, text, 10_000);
        for size in [1, 2, 7] {
            assert_eq!(parts(&SYNTAX, thinks, text, size), whole, "{text:?} in pieces of {size}");
        }
        whole
    }

    #[test]
    fn replies_are_split_into_reasoning_words_and_calls() {
        let call = called("weather", json!({"city": "Lima", "days": 3}));
        let json = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Lima\", \"days\": 3}}\n</tool_call>";
        for (thinks, text, expected) in [
            (true, "Hm.\n</think>\n\nYes.".to_owned(), vec![thought("Hm."), words("Yes.")]),
            (false, "Yes.".into(), vec![words("Yes.")]),
            (false, CALL.into(), vec![call.clone()]),
            (
                true,
                format!("Hm.\n</think>\n\nI look.\n\n{CALL}\n{CALL}"),
                vec![thought("Hm."), words("I look."), call.clone(), call.clone()],
            ),
            (false, json.into(), vec![call.clone()]),
        ] {
            assert_eq!(read(thinks, &text), expected, "{text:?}");
        }
    }

    #[test]
    fn arguments_have_the_type_of_their_declaration() {
        let value = |text: &str, kind: Value| typed(text, Some(&json!({ "type": kind })));
        assert_eq!(value("3", json!("string")), json!("3"));
        assert_eq!(value("3", json!("integer")), json!(3));
        assert_eq!(value("True", json!("boolean")), json!(true));
        assert_eq!(value("[1, \"a\"]", json!("array")), json!([1, "a"]));
        assert_eq!(value("null", json!(["string", "null"])), Value::Null);
        assert_eq!(value("Lima", json!("integer")), json!("Lima"));
        let digits = "12345678901234567890123";
        assert_eq!(value(digits, json!("integer")), long(digits)["id"]);
        for (text, expected) in [
            ("3", json!(3)),
            ("{\"a\": 1}", json!({"a": 1})),
            ("two\nlines", json!("two\nlines")),
            (" kept ", json!(" kept ")),
            ("\"quoted\"", json!("\"quoted\"")),
        ] {
            assert_eq!(typed(text, None), expected, "{text:?}");
        }
        let tools = [json!({"type": "function", "function": {
            "name": "f", "parameters": {"type": "object", "properties": {"code": {"type": "string"}}}
        }})];
        let found = parse("<function=f>\n<parameter=code>\n007.50\n</parameter>\n</function>", &tools);
        assert_eq!(Value::from(found[0].arguments.clone()), json!({"code": "007.50"}));
        let found = parse("<function=f>\n<parameter=code>\n7.50\n</parameter>\n</function>", &tools);
        assert_eq!(Value::from(found[0].arguments.clone()), json!({"code": "7.50"}));
    }

    #[test]
    fn malformed_calls_stay_text() {
        for text in [
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>",
            "<tool_call>\n<function=>\n</function>\n</tool_call>",
            "<tool_call>\n<function=f>\nwords\n</function>\n</tool_call>",
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>",
            "<tool_call>\n<function=f",
        ] {
            assert_eq!(read(false, text), [words(text)], "{text:?}");
        }
        assert_eq!(
            read(false, "<tool_call>\n<function=f>\n</function>\n</tool_call>"),
            [called("f", json!({}))]
        );
    }
}
