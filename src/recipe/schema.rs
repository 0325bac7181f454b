//! The JSON schema of a recipe, for editors and scripts. Types come from the code that reads a recipe, which notes every key
//! that it looks up; defaults and descriptions come from the comments of `recipes/chat.toml`.

use serde_json::{Map, Value, json};

use super::manual::{self, REWARDS, SOURCES};
use super::sections;

/// Address at which editors find the schema of the latest version.
pub const SCHEMA_URL: &str =
    "https://raw.githubusercontent.com/rullama/rullama-train/main/docs/recipe.schema.json";

/// The schema, as JSON.
pub fn schema() -> Value {
    let seen = sections::noted();
    let property = |section: &str, key: &str| {
        let seen = seen.iter().find(|seen| seen.section == section && seen.key == key);
        let mut schema = seen.map_or(json!({}), |seen| seen.schema.clone());
        if let Some((_, comment)) = manual::comments().find(|(path, _)| *path == format!("{section}.{key}")) {
            let (default, effect) = comment.split_once("; ").unwrap_or((comment, ""));
            schema["description"] = effect.into();
            if let Some(value) = default.strip_prefix("default: ").and_then(literal) {
                schema["default"] = value;
            }
        }
        schema
    };
    let mut properties = Map::new();
    for (section, keys) in manual::sections() {
        let mut members: Map<String, Value> =
            keys.iter().map(|key| (key.clone(), property(section, key))).collect();
        if let Some(sources) = members.get_mut("sources") {
            let keys = seen.iter().filter(|seen| seen.section == SOURCES);
            let keys = keys.map(|seen| (seen.key.clone(), property(SOURCES, &seen.key))).collect();
            sources["items"] = object(keys, &["path"]);
        }
        let required: &[&str] = match section.as_str() {
            "model" => &["base"],
            "output" => &["dir"],
            _ => &[],
        };
        properties.insert(section.clone(), object(members, required));
    }
    let keys = manual::reward_keys().into_iter().map(|key| (key.into(), property(REWARDS, key))).collect();
    let description = manual::comments()
        .find(|(path, _)| *path == REWARDS)
        .and_then(|(_, comment)| comment.split_once("; "));
    let rewards = json!({ "type": "array", "minItems": 1, "description": description.map(|(_, effect)| effect), "items": object(keys, &["name"]) });
    properties.insert(REWARDS.into(), rewards);
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
