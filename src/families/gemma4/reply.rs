//! Marks of thoughts and function calls in replies.
//!
//! ```text
//! <|channel>thought\n…\n<channel|>words<|tool_call>call:NAME{key:<|"|>text<|"|>,number:1}<tool_call|>
//! ```

use serde_json::{Map, Value};

use super::tools::QUOTE;
use crate::data::digits;
use crate::data::template::{ReplySyntax, ToolCall};

pub(super) static SYNTAX: ReplySyntax = ReplySyntax {
    thought: ("<|channel>", "<channel|>"),
    thought_name: "thought\n",
    calls: &[("<|tool_call>", "<tool_call|>")],
    headers: &[],
    bare_call: "",
    spaced: false,
    parse_calls: |text, _| call(text, QUOTE).into_iter().collect(),
};

/// Deepest nesting of lists and objects in arguments.
const DEPTH: usize = 32;

/// `call:NAME{…}`, with strings between two `quote`.
pub(in crate::families) fn call(text: &str, quote: &'static str) -> Option<ToolCall> {
    let (name, _) = text.trim().strip_prefix("call:")?.split_once('{')?;
    let mut rest = Rest { text: text[text.find('{')?..].trim(), quote };
    let arguments = rest.object(DEPTH)?;
    let name = name.trim();
    let whole = rest.text.is_empty() && !name.is_empty();
    whole.then(|| ToolCall { id: String::new(), name: name.to_owned(), arguments })
}

/// The unread part of the arguments. Methods return `None` where the text is not in the notation.
struct Rest<'a> {
    text: &'a str,
    quote: &'static str,
}

impl<'a> Rest<'a> {
    /// Whether `text` comes next; takes it.
    fn take(&mut self, text: &str) -> bool {
        let rest = self.text.trim_start().strip_prefix(text);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }

    fn object(&mut self, depth: usize) -> Option<Map<String, Value>> {
        let mut fields = Map::new();
        if !self.take("{") {
            return None;
        }
        while !self.take("}") {
            if !fields.is_empty() && !self.take(",") {
                return None;
            }
            let key = match self.take(self.quote) {
                true => self.before(self.quote)?,
                false => self.until(&[':'])?,
            };
            if !self.take(":") {
                return None;
            }
            let value = self.value(depth.checked_sub(1)?)?;
            if fields.insert(key.to_owned(), value).is_some() {
                return None;
            }
        }
        Some(fields)
    }

    fn list(&mut self, depth: usize) -> Option<Vec<Value>> {
        let mut items = Vec::new();
        self.take("[");
        while !self.take("]") {
            if !items.is_empty() && !self.take(",") {
                return None;
            }
            items.push(self.value(depth.checked_sub(1)?)?);
        }
        Some(items)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if self.take(self.quote) {
            return Some(self.before(self.quote)?.into());
        }
        match self.text.trim_start().chars().next()? {
            '{' => Some(self.object(depth)?.into()),
            '[' => Some(self.list(depth)?.into()),
            _ => {
                // A number, a boolean, null, or a text without quotes, which models write too.
                let bare = self.until(&[',', '}', ']'])?;
                Some(digits::parse(bare).unwrap_or_else(|_| bare.into()))
            }
        }
    }

