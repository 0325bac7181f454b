//! Parses TOML, JSON and overrides into one tree in which every key and value has its position in the text.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use toml::de::{DeTable, DeValue};

use super::error::{Place, RecipeError, absolute};
use crate::files;

/// A TOML string that has this text.
pub fn toml_string(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

/// The text of a recipe file and its syntax: JSON if its name ends in `.json`, otherwise TOML.
pub(super) fn text_of(path: &Path) -> Result<(String, Syntax), RecipeError> {
    let text =
        files::read_to_string(path).map_err(|source| RecipeError::Read { path: absolute(path), source })?;
    let is_json = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
    Ok((text, if is_json { Syntax::Json } else { Syntax::Toml }))
}

/// A key that was looked up, the schema of its values, and its effect.
pub(super) struct Seen {
    pub section: &'static str,
    pub key: String,
    pub schema: serde_json::Value,
    pub effect: Effect,
}

/// The effect that a new value of a key has on a run that is continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The result, from the first step on: the run cannot be continued.
    Result,
    /// How far the run goes, or how large its later updates are. The adapter's shape and the samples of the steps so far do not depend on it.
    LaterSteps,
    /// Nothing, except by the rounding of another device or other kernels. Base and samples are compared by digest, not by path. Recomputed
    /// activations are bit-identical to kept ones, and so are results with experts in host memory. A memory limit that splits feed-forwards
    /// or attention into smaller pieces changes gradients only by rounding.
    Harmless,
}

/// Syntax of a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// TOML 1.1.
    Toml,
    /// JSON, with sections as objects.
    Json,
}

/// Deeper nesting of lists and tables is an error: no key needs more than a list in a table.
const MAX_DEPTH: usize = 8;

/// The origin of a key or value.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    /// Byte offset in the text.
    Text(usize),
    /// Index of the override.
    Override(usize),
}

/// A value with its origin.
pub(super) struct Node {
    pub value: Value,
    pub origin: Origin,
}

/// A value that both TOML and JSON can express.
pub(super) enum Value {
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Table(Vec<Entry>),
    /// A value that no key takes (a date, null, an integer beyond 64 bits), described in words.
    Other(String),
}

/// A key with its value.
pub(super) struct Entry {
    pub key: String,
    pub origin: Origin,
    pub node: Node,
}

/// A parsed recipe with its overrides applied.
pub(super) struct Source<'a> {
    name: &'a str,
    text: &'a str,
    overrides: Vec<String>,
    pub entries: Vec<Entry>,
    /// Every key that was looked up, for the schema.
    pub seen: RefCell<Vec<Seen>>,
}

