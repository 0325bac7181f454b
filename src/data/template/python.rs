//! The parts of Python that Jinja templates use: printing values, `json.dumps`, `str.strip`, `strftime`.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Kwargs, Object, ObjectRepr, Serde, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde::{Serialize, Serializer};

use super::date::Date;
use super::limits;
use crate::data::digits;

/// Python writes numbers from this power of ten on with an exponent.
const EXPONENT: i32 = 16;

/// The shortest digits that round-trip to `x`, with an exponent below 1e-4 and from `10^exponent_from` on. Only that upper
/// bound differs between Go and Python. Adds no `.0`.
pub(crate) fn float(x: f64, exponent_from: i32) -> String {
    if !x.is_finite() {
        return if x.is_nan() { "nan".into() } else { format!("{}inf", if x < 0.0 { "-" } else { "" }) };
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').expect("`e` stands in every scientific number");
    let exponent: i32 = exponent.parse().expect("an exponent is an integer");
    if x == 0.0 || (-4..exponent_from).contains(&exponent) {
        return x.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn python_float(x: f64) -> String {
    let text = float(x, EXPONENT);
    if x.is_finite() && text.bytes().all(|b| b.is_ascii_digit() || b == b'-') { text + ".0" } else { text }
}

/// An integer of more than 128 bits.
#[derive(Debug)]
struct Integer(String);

impl Object for Integer {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The fields of an object, each as a value of the template engine.
struct Fields<'a>(&'a serde_json::Map<String, serde_json::Value>);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, field)| (key, value(field))))
    }
}

/// JSON as a value of the template engine, with all digits of its integers.
pub(super) fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match (digits::digits(json), json) {
        (Some(digits), _) => match (digits.parse::<i128>(), digits.parse::<u128>()) {
            (Ok(number), _) => number.into(),
            (_, Ok(number)) => number.into(),
            _ => Value::from_object(Integer(digits.to_owned())),
        },
        _ if !digits::any(json) => Value::from(Serde(json)),
        (_, Json::Array(items)) => items.iter().map(value).collect(),
        (_, Json::Object(fields)) => Value::from(Serde(Fields(fields))),
        _ => Value::from(Serde(json)),
    }
}

/// `str(value)`: the output of `{{ value }}`.
pub(super) fn display(value: &Value) -> Result<String, Error> {
    let text = match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        ValueKind::Undefined => String::new(),
        _ => return repr(value, 0),
    };
    limits::charge(text.len())?;
    Ok(text)
}

fn repr(value: &Value, depth: usize) -> Result<String, Error> {
    limits::check_depth(depth)?;
    let list = |items: Vec<Value>, each: &dyn Fn(&Value) -> Result<String, Error>| {
        Ok::<_, Error>(items.iter().map(each).collect::<Result<Vec<_>, _>>()?.join(", "))
    };
    let text = match value.kind() {
        ValueKind::Undefined => "Undefined".into(),
        ValueKind::None => "None".into(),
        ValueKind::Bool => (if value.is_true() { "True" } else { "False" }).into(),
        ValueKind::Number if !value.is_integer() => {
            python_float(f64::try_from(value.clone()).unwrap_or(f64::NAN))
        }
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq => format!("[{}]", list(items(value), &|item| repr(item, depth + 1))?),
        ValueKind::Map => {
            let entry = |key: &Value| {
                Ok(format!("{}: {}", repr(key, depth + 1)?, repr(&member(value, key), depth + 1)?))
            };
            format!("{{{}}}", list(items(value), &entry)?)
        }
        _ => value.to_string(),
    };
    limits::charge(text.len() + limits::PER_VALUE)?;
    Ok(text)
}

/// A string as Python prints it inside a list.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            '\\' => out += "\\\\",
            c if c == quote => out.extend(['\\', c]),
            c if c.is_ascii_control() => out += &format!("\\x{:02x}", c as u32),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// transformers' `tojson`: `json.dumps(value, ensure_ascii=False, indent=…, separators=…, sort_keys=…)`.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        Some(indent) if indent.is_integer() => {
            Some(" ".repeat(usize::try_from(indent).unwrap_or_default().min(64)))
        }
        Some(indent) => indent.as_str().map(str::to_owned),
        None => None,
    };
    let comma = if indent.is_some() { "," } else { ", " };
    let (mut comma, mut colon) = (comma.to_owned(), ": ".to_owned());
    if let Some(separators) = kwargs.get::<Option<Vec<String>>>("separators")? {
        let [c, k] = &separators[..] else {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators takes two strings"));
        };
        (comma, colon) = (c.clone(), k.clone());
    }
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let mut json = Json { out: String::new(), indent, comma, colon, sort_keys, ascii };
    json.write(value, 1)?;
    Ok(json.out)
}