    /// Takes the text before `mark`, and the mark.
    fn before(&mut self, mark: &str) -> Option<&'a str> {
        let (text, rest) = self.text.split_once(mark)?;
        self.text = rest;
        Some(text)
    }

    /// Takes the text before one of `ends`, trimmed; `None` where it is empty.
    fn until(&mut self, ends: &[char]) -> Option<&'a str> {
        let at = self.text.find(ends)?;
        let (text, rest) = self.text.split_at(at);
        self.text = rest;
        Some(text.trim()).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tools;
    use super::*;
    use crate::data::template::Part;
    use crate::families::tool_calls::tests::parts;

    /// Position at which the reply begins.
    #[derive(Clone, Copy)]
    enum Place {
        Words,
        Thought,
    }

    fn read(place: Place, text: &str, pieces: usize) -> Vec<Part> {
        parts(&SYNTAX, matches!(place, Place::Thought), text, pieces)
    }

    fn words(text: &str) -> Part {
        Part::Words(text.into())
    }

    fn called(name: &str, arguments: Value) -> Part {
        let Value::Object(arguments) = arguments else { panic!("{arguments} is no object") };
        Part::Call(ToolCall { id: String::new(), name: name.into(), arguments })
    }

    /// In pieces of any size.
    #[test]
    fn a_reply_is_split_into_parts() {
        let weather = r#"<|tool_call>call:get_weather{city:<|"|>Lima<|"|>,days:3}<tool_call|>"#;
        let call = called("get_weather", json!({"city": "Lima", "days": 3}));
        let thought = |text: &str| Part::Thought(text.into());
        for (place, text, expected) in [
            (Place::Words, "Hello < you <|".to_owned(), vec![words("Hello < you <|")]),
            (Place::Words, weather.to_owned(), vec![call.clone()]),
            (
                Place::Words,
                format!("<|channel>thought\nHm.\nWell.\n<channel|>I look.{weather}{weather}"),
                vec![thought("Hm.\nWell."), words("I look."), call.clone(), call.clone()],
            ),
            (Place::Words, "<|channel>thought\n<channel|>Yes.".into(), vec![words("Yes.")]),
            (Place::Thought, "Hm.\n<channel|>Yes.".into(), vec![thought("Hm."), words("Yes.")]),
            (Place::Thought, "Cut sho".into(), vec![thought("Cut sho")]),
            (Place::Words, "<|channel>tho".into(), vec![thought("tho")]),
        ] {
            for pieces in [1, 2, 7, 1000] {
                assert_eq!(read(place, &text, pieces), expected, "{text:?} in pieces of {pieces}");
            }
        }
    }

    #[test]
    fn calls_are_read_as_they_were_written() {
        for arguments in [
            json!({}),
            json!({"a": "", "b": "x, {y}: [z]", "c": "\n\"'"}),
            json!({"n": -1, "x": 2.5, "large": 1e300, "yes": true, "none": null}),
            json!({"list": [1, "two", [], {}, [3]], "object": {"key": {"deep": ["é"]}}}),
        ] {
            let Value::Object(fields) = arguments.clone() else { unreachable!() };
            let text = tools::call(&ToolCall { id: String::new(), name: "f".into(), arguments: fields });
            assert_eq!(read(Place::Words, &text, 5), [called("f", arguments)], "{text}");
        }
        let loose = "<|tool_call> call:f{ a: b c , <|\"|>key<|\"|> : 1 }<tool_call|>";
        assert_eq!(read(Place::Words, loose, 5), [called("f", json!({"a": "b c", "key": 1}))]);
    }

    /// No part of a reply is lost, and none makes the parser hang or overflow.
    #[test]
    fn malformed_calls_stay_text() {
        let deep = format!("<|tool_call>call:f{{a:{}", "[".repeat(100_000));
        for text in [
            "<|tool_call>call:f{a:1",
            "<|tool_call>call:{}<tool_call|>",
            "<|tool_call>f{}<tool_call|>",
            "<|tool_call>call:f{a}<tool_call|>",
            "<|tool_call>call:f{a:1 b:2}}<tool_call|>",
            "<|tool_call>call:f{a:1,a:2}<tool_call|>",
            "<|tool_call>call:f{a:<|\"|>b}<tool_call|> and on",
            "<|tool_call><tool_call|>",
            &deep,
        ] {
            assert_eq!(read(Place::Words, text, 9000), [words(text)]);
        }
    }

    /// Each character is read once: a parser that reads the whole text again for each piece would need hours here.
    #[test]
    fn long_replies_are_read_once() {
        let n = 300_000;
        let (dashes, newlines) = ("-".repeat(n), "\n".repeat(n));
        let call = format!("<|tool_call>call:f{{a:{dashes}");
        assert_eq!(read(Place::Words, &call, 1), [words(&call)]);
        let thoughts = format!("{newlines}Hm.{newlines}<channel|>Yes.");
        let expected = [Part::Thought(format!("{newlines}Hm.")), words("Yes.")];
        assert_eq!(read(Place::Thought, &thoughts, 1), expected);
        let calls = "<|tool_call>f<tool_call|>".repeat(n / 20);
        assert_eq!(read(Place::Words, &calls, n * 2), [words(&calls)]);
    }
}
