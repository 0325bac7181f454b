//! Function calls as Python writes them: `[weather(city="Lima", days=3), time()]`.

use serde_json::{Map, Value};

use crate::data::digits;
use crate::data::template::ToolCall;

/// Most lists and objects inside each other.
const DEEPEST: usize = 64;

/// The calls in `text`, in a list or alone; empty if it is anything else.
pub(super) fn parse(text: &str) -> Vec<ToolCall> {
    let mut reader = Reader { rest: text.trim(), depth: 0 };
    let calls = match reader.takes('[') {
        true => reader.list(']', Reader::call),
        false => reader.call().map(|call| vec![call]),
    };
    calls.filter(|_| reader.rest.trim().is_empty()).unwrap_or_default()
}

/// Text that is read from the front.
struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Reader<'a> {
    /// Takes a sign, and spaces in front of it; false if something else comes.
    fn takes(&mut self, sign: char) -> bool {
        let rest = self.rest.trim_start().strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// The longest piece of signs that `belongs`, behind spaces; `None` if it is empty.
    fn word(&mut self, belongs: fn(char) -> bool) -> Option<&'a str> {
        let text = self.rest.trim_start();
        let (word, rest) = text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()));
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    /// Items between commas, up to `end`. A comma may follow the last.
    fn list<T>(&mut self, end: char, item: fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        self.depth += 1;
        let mut items = Vec::new();
        while self.depth <= DEEPEST && !self.takes(end) {
            items.push(item(self)?);
            if !self.takes(',') {
                self.takes(end).then_some(())?;
                break;
            }
        }
        self.depth -= 1;
        (self.depth < DEEPEST).then_some(items)
    }

    /// `NAME(KEY=VALUE, …)`.
    fn call(&mut self) -> Option<ToolCall> {
        let name = self.word(|c| c.is_alphanumeric() || "_.-".contains(c))?;
        self.takes('(').then_some(())?;
        let arguments = unique(self.list(')', Reader::argument)?)?;
        Some(ToolCall { id: String::new(), name: name.to_owned(), arguments })
    }

    /// `KEY=VALUE`.
    fn argument(&mut self) -> Option<(String, Value)> {
        let key = self.word(|c| c.is_alphanumeric() || c == '_')?;
        self.takes('=').then_some(())?;
        Some((key.to_owned(), self.value()?))
    }

    /// `"KEY": VALUE`.
    fn field(&mut self) -> Option<(String, Value)> {
        let key = self.text()?;
        self.takes(':').then_some(())?;
        Some((key, self.value()?))
    }

    fn value(&mut self) -> Option<Value> {
        match self.rest.trim_start().chars().next()? {
            '"' | '\'' => self.text().map(Value::String),
            '[' => {
                self.takes('[');
                self.list(']', Reader::value).map(Value::Array)
            }
            '{' => {
                self.takes('{');
                unique(self.list('}', Reader::field)?).map(Value::Object)
            }
            _ => match self.word(|c| c.is_alphanumeric() || "+-.".contains(c))? {
                "True" | "true" => Some(true.into()),
                "False" | "false" => Some(false.into()),
                "None" | "null" => Some(Value::Null),
                number => digits::parse(number).ok(),
            },
        }
    }

    /// A text in single or double quotes.
    fn text(&mut self) -> Option<String> {
        let text = self.rest.trim_start();
        let quote = text.chars().next().filter(|c| "\"'".contains(*c))?;
        let mut chars = text.char_indices().skip(1);
        let mut out = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = &text[at + 1..];
                    return Some(out);
                }
                '\\' => match chars.next()?.1 {
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    'r' => out.push('\r'),
                    'u' => {
                        let digits: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
                        out.push(char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?);
                    }
                    c @ ('\\' | '"' | '\'') => out.push(c),
                    // Python keeps the backslash of what is no escape.
                    c => out.extend(['\\', c]),
                },
                c => out.push(c),
            }
        }
        None
    }
}

/// Fields by name; `None` if two have one name.
fn unique(fields: Vec<(String, Value)>) -> Option<Map<String, Value>> {
    let count = fields.len();
    let map: Map<String, Value> = fields.into_iter().collect();
    (map.len() == count).then_some(map)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_read_as_python_reads_them() {
        let read = |text: &str| -> Vec<(String, Value)> {
            parse(text).into_iter().map(|call| (call.name, Value::Object(call.arguments))).collect()
        };
        let weather = |arguments: Value| vec![("weather".to_owned(), arguments)];
        for (text, expected) in [
            ("[weather(city=\"Lima\", days=3)]", weather(json!({"city": "Lima", "days": 3}))),
            (" weather( city = 'La \"Paz\"\\n' , ) ", weather(json!({"city": "La \"Paz\"\n"}))),
            (
                "[weather(a=[1, -2.5, True, None], b={'x': {\"y\": []}})]",
                weather(json!({"a": [1, -2.5, true, null], "b": {"x": {"y": []}}})),
            ),
            ("[weather(a='\\u00e9\\d')]", weather(json!({"a": "é\\d"}))),
            ("[a.b(), weather()]", [vec![("a.b".into(), json!({}))], weather(json!({}))].concat()),
            ("[]", vec![]),
            ("[weather(city=\"Lima\")] then", vec![]),
            ("weather(city=Lima)", vec![]),
            ("weather(a=1, a=2)", vec![]),
            ("weather(city=\"Lima", vec![]),
            ("print", vec![]),
        ] {
            assert_eq!(read(text), expected, "{text:?}");
        }
        assert_eq!(parse("pay(id=12345678901234567890123)").len(), 1);
        let deep = |n: usize| parse(&format!("f(a={}{})", "[".repeat(n), "]".repeat(n))).len();
        assert_eq!((deep(60), deep(100_000)), (1, 0));
    }
}
