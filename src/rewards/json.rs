//! The reward `json`: whether a text is JSON, and valid under a schema.

use std::path::Path;

use serde_json::Value;

use super::text::{judged, value};
use super::{Completion, Judge, RewardError, Values};
use crate::talk::metrics;

/// The reward `json`.
pub(super) struct Json {
    schema: Option<Schema>,
    /// Whether the JSON may stand in a fenced code block.
    fenced: bool,
    after: Option<String>,
}

impl Json {
    /// Reads the schema.
    pub fn new(
        name: &str,
        schema: Option<&Path>,
        fenced: bool,
        after: Option<String>,
    ) -> Result<Json, RewardError> {
        let wrong = |message: String| RewardError::Key { reward: name.into(), key: "schema", message };
        let schema = schema.map(|path| Schema::read(path).map_err(wrong)).transpose()?;
        Ok(Json { schema, fenced, after })
    }

    fn holds(&self, text: &str) -> bool {
        let Some(text) = judged(text, self.after.as_deref()) else { return false };
        let inside = if self.fenced { in_fence(text) } else { None };
        let Some(found) = metrics::json(inside.unwrap_or(text)) else { return false };
        self.schema.as_ref().is_none_or(|schema| schema.accepts(&found))
    }
}

impl Judge for Json {
    fn score(&mut self, completions: &[Completion<'_>]) -> Result<Values, RewardError> {
        Ok(completions.iter().map(|completion| value(self.holds(completion.text))).collect())
    }
}

/// The inside of the last fenced code block; `None` if there is none, or if it is not closed.
fn in_fence(text: &str) -> Option<&str> {
    let mut found = None;
    let mut open: Option<(usize, usize)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let fence = line.trim_start().bytes().take_while(|byte| *byte == b'`').count();
        let is_bare = line.trim().len() == fence;
        match open {
            None if fence >= 3 => open = Some((fence, at + line.len())),
            Some((ticks, start)) if fence >= ticks && is_bare => {
                found = Some(&text[start..at]);
                open = None;
            }
            _ => {}
        }
        at += line.len();
    }
    found
}

/// A JSON Schema.
#[cfg(feature = "native")]
struct Schema(jsonschema::Validator);

#[cfg(feature = "native")]
impl Schema {
    fn read(path: &Path) -> Result<Schema, String> {
        let text = crate::files::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let schema: Value = serde_json::from_str(&text)
            .map_err(|error| format!("{} is not JSON: {error}", path.display()))?;
        let validator = jsonschema::validator_for(&schema)
            .map_err(|error| format!("{} is not a JSON Schema: {error}", path.display()))?;
        Ok(Schema(validator))
    }

    fn accepts(&self, value: &Value) -> bool {
        self.0.is_valid(value)
    }
}

/// A browser checks no schemas: the code for it is large.
#[cfg(not(feature = "native"))]
struct Schema;

#[cfg(not(feature = "native"))]
impl Schema {
    fn read(_: &Path) -> Result<Schema, String> {
        Err("a browser checks no JSON Schema; remove the key, or train with the command line".into())
    }

    fn accepts(&self, _: &Value) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stands_alone_or_in_a_fence() {
        let cases = [
            ("{\"a\": 1}", false, true),
            (" [1, 2]\n", false, true),
            ("\"text\"", false, true),
            ("", false, false),
            ("{\"a\": 1} and more", false, false),
            ("{'a': 1}", false, false),
            ("```json\n{\"a\": 1}\n```", false, false),
            ("```json\n{\"a\": 1}\n```", true, true),
            ("Here it is:\n```\n[1]\n```\nDone.", true, true),
            ("```json\n{\"a\": 1}", true, false),
            ("```\n1\n```\n```\nno\n```", true, false),
            ("````\n[\"```\"]\n````", true, true),
            ("{\"a\": \"```\"}", true, true),
            ("```", true, false),
            ("```\n```", true, false),
        ];
        for (text, fenced, expected) in cases {
            let json = Json::new("json", None, fenced, None).expect("it has no schema");
            assert_eq!(json.holds(text), expected, "{text:?}, {fenced}");
        }
        let json = Json::new("json", None, false, Some("</think>".into())).expect("it has no schema");
        assert!(json.holds("<think>{</think>\n{}") && !json.holds("{}"));
    }

    #[test]
    fn deep_json_is_refused_without_a_crash() {
        let json = Json::new("json", None, false, None).expect("it has no schema");
        assert!(!json.holds(&"[".repeat(1_000_000)));
        assert!(!json.holds(&format!("{}{}", "[".repeat(100_000), "]".repeat(100_000))));
    }

    #[cfg(feature = "native")]
    #[test]
    fn a_schema_is_obeyed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s.json");
        let schema = r#"{"type": "object", "required": ["city"], "additionalProperties": false,
                         "properties": {"city": {"type": "string", "minLength": 1}, "heads": {"type": "integer", "minimum": 0}}}"#;
        std::fs::write(&path, schema).expect("a file");
        let json = Json::new("json", Some(&path), false, None).expect("a schema");
        for (text, expected) in [
            (r#"{"city": "Lima"}"#, true),
            (r#"{"city": "Lima", "heads": 3}"#, true),
            (r#"{"city": "Lima", "heads": -3}"#, false),
            (r#"{"city": ""}"#, false),
            (r#"{"town": "Lima"}"#, false),
            ("[]", false),
        ] {
            assert_eq!(json.holds(text), expected, "{text}");
        }
        for (text, expected) in [("{", "is not JSON"), (r#"{"type": 5}"#, "is not a JSON Schema")] {
            std::fs::write(&path, text).expect("a file");
            let error = Json::new("json", Some(&path), false, None).err().expect("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error =
            Json::new("json", Some(Path::new("/none")), false, None).err().expect("refused").to_string();
        assert!(error.starts_with("rewards.schema of the reward json: cannot read /none"), "{error}");
    }
}
