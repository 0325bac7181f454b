//! Reading `data.fields`.

use serde_json::json;

use super::error::RecipeError;
use super::fields::Section;
use super::keys::nearest;
use super::source::Value;
use crate::data::dataset::{FIELDS, Field};

impl Section<'_> {
    /// A table from keys of samples to the names that the records have for them.
    pub fn renames(&self, key: &str) -> Result<Option<Vec<Field>>, RecipeError> {
        let names: serde_json::Map<String, serde_json::Value> =
            FIELDS.iter().map(|name| ((*name).into(), json!({ "type": "string", "minLength": 1 }))).collect();
        self.note(key, json!({ "type": "object", "minProperties": 1, "additionalProperties": false, "properties": names }));
        let Some(node) = self.get(key) else { return Ok(None) };
        let expected = "a table such as { prompt = \"question\", completion = \"answer\" }";
        let Value::Table(entries) = &node.value else { return Err(self.wrong_type(key, node, expected)) };
        if entries.is_empty() {
            return Err(self.out_of_range(key, node, expected));
        }
        let mut renames: Vec<Field> = Vec::new();
        for entry in entries {
            if !FIELDS.contains(&entry.key.as_str()) {
                let hint = match nearest(&entry.key, FIELDS.into_iter()) {
                    Some(known) => format!("did you mean `{known}`?"),
                    None => format!("it takes {}", FIELDS.join(", ")),
                };
                let what = format!("key `{}` in {}", entry.key, self.path(key));
                return Err(RecipeError::Unknown { place: self.source.place(entry.origin), what, hint });
            }
            let from = self.text_of(key, &entry.node, "the name of a key or column")?;
            if renames.iter().any(|(_, other)| *other == from) {
                return Err(self.out_of_range(key, &entry.node, "each key or column once"));
            }
            renames.push((entry.key.clone(), from));
        }
        // The order means nothing, and JSON and TOML may differ in it.
        renames.sort();
        Ok(Some(renames))
    }
}