struct Json {
    out: String,
    indent: Option<String>,
    comma: String,
    colon: String,
    sort_keys: bool,
    ascii: bool,
}

impl Json {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        limits::check_depth(depth)?;
        let before = self.out.len();
        match value.kind() {
            ValueKind::None => self.out += "null",
            ValueKind::Bool => self.out += if value.is_true() { "true" } else { "false" },
            ValueKind::Number if value.is_integer() => self.out += &value.to_string(),
            ValueKind::Number => self.out += &python_float(f64::try_from(value.clone()).unwrap_or(f64::NAN)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = items(value);
                self.list('[', ']', items.len(), depth, |json, i| json.write(&items[i], depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys = items(value);
                if self.sort_keys {
                    keys.sort();
                }
                self.list('{', '}', keys.len(), depth, |json, i| {
                    json.string(&display(&keys[i])?);
                    json.out += &json.colon.clone();
                    json.write(&member(value, &keys[i]), depth + 1)
                })?;
            }
            ValueKind::Plain if value.downcast_object_ref::<Integer>().is_some() => {
                self.out += &value.to_string();
            }
            kind => {
                let problem = format!("tojson: cannot convert {kind} to JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, problem));
            }
        }
        limits::charge(self.out.len() - before + limits::PER_VALUE)
    }

    fn list(
        &mut self,
        open: char,
        close: char,
        len: usize,
        depth: usize,
        mut item: impl FnMut(&mut Json, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for i in 0..len {
            if i > 0 {
                self.out += &self.comma.clone();
            }
            self.line(depth)?;
            item(self, i)?;
        }
        if len > 0 {
            self.line(depth - 1)?;
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            limits::charge(indent.len() * depth)?;
            self.out.push('\n');
            self.out += &indent.repeat(depth);
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        let json = serde_json::to_string(text).expect("a string is JSON");
        for c in json.chars() {
            match c {
                c if self.ascii && !c.is_ascii() => {
                    c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| self.out += &format!("\\u{unit:04x}"));
                }
                // serde_json does not escape it, Python does.
                '\u{7f}' if self.ascii => self.out.push(c),
                c => self.out.push(c),
            }
        }
    }
}

fn items(value: &Value) -> Vec<Value> {
    value.try_iter().map(Iterator::collect).unwrap_or_default()
}

fn member(map: &Value, key: &Value) -> Value {
    map.get_item(key).unwrap_or_default()
}

/// `str.isspace()` of one character: four control characters are spaces there, and not in Rust.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.strip()`.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Characters at which `str.splitlines()` ends a line.
fn ends_line(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// jinja2's filter `indent`: a newline at the end stays, and empty lines stay empty unless `blank`.
pub(super) fn indent(
    text: Value,
    width: Option<Value>,
    first: Option<Value>,
    blank: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let named = |given: Option<Value>, name: &str| match given {
        Some(given) => Ok::<_, Error>(given),
        None => Ok(kwargs.get::<Option<Value>>(name)?.unwrap_or_default()),
    };
    let (width, first, blank) = (named(width, "width")?, named(first, "first")?, named(blank, "blank")?);
    kwargs.assert_all_used()?;
    let indent = match width.as_str() {
        Some(indent) => indent.to_owned(),
        None if width.is_undefined() => " ".repeat(4),
        None => " ".repeat(width.as_usize().unwrap_or_default()),
    };
    let text = display(&text)?.replace("\r\n", "\n");
    let mut out = String::new();
    for (number, line) in text.strip_suffix('\r').unwrap_or(&text).split(ends_line).enumerate() {
        if number > 0 {
            out.push('\n');
        }
        let indented = if number == 0 { first.is_true() } else { blank.is_true() || !line.is_empty() };
        if indented {
            limits::charge(indent.len())?;
            out += &indent;
        }
        out += line;
    }
    Ok(out)
}

/// `date.strftime(format)`, at midnight.
pub(super) fn strftime(date: Date, format: &str) -> Result<String, Error> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    limits::charge(format.len().saturating_mul(10))?; // a weekday is the longest
    let (year, month, day) = date.civil();
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[date.weekday()]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('B') => out += month_name,
            Some('b' | 'h') => out += &month_name[..3],
            Some('A') => out += day_name,
            Some('a') => out += &day_name[..3],
            Some('F') => out += &date.iso(),
            Some('H' | 'M' | 'S') => out += "00",
            Some('%') => out.push('%'),
            other => {
                let found = other.map_or("%".into(), |c| format!("%{c}"));
                let problem =
                    format!("strftime_now: {found} is not supported; expected %Y %y %m %d %B %b %A %a %F");
                return Err(Error::new(ErrorKind::InvalidOperation, problem));
            }
        }
    }
    Ok(out)
}
