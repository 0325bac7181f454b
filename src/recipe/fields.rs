//! Typed access to the keys of a section, with default, type and range.

use std::path::PathBuf;
use std::str::FromStr;

use serde::de::IntoDeserializer;
use serde::de::value::{Error as VariantError, StrDeserializer};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::error::RecipeError;
use super::keys::nearest;
use super::kinds::{one_or_more, variants};
use super::source::{Effect, Entry, Node, Seen, Source, Value};
use crate::adapter::AdapterPath;

/// Values that are planned for later versions.
const PLANNED_VALUES: [(&str, &[&str]); 1] = [("output.export", &["merged-gguf"])];

/// One section of a recipe.
#[derive(Clone, Copy)]
pub(super) struct Section<'a> {
    pub source: &'a Source<'a>,
    pub name: &'static str,
    pub entries: &'a [Entry],
    /// The effect of the keys that are looked up.
    pub effect: Effect,
}

impl Source<'_> {
    /// The section `name`; empty if the recipe does not have it.
    pub fn section(&self, name: &'static str) -> Section<'_> {
        let entries = self.entries.iter().find(|e| e.key == name).map(|e| &e.node.value);
        let entries = if let Some(Value::Table(entries)) = entries { entries.as_slice() } else { &[] };
        Section { source: self, name, entries, effect: Effect::Result }
    }
}

/// Lists of tables, such as `[[data.sources]]`.
impl Source<'_> {
    /// The tables `[[name]]` outside any section. `keys` are the keys that a table may have; `read` reads one table.
    pub fn tables<T>(
        &self,
        name: &'static str,
        keys: &[&str],
        read: impl Fn(&Section) -> Result<T, RecipeError>,
    ) -> Result<Vec<T>, RecipeError> {
        match self.entries.iter().find(|entry| entry.key == name) {
            Some(entry) => self.tables_of(&entry.node, name, keys, Effect::Result, read),
            None => Ok(Vec::new()),
        }
    }

    fn tables_of<T>(
        &self,
        node: &Node,
        name: &'static str,
        keys: &[&str],
        effect: Effect,
        read: impl Fn(&Section) -> Result<T, RecipeError>,
    ) -> Result<Vec<T>, RecipeError> {
        let expected = format!("tables [[{name}]]");
        let wrong = |node: &Node| RecipeError::WrongType {
            place: self.place(node.origin),
            key: name.into(),
            expected: expected.clone(),
            found: node.value.describe(),
        };
        let Value::List(items) = &node.value else { return Err(wrong(node)) };
        if items.is_empty() {
            let expected = format!("at least one of {expected}");
            let place = self.place(node.origin);
            return Err(RecipeError::OutOfRange { place, key: name.into(), found: "[]".into(), expected });
        }
        let mut out = Vec::new();
        for item in items {
            let Value::Table(entries) = &item.value else { return Err(wrong(item)) };
            if let Some(entry) = entries.iter().find(|entry| !keys.contains(&entry.key.as_str())) {
                let hint = match nearest(&entry.key, keys.iter().copied()) {
                    Some(known) => format!("did you mean `{known}`?"),
                    None => format!("it takes {}", keys.join(", ")),
                };
                let what = format!("key `{}` in [[{name}]]", entry.key);
                return Err(RecipeError::Unknown { place: self.place(entry.origin), what, hint });
            }
            out.push(read(&Section { source: self, name, entries, effect })?);
        }
        Ok(out)
    }
}