impl<'a> Source<'a> {
    pub fn parse<S: AsRef<str>>(
        text: &'a str,
        syntax: Syntax,
        name: &'a str,
        overrides: &[(S, S)],
    ) -> Result<Source<'a>, RecipeError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let show = |(key, value): &(S, S)| format!("--set {}={}", key.as_ref(), value.as_ref());
        let overridden = overrides.iter().map(show).collect();
        let mut source =
            Source { name, text, overrides: overridden, entries: Vec::new(), seen: RefCell::default() };
        source.entries = match syntax {
            Syntax::Toml => source.toml_entries()?,
            Syntax::Json => source.json_entries()?,
        };
        for (index, (key, value)) in overrides.iter().enumerate() {
            source.apply(index, key.as_ref(), value.as_ref())?;
        }
        Ok(source)
    }

    /// Name of the recipe in messages.
    pub fn name(&self) -> String {
        self.name.to_owned()
    }

    pub fn place(&self, origin: Origin) -> Place {
        match origin {
            Origin::Override(index) => Place { name: self.overrides[index].clone(), position: None },
            Origin::Text(offset) => {
                // A parser may point past the end or, in an error, into the middle of a character.
                let before = String::from_utf8_lossy(&self.text.as_bytes()[..offset.min(self.text.len())]);
                let line = before.matches('\n').count() + 1;
                let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
                Place { name: self.name(), position: Some((line as u32, column as u32)) }
            }
        }
    }

    fn toml_entries(&self) -> Result<Vec<Entry>, RecipeError> {
        let table = DeTable::parse(self.text).map_err(|error| RecipeError::Syntax {
            place: self.place(Origin::Text(error.span().map_or(0, |span| span.start))),
            message: with_hint(error.message().trim().replace('\n', ", ")),
        })?;
        Ok(toml_table(table.get_ref(), &|offset| Origin::Text(offset)))
    }

    fn json_entries(&self) -> Result<Vec<Entry>, RecipeError> {
        let root: &RawValue = serde_json::from_str(self.text).map_err(|error| self.json_error(0, &error))?;
        match self.json_node(root, 0)?.value {
            Value::Table(entries) => Ok(entries),
            other => Err(RecipeError::Syntax {
                place: self.place(Origin::Text(0)),
                message: format!("expected an object of sections, found {}", other.describe()),
            }),
        }
    }

    fn json_node(&self, raw: &RawValue, depth: usize) -> Result<Node, RecipeError> {
        let text = raw.get();
        let start = self.offset(raw);
        let syntax =
            |message: String| RecipeError::Syntax { place: self.place(Origin::Text(start)), message };
        let failed = |error: serde_json::Error| self.json_error(start, &error);
        if depth > MAX_DEPTH {
            return Err(syntax(format!("lists and objects are nested more than {MAX_DEPTH} levels deep")));
        }
        let value = match text.as_bytes().first() {
            Some(b'{') => {
                let members: Members = serde_json::from_str(text).map_err(failed)?;
                let mut entries: Vec<Entry> = Vec::with_capacity(members.0.len());
                let mut seen = HashSet::new();
                for (raw_key, value) in members.0 {
                    // Slices of `text` are slices of `self.text`, so offsets can be computed from them.
                    let key: String = serde_json::from_str(raw_key.get()).map_err(failed)?;
                    let origin = Origin::Text(self.offset(raw_key));
                    if !seen.insert(key.clone()) {
                        let message = format!("duplicate key `{key}`");
                        return Err(RecipeError::Syntax { place: self.place(origin), message });
                    }
                    entries.push(Entry { key, origin, node: self.json_node(value, depth + 1)? });
                }
                Value::Table(entries)
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(text).map_err(failed)?;
                Value::List(
                    items
                        .into_iter()
                        .map(|item| self.json_node(item, depth + 1))
                        .collect::<Result<_, _>>()?,
                )
            }
            Some(b'"') => Value::Text(serde_json::from_str(text).map_err(failed)?),
            Some(b't' | b'f') => Value::Boolean(text == "true"),
            Some(b'n') => Value::Other("null".into()),
            _ if text.contains(['.', 'e', 'E']) => {
                Value::Float(text.parse().map_err(|_| syntax("not a number".into()))?)
            }
            _ => integer(text, 10),
        };
        Ok(Node { value, origin: Origin::Text(start) })
    }

    /// Byte offset of a borrowed value in the text.
    fn offset(&self, raw: &RawValue) -> usize {
        raw.get().as_ptr() as usize - self.text.as_ptr() as usize
    }

    /// Converts a parser error. `start`: byte offset of the parsed part in the text.
    fn json_error(&self, start: usize, error: &serde_json::Error) -> RecipeError {
        let part = &self.text[start..];
        let line_start: usize =
            part.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or(&message).to_owned();
        let place = self.place(Origin::Text(start + line_start + error.column().saturating_sub(1)));
        RecipeError::Syntax { place, message }
    }

    /// Sets `section.key`. Keys and types are checked later, like those of the file.
    fn apply(&mut self, index: usize, path: &str, text: &str) -> Result<(), RecipeError> {
        let origin = Origin::Override(index);
        let node = self.override_node(index, text)?;
        let Some((section, key)) = path.split_once('.') else {
            self.entries.retain(|e| e.key != path);
            self.entries.push(Entry { key: path.to_owned(), origin, node });
            return Ok(());
        };
        let position = self.entries.iter().position(|e| e.key == section).unwrap_or_else(|| {
            let node = Node { value: Value::Table(Vec::new()), origin };
            self.entries.push(Entry { key: section.to_owned(), origin, node });
            self.entries.len() - 1
        });
        match &mut self.entries[position].node.value {
            Value::Table(entries) => {
                entries.retain(|e| e.key != key);
                entries.push(Entry { key: key.to_owned(), origin, node });
            }
            Value::List(_) => {
                let message =
                    format!("[[{section}]] is a list; set it as a whole: --set {section}='[{{ … }}]'");
                return Err(RecipeError::Conflict { place: self.place(origin), key: path.into(), message });
            }
            // A section that is none is an error of its own.
            _ => {}
        }
        Ok(())
    }

    /// A TOML value, or else the bare text: `model:tag` and `runs/a` need no quotes.
    fn override_node(&self, index: usize, text: &str) -> Result<Node, RecipeError> {
        let origin = Origin::Override(index);
        match DeValue::parse(text) {
            Ok(value) if !matches!(value.get_ref(), DeValue::Datetime(_)) => {
                Ok(Node { value: toml_value(value.get_ref(), &|_| origin), origin })
            }
            Err(error) if text.starts_with(['[', '{', '"', '\'']) => Err(RecipeError::Syntax {
                place: self.place(origin),
                message: with_hint(error.message().trim().replace('\n', ", ")),
            }),
            _ => Ok(Node { value: Value::Text(text.to_owned()), origin }),
        }
    }
}

