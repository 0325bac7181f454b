//! The JSON schema of a recipe, for editors and scripts. Types come from the code that reads a recipe, which notes every key
//! that it looks up; defaults and descriptions come from the comments of `recipes/chat.toml`.

use serde_json::{Map, Value, json};

use super::source::Source;
use super::{Syntax, keys, sections};

/// Address at which editors find the schema of the latest version.
pub const SCHEMA_URL: &str =
    "https://raw.githubusercontent.com/rullama/rullama-train/main/docs/recipe.schema.json";

/// A recipe for which every key is looked up.
const COMPLETE: &str =
    "model.base = 'tiny'\ntrain.memory_limit = 1.0\noutput.dir = '-'\n[[data.sources]]\npath = '-'";
/// The recipe whose comments describe every key.
const MANUAL: &str = include_str!("../../recipes/chat.toml");
/// Section of the keys of `[[data.sources]]`.
const SOURCES: &str = "data.sources";

/// The schema, as JSON.
pub fn schema() -> Value {
    let source = Source::parse::<&str>(COMPLETE, Syntax::Toml, "schema", &[]).expect("it is valid");
    sections::all(&source).expect("all required keys are set");
    let seen = source.seen.take();
    let described = described(MANUAL);
    let property = |section: &str, key: &str| {
        let seen = seen.iter().find(|seen| seen.section == section && seen.key == key);
        let mut schema = seen.map_or(json!({}), |seen| seen.schema.clone());
        if let Some((_, comment)) = described.iter().find(|(path, _)| *path == format!("{section}.{key}")) {
            let (default, effect) = comment.split_once("; ").unwrap_or((comment, ""));
            schema["description"] = effect.into();
            if let Some(value) = default.strip_prefix("default: ").and_then(literal) {
                schema["default"] = value;
            }
        }
        schema
    };
    let mut properties = Map::new();
    for (section, keys) in keys::SECTIONS {
        let mut members: Map<String, Value> =
            keys.iter().map(|key| ((*key).to_owned(), property(section, key))).collect();
        if let Some(sources) = members.get_mut("sources") {
            let keys = seen.iter().filter(|seen| seen.section == SOURCES);
            let keys = keys.map(|seen| (seen.key.clone(), property(SOURCES, &seen.key))).collect();
            sources["items"] = object(keys, &["path"]);
        }
        let required: &[&str] = match section {
            "model" => &["base"],
            "output" => &["dir"],
            _ => &[],
        };
        properties.insert(section.into(), object(members, required));
    }
    properties.insert("$schema".into(), json!({ "type": "string" }));
    let mut schema = object(properties, &["model", "data", "output"]);
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["$id"] = SCHEMA_URL.into();
    schema["title"] = "Recipe of rullama-train".into();
    schema
}

fn object(properties: Map<String, Value>, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": required,
        "properties": properties,
    })
}

/// A TOML value as JSON; `None` for "none".
fn literal(text: &str) -> Option<Value> {
    let table: toml::Table = toml::from_str(&format!("value = {text}")).ok()?;
    serde_json::to_value(&table["value"]).ok()
}

/// The comment of every key of the manual, by `section.key`. Continued comments are joined.
fn described(manual: &str) -> Vec<(String, String)> {
    let (mut section, mut found) = (String::new(), Vec::<(String, String)>::new());
    for line in manual.lines() {
        let line = line.strip_prefix("# ").unwrap_or(line);
        if let Some(name) = line.strip_prefix("[[").and_then(|rest| rest.split("]]").next()) {
            let comment = line.split_once("# ").map_or("", |(_, comment)| comment);
            found.push((name.into(), comment.trim().into()));
            section = name.into();
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.into();
            continue;
        }
        let Some((code, comment)) = line.split_once("# ").filter(|_| !section.is_empty()) else { continue };
        let key = code.split(" = ").next().unwrap_or_default().trim();
        let is_name =
            !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || "_123456789".contains(c));
        match found.last_mut() {
            Some((_, text)) if key.is_empty() => *text += &format!(" {}", comment.trim()),
            _ if is_name && section == SOURCES => {
                found.push((format!("{section}.{key}"), format!("default: none; {}", comment.trim())));
            }
            _ if is_name => found.push((format!("{section}.{key}"), comment.trim().into())),
            _ => {}
        }
    }
    found
}