impl Section<'_> {
    /// The section, for keys that change nothing in the result.
    pub fn harmless(&self) -> Self {
        Section { effect: Effect::Harmless, ..*self }
    }

    /// The section, for keys that a run may change between two steps.
    pub fn continuable(&self) -> Self {
        Section { effect: Effect::LaterSteps, ..*self }
    }

    pub fn boolean(&self, key: &str, default: bool) -> Result<bool, RecipeError> {
        self.note(key, json!({ "type": "boolean" }));
        match self.get(key) {
            None => Ok(default),
            Some(Node { value: Value::Boolean(flag), .. }) => Ok(*flag),
            Some(node) => Err(self.wrong_type(key, node, "true or false")),
        }
    }

    pub fn integer(&self, key: &str, default: u64, least: u64) -> Result<u64, RecipeError> {
        Ok(self.optional_integer(key, least, i64::MAX as u64)?.unwrap_or(default))
    }

    /// A count of at most `u32::MAX`, so that the product of two counts does not overflow.
    pub fn count(&self, key: &str, default: usize, least: usize) -> Result<usize, RecipeError> {
        Ok(self.optional_count(key, least)?.unwrap_or(default))
    }

    pub fn optional_count(&self, key: &str, least: usize) -> Result<Option<usize>, RecipeError> {
        Ok(self.optional_integer(key, least as u64, u64::from(u32::MAX))?.map(|number| number as usize))
    }

    fn optional_integer(&self, key: &str, least: u64, most: u64) -> Result<Option<u64>, RecipeError> {
        self.note(key, json!({ "type": "integer", "minimum": least, "maximum": most }));
        let Some(node) = self.get(key) else { return Ok(None) };
        let Value::Integer(number) = node.value else { return Err(self.wrong_type(key, node, "an integer")) };
        match u64::try_from(number) {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            Ok(large) if large > most => Err(self.out_of_range(key, node, &format!("an integer <= {most}"))),
            _ => Err(self.out_of_range(key, node, &format!("an integer >= {least}"))),
        }
    }

    /// A finite number for which `fits` is true. `expected` describes it in the error.
    pub fn number(
        &self,
        key: &str,
        default: f64,
        expected: &str,
        fits: fn(f64) -> bool,
    ) -> Result<f64, RecipeError> {
        self.note(key, json!({ "type": "number", "$comment": expected }));
        let Some(node) = self.get(key) else { return Ok(default) };
        let number = match node.value {
            Value::Integer(number) => number as f64,
            Value::Float(number) => number,
            _ => return Err(self.wrong_type(key, node, "a number")),
        };
        if number.is_finite() && fits(number) {
            Ok(number)
        } else {
            Err(self.out_of_range(key, node, expected))
        }
    }

    pub fn fraction(&self, key: &str, default: f64) -> Result<f64, RecipeError> {
        self.number(key, default, "a number from 0 to 1", |x| (0.0..=1.0).contains(&x))
    }

    pub fn positive(&self, key: &str, default: f64) -> Result<f64, RecipeError> {
        self.number(key, default, "a number > 0", |x| x > 0.0)
    }

    pub fn not_negative(&self, key: &str, default: f64) -> Result<f64, RecipeError> {
        self.number(key, default, "a number >= 0", |x| x >= 0.0)
    }

    /// A non-empty string.
    pub fn text(&self, key: &str) -> Result<Option<String>, RecipeError> {
        self.note(key, json!({ "type": "string", "minLength": 1 }));
        self.get(key).map(|node| self.text_of(key, node, "a string")).transpose()
    }

    /// A list of non-empty strings.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>, RecipeError> {
        self.note(key, json!({ "type": "array", "items": { "type": "string", "minLength": 1 } }));
        let Some(node) = self.get(key) else { return Ok(None) };
        let Value::List(items) = &node.value else {
            return Err(self.wrong_type(key, node, "a list of strings"));
        };
        items
            .iter()
            .map(|item| self.text_of(key, item, "a list of strings"))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// One path, or a non-empty list of paths.
    pub fn paths(&self, key: &str) -> Result<Option<Vec<PathBuf>>, RecipeError> {
        self.note(key, one_or_more());
        let Some(node) = self.get(key) else { return Ok(None) };
        let texts = match &node.value {
            Value::List(items) if items.is_empty() => {
                return Err(self.out_of_range(key, node, "at least one path"));
            }
            Value::List(items) => items
                .iter()
                .map(|item| self.text_of(key, item, "a list of paths"))
                .collect::<Result<Vec<_>, _>>()?,
            _ => vec![self.text_of(key, node, "a path or a list of paths")?],
        };
        Ok(Some(texts.into_iter().map(PathBuf::from).collect()))
    }

    /// One adapter, or a non-empty list of adapters.
    pub fn adapters(&self, key: &str) -> Result<Vec<AdapterPath>, RecipeError> {
        self.note(key, one_or_more());
        let Some(node) = self.get(key) else { return Ok(Vec::new()) };
        let expected = "the path of an adapter, or a list of them";
        match &node.value {
            Value::List(items) if items.is_empty() => Err(self.out_of_range(key, node, "at least one path")),
            Value::List(items) => items.iter().map(|item| self.parsed_of(key, item, expected)).collect(),
            _ => Ok(vec![self.parsed_of(key, node, expected)?]),
        }
    }

    /// A string that is parsed.
    pub fn parsed<T: FromStr<Err = String>>(&self, key: &str) -> Result<Option<T>, RecipeError> {
        self.note(key, json!({ "type": "string", "minLength": 1 }));
        self.get(key).map(|node| self.parsed_of(key, node, "a string")).transpose()
    }

    /// The name of a variant of `T`.
    pub fn choice<T: for<'de> Deserialize<'de>>(&self, key: &str, default: T) -> Result<T, RecipeError> {
        self.note(key, json!({ "enum": variants::<T>() }));
        self.get(key).map_or(Ok(default), |node| self.choice_of(key, node, "a string"))
    }

    /// A list of names of variants of `T`, without duplicates.
    pub fn choices<T>(&self, key: &str, default: &[T]) -> Result<Vec<T>, RecipeError>
    where
        T: for<'de> Deserialize<'de> + Serialize + Copy + PartialEq,
    {
        let items = json!({ "enum": variants::<T>() });
        self.note(key, json!({ "type": "array", "uniqueItems": true, "items": items }));
        let Some(node) = self.get(key) else { return Ok(default.to_vec()) };
        let Value::List(items) = &node.value else {
            let names = variants::<T>();
            let meant = match &node.value {
                Value::Text(text) => {
                    let starts =
                        names.iter().find(|name| name.starts_with(text.as_str())).map(String::as_str);
                    starts.or(nearest(text, names.iter().map(String::as_str))).map(str::to_owned)
                }
                _ => None,
            };
            let example = meant.or(names.first().cloned()).unwrap_or_default();
            return Err(self.wrong_type(key, node, &format!("a list of strings such as [\"{example}\"]")));
        };
        let mut choices = Vec::new();
        for item in items {
            let choice = self.choice_of(key, item, "a list of strings")?;
            if choices.contains(&choice) {
                return Err(self.out_of_range(key, item, "each name once"));
            }
            choices.push(choice);
        }
        Ok(choices)
    }

    /// Whether the key is set.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// A list of tables at `name`, which is `section.key`. `keys` are the keys that a table may have; `read` reads one table.
    pub fn tables<T>(
        &self,
        name: &'static str,
        keys: &[&str],
        read: impl Fn(&Section) -> Result<T, RecipeError>,
    ) -> Result<Vec<T>, RecipeError> {
        let key = name.rsplit('.').next().unwrap_or(name);
        self.note(key, json!({ "type": "array", "minItems": 1 }));
        match self.get(key) {
            Some(node) => self.source.tables_of(node, name, keys, self.effect, read),
            None => Ok(Vec::new()),
        }
    }

    /// Notes that `key` was looked up, and the schema of its values.
    pub(super) fn note(&self, key: &str, schema: serde_json::Value) {
        let seen = Seen { section: self.name, key: key.to_owned(), schema, effect: self.effect };
        self.source.seen.borrow_mut().push(seen);
    }

    pub fn missing(&self, key: &str, expected: &str) -> RecipeError {
        RecipeError::Missing { name: self.source.name(), key: self.path(key), expected: expected.into() }
    }

    /// A contradiction at `key`, which must be set.
    pub fn conflict(&self, key: &str, message: &str) -> RecipeError {
        let origin = self.get(key).expect("only a key that is set contradicts another").origin;
        RecipeError::Conflict {
            place: self.source.place(origin),
            key: self.path(key),
            message: message.into(),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entries.iter().find(|e| e.key == key).map(|e| &e.node)
    }

    pub(super) fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    pub(super) fn text_of(&self, key: &str, node: &Node, expected: &str) -> Result<String, RecipeError> {
        match &node.value {
            Value::Text(text) if !text.is_empty() => Ok(text.clone()),
            Value::Text(_) => Err(self.out_of_range(key, node, "a non-empty string")),
            _ => Err(self.wrong_type(key, node, expected)),
        }
    }

    fn parsed_of<T: FromStr<Err = String>>(
        &self,
        key: &str,
        node: &Node,
        expected: &str,
    ) -> Result<T, RecipeError> {
        let place = self.source.place(node.origin);
        let path = self.path(key);
        let parsed = self.text_of(key, node, expected)?.parse();
        parsed.map_err(|message| RecipeError::Conflict { place, key: path, message })
    }

    fn choice_of<T: for<'de> Deserialize<'de>>(
        &self,
        key: &str,
        node: &Node,
        expected: &str,
    ) -> Result<T, RecipeError> {
        let name = self.text_of(key, node, expected)?;
        let path = self.path(key);
        let place = self.source.place(node.origin);
        if PLANNED_VALUES.iter().any(|(planned, values)| *planned == path && values.contains(&name.as_str()))
        {
            return Err(RecipeError::NotSupported { place, what: format!("{path} = {name:?}") });
        }
        let deserializer: StrDeserializer<VariantError> = name.as_str().into_deserializer();
        T::deserialize(deserializer).map_err(|error| {
            // serde writes "unknown variant `x`, expected `y` or `z`"; only the second half is needed.
            let message = error.to_string();
            let expected = message.split_once(", expected ").map_or(message.as_str(), |(_, names)| names);
            self.out_of_range(key, node, expected)
        })
    }

    pub(super) fn wrong_type(&self, key: &str, node: &Node, expected: &str) -> RecipeError {
        RecipeError::WrongType {
            place: self.source.place(node.origin),
            key: self.path(key),
            expected: expected.into(),
            found: node.value.describe(),
        }
    }

    pub(super) fn out_of_range(&self, key: &str, node: &Node, expected: &str) -> RecipeError {
        let found = match &node.value {
            Value::Integer(number) => number.to_string(),
            // Without hundreds of zeros.
            Value::Float(number) if *number != 0.0 && !(1e-9..1e15).contains(&number.abs()) => {
                format!("{number:e}")
            }
            Value::Float(number) => number.to_string(),
            Value::Text(text) => format!("{text:?}"),
            Value::List(items) if items.is_empty() => "[]".into(),
            other => other.describe(),
        };
        RecipeError::OutOfRange {
            place: self.source.place(node.origin),
            key: self.path(key),
            found,
            expected: expected.into(),
        }
    }
}
