//! Integers of more than 64 bits. serde_json reads them as rounded floats, which would change ids and amounts without a word. Here they
//! are kept as objects with one key that no text has.

use std::borrow::Cow;
use std::iter::once;

use serde_json::{Map, Value};

/// The key of an integer: it contains a noncharacter.
const KEY: &str = "\u{fdd2}integer";
/// Fewer digits fit 64 bits.
const FEWEST: usize = 19;

/// Parses JSON, and keeps the digits of every integer.
pub fn parse(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text).map(|value| match marked(text) {
        Cow::Borrowed(_) => value,
        Cow::Owned(marked) => serde_json::from_str(&marked).unwrap_or(value),
    })
}

/// The digits of an integer of more than 64 bits.
pub(crate) fn digits(value: &Value) -> Option<&str> {
    let Value::Object(fields) = value else { return None };
    let (key, Value::String(digits)) = fields.iter().next()? else { return None };
    (key == KEY && fields.len() == 1).then_some(digits)
}

/// A value as Go reads it: long integers are rounded.
pub(crate) fn rounded(value: &Value) -> Value {
    match (digits(value), value) {
        (Some(digits), _) => digits.parse::<f64>().map_or(Value::Null, Value::from),
        (_, Value::Array(items)) => items.iter().map(rounded).collect(),
        (_, Value::Object(fields)) => {
            fields.iter().map(|(key, value)| (key.clone(), rounded(value))).collect::<Map<_, _>>().into()
        }
        (_, other) => other.clone(),
    }
}

/// Whether a value has an integer of more than 64 bits.
pub(crate) fn any(value: &Value) -> bool {
    digits(value).is_some()
        || match value {
            Value::Array(items) => items.iter().any(any),
            Value::Object(fields) => fields.values().any(any),
            _ => false,
        }
}

/// A value as JSON, with all digits.
pub fn to_json(value: &Value) -> String {
    if !any(value) {
        return value.to_string();
    }
    let list = |items: Vec<String>, [open, close]: [char; 2]| {
        once(String::from(open)).chain([items.join(",")]).chain([String::from(close)]).collect::<String>()
    };
    match (digits(value), value) {
        (Some(digits), _) => digits.to_owned(),
        (_, Value::Array(items)) => list(items.iter().map(to_json).collect(), ['[', ']']),
        (_, Value::Object(fields)) => {
            let field =
                |(key, value): (&String, &Value)| format!("{}:{}", Value::from(&**key), to_json(value));
            list(fields.iter().map(field).collect(), ['{', '}'])
        }
        (_, other) => other.to_string(),
    }
}

/// JSON with every long integer as an object. `text`: valid JSON.
fn marked(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let (mut out, mut copied, mut at) = (String::new(), 0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = string_end(bytes, at),
            b'-' | b'0'..=b'9' => {
                let start = at;
                at += bytes[start..]
                    .iter()
                    .take_while(|b| matches!(b, b'-' | b'+' | b'.' | b'0'..=b'9' | b'e' | b'E'))
                    .count();
                let number = &text[start..at];
                if number.len() >= FEWEST && is_long(number) {
                    out += &text[copied..start];
                    out += &Value::Object(Map::from_iter([(KEY.to_owned(), number.into())])).to_string();
                    copied = at;
                }
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return text.into();
    }
    (out + &text[copied..]).into()
}

fn is_long(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    digits.bytes().all(|b| b.is_ascii_digit())
        && number.parse::<i64>().is_err()
        && number.parse::<u64>().is_err()
}

/// The offset behind the string that starts at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    at += 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

#[cfg(test)]
mod tests {
    use super::{any, digits, parse, to_json};

    #[test]
    fn digits_of_long_integers_are_kept() {
        for text in [
            "12345678901234567890123",
            "-9223372036854775809",
            "18446744073709551616",
            r#"{"a":[1,{"b":115792089237316195423570985008687907853269984665640564039457584007913129639935}],"c":"\"12345678901234567890123"}"#,
        ] {
            let value = parse(text).expect("JSON");
            assert!(any(&value), "{text}");
            assert_eq!(to_json(&value), text);
        }
        for text in
            ["18446744073709551615", "-9223372036854775808", "1.5", "1e+22", r#""12345678901234567890123""#]
        {
            let value = parse(text).expect("JSON");
            assert!(!any(&value), "{text}");
            assert_eq!(value, serde_json::from_str::<serde_json::Value>(text).expect("JSON"));
        }
        assert_eq!(digits(&parse("100000000000000000000").expect("JSON")), Some("100000000000000000000"));
        assert!(parse("1234567890123456789012,").is_err());
    }
}
