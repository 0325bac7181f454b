//! What the assistant writes, taken apart as it comes: words, thoughts and calls of functions in Gemma 4's notation.
//!
//! ```text
//! <|channel>thought\n…\n<channel|>words<|tool_call>call:NAME{key:<|"|>text<|"|>,number:1}<tool_call|>
//! ```

use serde_json::{Map, Value};

use super::ToolCall;
use super::tools::QUOTE;
use crate::data::tokenizer::Tokenizer;

const THOUGHT: (&str, &str) = ("<|channel>", "<channel|>");
const CALL: (&str, &str) = ("<|tool_call>", "<tool_call|>");
/// The name that an opened channel starts with.
const CHANNEL: &str = "thought\n";
/// How deep lists and objects in arguments may nest.
const DEPTH: usize = 32;

/// A part of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// What is said.
    Words(String),
    /// What is thought before.
    Thought(String),
    /// A function that is called; without [`ToolCall::id`].
    Call(ToolCall),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Place {
    #[default]
    Words,
    /// Behind the mark that opens a channel: its name may follow.
    Channel,
    Thought,
    Call,
}

/// Reads a reply piece by piece. What may be the beginning of a mark is held back until it is one or is none.
#[derive(Clone, Debug, Default)]
pub struct ReplyParts {
    place: Place,
    held: String,
}

impl ReplyParts {
    /// A reply to `prompt`, which may have opened the thought itself.
    pub fn to(prompt: &[u32], tokenizer: &Tokenizer) -> ReplyParts {
        let last = |mark| tokenizer.id(mark).and_then(|id| prompt.iter().rposition(|&other| other == id));
        // A prompt that opens a channel has written its name as well.
        let place = if last(THOUGHT.0) > last(THOUGHT.1) { Place::Thought } else { Place::Words };
        ReplyParts { place, held: String::new() }
    }

    /// The parts that `piece` completes.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held += piece;
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// What is left where the reply ends. A call that was cut short stands among the words as it was written.
    pub fn finish(mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        match self.place {
            _ if held.is_empty() => Vec::new(),
            Place::Words => vec![Part::Words(held)],
            Place::Channel | Place::Thought => thought(held.trim_end()).into_iter().collect(),
            Place::Call => vec![call(&held).unwrap_or(Part::Words(CALL.0.to_owned() + &held))],
        }
    }

    /// Reads on to the next mark; false where more must come first.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.place {
            Place::Words => {
                let (words, mark) = self.until(&[THOUGHT.0, CALL.0]);
                parts.extend((!words.is_empty()).then_some(Part::Words(words)));
                self.place = match mark {
                    Some(mark) if mark == CALL.0 => Place::Call,
                    Some(_) => Place::Channel,
                    None => return false,
                };
            }
            Place::Channel => {
                if CHANNEL.starts_with(&self.held) && self.held.len() < CHANNEL.len() {
                    return false;
                }
                self.held = self.held.strip_prefix(CHANNEL).unwrap_or(&self.held).to_owned();
                self.place = Place::Thought;
            }
            Place::Thought => {
                let (mut words, mark) = self.until(&[THOUGHT.1]);
                let trimmed = words.trim_end_matches('\n').len();
                match mark {
                    Some(_) => {
                        words.truncate(trimmed);
                        self.place = Place::Words;
                    }
                    // The newlines at its end are the layout's.
                    None => self.held.insert_str(0, &words.split_off(trimmed)),
                }
                parts.extend(thought(&words));
                return mark.is_some();
            }
            Place::Call => {
                let Some((text, rest)) = self.held.split_once(CALL.1) else { return false };
                let whole = || Part::Words([CALL.0, text, CALL.1].concat());
                parts.push(call(text).unwrap_or_else(whole));
                self.held = rest.to_owned();
                self.place = Place::Words;
            }
        }
        true
    }

    /// Takes the text before the first of `marks`, and that mark where it is there.
    fn until(&mut self, marks: &[&'static str]) -> (String, Option<&'static str>) {
        let found = marks.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark))).min();
        if let Some((at, mark)) = found {
            let rest = self.held.split_off(at + mark.len());
            let mut text = std::mem::replace(&mut self.held, rest);
            text.truncate(at);
            return (text, Some(mark));
        }
        let begun = |at: &usize| marks.iter().any(|mark| mark.starts_with(&self.held[*at..]));
        let at = self.held.char_indices().map(|(at, _)| at).find(begun).unwrap_or(self.held.len());
        let held = self.held.split_off(at);
        (std::mem::replace(&mut self.held, held), None)
    }
}

fn thought(text: &str) -> Option<Part> {
    (!text.is_empty()).then(|| Part::Thought(text.to_owned()))
}

/// `call:NAME{…}`.
fn call(text: &str) -> Option<Part> {
    let (name, _) = text.trim().strip_prefix("call:")?.split_once('{')?;
    let mut rest = Rest(text[text.find('{')?..].trim());
    let arguments = rest.object(DEPTH)?;
    let name = name.trim();
    let whole = rest.0.is_empty() && !name.is_empty();
    whole.then(|| Part::Call(ToolCall { id: String::new(), name: name.to_owned(), arguments }))
}

/// Arguments that are still to be read. Nothing where they are not in the notation.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    /// Whether `text` comes next; then it is taken.
    fn take(&mut self, text: &str) -> bool {
        let rest = self.0.trim_start().strip_prefix(text);
        self.0 = rest.unwrap_or(self.0);
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
            let key = match self.take(QUOTE) {
                true => self.before(QUOTE)?,
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
        if self.take(QUOTE) {
            return Some(self.before(QUOTE)?.into());
        }
        match self.0.trim_start().chars().next()? {
            '{' => Some(self.object(depth)?.into()),
            '[' => Some(self.list(depth)?.into()),
            _ => {
                // A number, a boolean, null; a model may leave out a text's quotes.
                let bare = self.until(&[',', '}', ']'])?;
                Some(serde_json::from_str(bare).unwrap_or_else(|_| bare.into()))
            }
        }
    }

    /// The text before `mark`, which is taken too.
    fn before(&mut self, mark: &str) -> Option<&'a str> {
        let (text, rest) = self.0.split_once(mark)?;
        self.0 = rest;
        Some(text)
    }

    /// The text before one of `ends`, trimmed; none where it is empty.
    fn until(&mut self, ends: &[char]) -> Option<&'a str> {
        let at = self.0.find(ends)?;
        let (text, rest) = self.0.split_at(at);
        self.0 = rest;
        Some(text.trim()).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tools;
    use super::*;

    fn read(place: Place, text: &str, pieces: usize) -> Vec<Part> {
        let mut parts = ReplyParts { place, held: String::new() };
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let mut found: Vec<Part> =
            chars.chunks(pieces).flat_map(|piece| parts.push(&piece.concat())).collect();
        found.extend(parts.finish());
        // Neighbours as one, however they came.
        let mut joined: Vec<Part> = Vec::new();
        for part in found {
            match (joined.last_mut(), part) {
                (Some(Part::Words(before)), Part::Words(more)) => *before += &more,
                (Some(Part::Thought(before)), Part::Thought(more)) => *before += &more,
                (_, part) => joined.push(part),
            }
        }
        joined
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
    fn a_reply_is_taken_apart() {
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

    /// What the layout writes for a call is read as that call.
    #[test]
    fn calls_are_what_was_written() {
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

    /// Nothing of a reply is lost, and nothing of it can hang or overflow.
    #[test]
    fn what_is_no_call_stays_text() {
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
}
