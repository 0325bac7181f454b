//! The shape of a record, recognized by its keys.

use serde_json::{Map, Value};

use super::beside;
use super::error::Problem;
use super::kinds::Format;

/// The shape that a record's keys identify, or the requested one. Any other shape takes precedence over `text`, which then
/// holds the same sample already rendered.
pub(super) fn shape(object: &Map<String, Value>, format: Format) -> Result<Format, Problem> {
    refuse_preferences(object, format)?;
    let fits = |shape: &Format| {
        let asked_for = format == Format::Auto || format == *shape;
        asked_for && shape.keys().iter().all(|&key| object.contains_key(key))
    };
    let mut found: Vec<Format> = Format::SHAPES.into_iter().filter(fits).collect();
    if found.len() > 1 {
        found.retain(|shape| *shape != Format::Text);
    }
    match found[..] {
        [shape] => Ok(shape),
        [] => {
            let (found, suggestion) = (object.keys().cloned().collect(), super::fields::suggestion(object));
            Err(Problem::Shape { format, found, suggestion })
        }
        _ => Err(Problem::Ambiguous { found: object.keys().cloned().collect(), fit: found }),
    }
}

/// Keys of an answer, or of messages that may end with one.
const ANSWERS: [&str; 7] =
    ["completion", "messages", "conversations", "contents", "output", "response", "answer"];

/// Fails for a record that compares answers (DPO, ORPO) or rates one (KTO): training on it as an example would teach the
/// rejected answers too. A format that the recipe names says that the pair beside it does not count.
fn refuse_preferences(object: &Map<String, Value>, format: Format) -> Result<(), Problem> {
    if let (Some([chosen, rejected]), Format::Auto) = (beside::pair(object), format) {
        return Err(Problem::Preference(format!("\"{chosen}\" and \"{rejected}\""), "dpo"));
    }
    let is_rating = |value: &Value| match value {
        Value::Bool(_) => true,
        Value::String(text) => ["true", "false"].contains(&text.trim().to_lowercase().as_str()),
        _ => false,
    };
    let answer = ANSWERS.into_iter().find(|key| beside::has(object, key));
    match (answer, beside::rating(object).filter(|key| is_rating(&object[*key]))) {
        (Some(answer), Some(rating)) => {
            Err(Problem::Preference(format!("\"{answer}\" with a \"{rating}\" of true or false"), "kto"))
        }
        _ => Ok(()),
    }
}
