//! The functions of Go templates: those of `text/template`, and Ollama's `json`. Its `currentDate` belongs to the evaluation.

use std::cmp::Ordering;

use super::GoError;
use super::value::{Value, go_json};

/// Largest width or precision of a formatted value.
const MAX_WIDTH: usize = 999;

/// The result of a function that evaluates all of its arguments.
pub(super) fn call(name: &str, arguments: &[Value]) -> Result<Value, GoError> {
    match (name, arguments) {
        ("not", [value]) => Ok(Value::Bool(!value.is_true())),
        ("len", [value]) => match value.len() {
            Some(len) => Ok(Value::Int(len as i64)),
            None => Err(GoError::wrong(format!("len of {}", value.display()))),
        },
        ("eq", [first, others @ ..]) if !others.is_empty() => {
            for other in others {
                if equal(first, other)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        ("ne", [a, b]) => Ok(Value::Bool(!equal(a, b)?)),
        ("lt", [a, b]) => Ok(Value::Bool(order(a, b)? == Ordering::Less)),
        ("le", [a, b]) => Ok(Value::Bool(order(a, b)? != Ordering::Greater)),
        ("gt", [a, b]) => Ok(Value::Bool(order(a, b)? == Ordering::Greater)),
        ("ge", [a, b]) => Ok(Value::Bool(order(a, b)? != Ordering::Less)),
        ("index", [value, indices @ ..]) => {
            indices.iter().try_fold(value.clone(), |value, at| index(&value, at))
        }
        ("slice", [value, bounds @ ..]) => slice(value, bounds),
        ("json", [value]) => Ok(Value::text(go_json(&value.json()))),
        ("print", values) => Ok(Value::text(print(values))),
        ("println", values) => {
            let texts: Vec<String> = values.iter().map(printed).collect();
            Ok(Value::text(texts.join(" ") + "\n"))
        }
        ("printf", [Value::Text(format), values @ ..]) => Ok(Value::text(printf(format, values)?)),
        (
            "not" | "len" | "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "index" | "slice" | "json" | "printf",
            _,
        ) => Err(GoError::wrong(format!("{name} of {} arguments", arguments.len()))),
        _ => Err(GoError::unsupported(format!("the function {name}"))),
    }
}

/// The text of a value in `print` and its like.
fn printed(value: &Value) -> String {
    if matches!(value, Value::Nil) { "<nil>".into() } else { value.display() }
}

/// Texts beside each other have no space between them, other values do.
fn print(values: &[Value]) -> String {
    let mut out = String::new();
    let mut text_before = true;
    for (at, value) in values.iter().enumerate() {
        let text = matches!(value, Value::Text(_));
        if at > 0 && !text && !text_before {
            out.push(' ');
        }
        out += &printed(value);
        text_before = text;
    }
    out
}

/// The verbs `%s`, `%v`, `%d`, `%q` and `%%` with a width.
fn printf(format: &str, values: &[Value]) -> Result<String, GoError> {
    let (mut out, mut values) = (String::new(), values.iter());
    let mut chars = format.chars().peekable();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        let left = chars.next_if_eq(&'-').is_some();
        let zero = chars.peek() == Some(&'0');
        let mut width = 0;
        while let Some(digit) = chars.peek().and_then(|char| char.to_digit(10)) {
            width = (width * 10 + digit as usize).min(MAX_WIDTH);
            chars.next();
        }
        let verb = chars.next();
        if verb == Some('%') {
            out.push('%');
            continue;
        }
        let value = values.next().ok_or_else(|| GoError::wrong("printf with too few arguments"))?;
        let text = match (verb, value) {
            (Some('s' | 'v'), value) => printed(value),
            (Some('d'), Value::Int(value)) => value.to_string(),
            (Some('q'), Value::Text(text)) => format!("{text:?}"),
            _ => return Err(GoError::unsupported(format!("the format {format:?} of printf"))),
        };
        match (left, zero) {
            (true, _) => out.push_str(&format!("{text:<width$}")),
            (false, true) => out.push_str(&format!("{text:0>width$}")),
            (false, false) => out.push_str(&format!("{text:>width$}")),
        }
    }
    match values.next() {
        None => Ok(out),
        Some(_) => Err(GoError::wrong("printf with too many arguments")),
    }
}

fn equal(a: &Value, b: &Value) -> Result<bool, GoError> {
    match (a, b) {
        (Value::Nil, Value::Nil) => Ok(true),
        (Value::Nil, _) | (_, Value::Nil) => Ok(false),
        (Value::Bool(a), Value::Bool(b)) => Ok(a == b),
        _ => Ok(order(a, b)? == Ordering::Equal),
    }
}

fn order(a: &Value, b: &Value) -> Result<Ordering, GoError> {
    let found = match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
        (Value::Text(a), Value::Text(b)) => Some(a.cmp(b)),
        _ => None,
    };
    found.ok_or_else(|| GoError::wrong(format!("{} compared with {}", a.display(), b.display())))
}

/// A position in something of length `len`; `len` itself if `end` is set.
fn position(value: &Value, len: usize, end: bool) -> Result<usize, GoError> {
    match value {
        Value::Int(at) if *at >= 0 && (*at as usize) < len + usize::from(end) => Ok(*at as usize),
        _ => Err(GoError::wrong(format!("the index {} of {len} items", value.display()))),
    }
}

fn index(value: &Value, at: &Value) -> Result<Value, GoError> {
    match value {
        Value::List(items, range) => Ok(items[range.start + position(at, range.len(), false)?].clone()),
        Value::Text(text) => Ok(Value::Int(i64::from(text.as_bytes()[position(at, text.len(), false)?]))),
        _ => Err(GoError::wrong(format!("index of {}", value.display()))),
    }
}

fn slice(value: &Value, bounds: &[Value]) -> Result<Value, GoError> {
    let len = value.len().ok_or_else(|| GoError::wrong(format!("slice of {}", value.display())))?;
    let (start, end) = match bounds {
        [] => (0, len),
        [start] => (position(start, len, true)?, len),
        [start, end] => (position(start, len, true)?, position(end, len, true)?),
        _ => return Err(GoError::unsupported("slice with three bounds")),
    };
    if start > end {
        return Err(GoError::wrong(format!("slice from {start} to {end}")));
    }
    match value {
        Value::List(items, range) => Ok(Value::List(items.clone(), range.start + start..range.start + end)),
        Value::Text(text) => match text.get(start..end) {
            Some(part) => Ok(Value::text(part)),
            None => Err(GoError::unsupported("a slice through a character")),
        },
        _ => Err(GoError::wrong(format!("slice of {}", value.display()))),
    }
}