/// Adds the way out to an error about a backslash, which is most often in a Windows path.
fn with_hint(message: String) -> String {
    match message.contains("escape") || message.contains("unicode") {
        true => format!("{message}; write a path with \\ in 'single quotes', or with / instead"),
        false => message,
    }
}

fn toml_table(table: &DeTable<'_>, origin: &dyn Fn(usize) -> Origin) -> Vec<Entry> {
    let mut items: Vec<_> = table.iter().collect();
    items.sort_by_key(|(key, _)| key.span().start); // so that the first error is the topmost one
    let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| Entry {
        key: ToString::to_string(key.get_ref() as &std::borrow::Cow<'_, str>),
        origin: origin(key.span().start),
        node: Node { value: toml_value(value.get_ref(), origin), origin: origin(value.span().start) },
    };
    items.into_iter().map(entry).collect()
}

fn toml_value(value: &DeValue<'_>, origin: &dyn Fn(usize) -> Origin) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(digits) => integer(digits.as_str(), digits.radix()),
        DeValue::Float(text) => {
            text.as_str().parse().map_or_else(|_| Value::Other(text.to_string()), Value::Float)
        }
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Datetime(date) => Value::Other(format!("the date {date}")),
        DeValue::Array(items) => {
            let node = |item: &toml::Spanned<DeValue<'_>>| Node {
                value: toml_value(item.get_ref(), origin),
                origin: origin(item.span().start),
            };
            Value::List(items.iter().map(node).collect())
        }
        DeValue::Table(table) => Value::Table(toml_table(table, origin)),
    }
}

fn integer(digits: &str, radix: u32) -> Value {
    i64::from_str_radix(digits, radix)
        .map_or_else(|_| Value::Other(format!("the integer {digits}, beyond 64 bits")), Value::Integer)
}

impl Value {
    /// Describes the value in words, for messages.
    pub fn describe(&self) -> String {
        match self {
            Value::Boolean(flag) => flag.to_string(),
            Value::Integer(number) => format!("the integer {number}"),
            Value::Float(number) => format!("the number {number}"),
            Value::Text(text) => format!("the string {text:?}"),
            Value::List(_) => "a list".into(),
            Value::Table(_) => "a table".into(),
            Value::Other(words) => words.clone(),
        }
    }
}

/// The members of a JSON object in order, with keys and values as text.
struct Members<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Vec<(&'de RawValue, &'de RawValue)>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(MembersVisitor).map(Members)
    }
}
