//! JSON schemas of the values of a key.

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as VariantError, StrDeserializer};
use serde_json::{Value, json};

use crate::families;

/// The schema of `lora.target_modules`. Several families have the same names.
pub(super) fn target_modules() -> Value {
    let mut names: Vec<&str> = Vec::new();
    for name in families::module_names() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let list = json!({ "type": "array", "minItems": 1, "uniqueItems": true, "items": { "enum": names } });
    json!({ "anyOf": [{ "const": "all-linear" }, list] })
}

/// The schema of a path or a list of paths.
pub(super) fn one_or_more() -> Value {
    let text = json!({ "type": "string", "minLength": 1 });
    json!({ "anyOf": [text, { "type": "array", "minItems": 1, "items": text }] })
}

/// The names of the variants of `T`, without planned ones.
pub(super) fn variants<T: for<'de> Deserialize<'de>>() -> Vec<String> {
    let deserializer: StrDeserializer<VariantError> = "".into_deserializer();
    // serde writes "unknown variant ``, expected `y` or `z`".
    let message = T::deserialize(deserializer).err().map_or(String::new(), |error| error.to_string());
    let names = message.split_once(", expected ").map_or("", |(_, names)| names);
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
