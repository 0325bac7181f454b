//! Flags that include a message in the loss or exclude it: OpenAI's `weight`, axolotl's `train`, ms-swift's `loss`, LLaMA-Factory's
//! `loss_weight`.

use serde_json::{Map, Value};

use super::error::Problem;
use crate::data::digits;

/// Flags of a message.
pub(super) const MESSAGE: [&str; 5] = ["weight", "train", "training", "loss", "loss_weight"];
/// Flags of a part of a message.
pub(super) const PART: [&str; 2] = ["train", "weight"];

/// Whether the message with this number has loss, as those of its `keys` say that it has.
pub(super) fn of(object: &Map<String, Value>, keys: &[&str], number: usize) -> Result<Option<bool>, Problem> {
    let flag = |value: &Value| {
        value.as_bool().or(value.as_f64().filter(|w| [0.0, 1.0].contains(w)).map(|w| w == 1.0))
    };
    let mut found = None;
    for value in keys.iter().filter_map(|key| object.get(*key)).filter(|value| !value.is_null()) {
        match (flag(value), found) {
            (Some(flag), None) => found = Some(flag),
            (Some(flag), Some(earlier)) if flag == earlier => {}
            _ => return Err(Problem::Flag { number, found: digits::to_json(value) }),
        }
    }
    Ok(found)
}

/// The flag of a message and the flags of its parts, or of two turns that are one message. Fails where they differ.
pub(super) fn both(a: Option<bool>, b: Option<bool>, number: usize) -> Result<Option<bool>, Problem> {
    match (a, b) {
        (a, b) if a == b => Ok(a),
        (Some(true), None) | (None, Some(true)) => Ok(Some(true)),
        _ => Err(Problem::PartFlags { number }),
    }
}
