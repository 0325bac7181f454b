//! Function calls as JSON: `{"name": …, "arguments": {…}}`, alone or in a list.

use serde_json::Value;

use crate::data::digits;
use crate::data::template::{ReplySyntax, ToolCall};

/// Replies of Qwen: `<think>\n…\n</think>\n\nwords\n<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`.
pub(super) static QWEN: ReplySyntax = ReplySyntax {
    thought: ("<think>", "</think>"),
    thought_name: "\n",
    calls: &[("<tool_call>", "</tool_call>")],
    headers: &[],
    bare_call: "",
    spaced: true,
    parse_calls: parse,
};

/// The calls in `text`; empty if it is anything else. Llama calls the arguments `parameters`.
pub(super) fn parse(text: &str, _tools: &[Value]) -> Vec<ToolCall> {
    let calls = match digits::parse(text.trim()) {
        Ok(Value::Array(list)) => list.iter().map(call).collect(),
        Ok(value) => call(&value).map(|call| vec![call]),
        Err(_) => None,
    };
    calls.unwrap_or_default()
}

/// A call; `None` for an object that only looks like one, which has no arguments.
fn call(value: &Value) -> Option<ToolCall> {
    let value = value.as_object()?;
    let name = value.get("name")?.as_str().filter(|name| !name.is_empty())?;
    ["arguments", "parameters"].into_iter().find(|key| value.contains_key(*key))?;
    let arguments = ToolCall::read_arguments(value).ok()?;
    Some(ToolCall { id: String::new(), name: name.to_owned(), arguments })
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::template::{Part, ReplyParts};
    use crate::families::llama;

    /// The parts of a reply, whatever pieces it comes in.
    fn read(syntax: &'static ReplySyntax, thinks: bool, text: &str) -> Vec<Part> {
        let whole = parts(syntax, thinks, text, 10_000);
        for size in [1, 2, 3, 7] {
            assert_eq!(parts(syntax, thinks, text, size), whole, "{text:?} in pieces of {size}");
        }
        whole
    }

    /// The joined parts of a reply that comes in pieces of `size` characters.
    pub(in crate::families) fn parts(
        syntax: &'static ReplySyntax,
        thinks: bool,
        text: &str,
        size: usize,
    ) -> Vec<Part> {
        let mut parts = ReplyParts::new(syntax, thinks);
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let mut found: Vec<Part> = chars.chunks(size).flat_map(|piece| parts.push(&piece.concat())).collect();
        found.extend(parts.finish());
        Part::join(found)
    }

    pub(in crate::families) fn words(text: &str) -> Part {
        Part::Words(text.into())
    }

    pub(in crate::families) fn thought(text: &str) -> Part {
        Part::Thought(text.into())
    }

    pub(in crate::families) fn called(name: &str, arguments: Value) -> Part {
        let Value::Object(arguments) = arguments else { panic!("{arguments} is no object") };
        Part::Call(ToolCall { id: String::new(), name: name.into(), arguments })
    }

    /// The arguments `{"id": …}` with all digits of a long integer.
    pub(in crate::families) fn long(digits: &str) -> Value {
        digits::parse(&format!("{{\"id\": {digits}}}")).expect("JSON")
    }

    #[test]
    fn qwens_replies_are_split_into_parts() {
        let weather =
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Lima\"}}\n</tool_call>";
        let call = called("weather", json!({"city": "Lima"}));
        for (thinks, text, expected) in [
            (false, "Hello\n\nyou <\n".to_owned(), vec![words("Hello\n\nyou <\n")]),
            (
                false,
                "<think>\nHm.\n\nWell.\n</think>\n\nYes.".into(),
                vec![thought("Hm.\n\nWell."), words("Yes.")],
            ),
            (false, "<think>\n\n</think>\n\nYes.".into(), vec![words("Yes.")]),
            (true, "Hm.\n</think>\n\nYes.".into(), vec![thought("Hm."), words("Yes.")]),
            (false, weather.to_owned(), vec![call.clone()]),
            (
                false,
                format!("<think>\nHm.\n</think>\n\nI look.\n{weather}\n{weather}"),
                vec![thought("Hm."), words("I look."), call.clone(), call.clone()],
            ),
            (
                false,
                "<tool_call>\n{\"name\": 1}\n</tool_call>".into(),
                vec![words("<tool_call>\n{\"name\": 1}\n</tool_call>")],
            ),
            (false, "<tool_call>\n{\"name\"".into(), vec![words("<tool_call>\n{\"name\"")]),
        ] {
            assert_eq!(read(&QWEN, thinks, &text), expected, "{text:?}");
        }
    }

    #[test]
    fn llamas_calls_are_json_with_or_without_a_mark() {
        let json = r#"{"name": "weather", "parameters": {"city": "Lima"}}"#;
        let call = called("weather", json!({"city": "Lima"}));
        for (text, expected) in [
            (json.to_owned(), vec![call.clone()]),
            (format!("\n{json}\n"), vec![call.clone()]),
            (format!("<|python_tag|>{json}"), vec![call.clone()]),
            (
                "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Lima\"}}]".to_owned(),
                vec![call.clone()],
            ),
            (format!("<tool_call>{json}</tool_call>"), vec![call.clone()]),
            (
                r#"{"name": "pay", "parameters": {"id": 12345678901234567890123}}"#.into(),
                vec![called("pay", long("12345678901234567890123"))],
            ),
            ("{\"names\": [1]}".into(), vec![words("{\"names\": [1]}")]),
            ("{\"name\": \"Ada\", \"age\": 36}".into(), vec![words("{\"name\": \"Ada\", \"age\": 36}")]),
            ("<|python_tag|>print(1)".into(), vec![words("<|python_tag|>print(1)")]),
            ("Look: {\"name\": 1}".into(), vec![words("Look: {\"name\": 1}")]),
            ("<think>\nHm.\n</think>\n\nYes.".into(), vec![thought("Hm."), words("Yes.")]),
        ] {
            assert_eq!(read(&llama::REPLIES, false, &text), expected, "{text:?}");
        }
    }
}
