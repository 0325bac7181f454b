//! Expected texts and numbers in the columns of rows.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::RewardError;

/// The texts of a column: one, those of a list, or none where the row does not have it or has null.
pub(super) fn texts<'a>(
    row: &'a Map<String, Value>,
    column: &str,
    reward: &str,
) -> Result<Vec<Cow<'a, str>>, RewardError> {
    let wrong = || RewardError::Column {
        reward: reward.into(),
        message: format!(
            "the column {column:?} has an object; expected text, a number, or a list of these; name another one in rewards.column"
        ),
    };
    let one = |value: &'a Value| match value {
        Value::String(text) => Ok(Cow::Borrowed(text.as_str())),
        Value::Number(_) | Value::Bool(_) => Ok(Cow::Owned(value.to_string())),
        _ => Err(wrong()),
    };
    match row.get(column) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => items.iter().filter(|item| !item.is_null()).map(one).collect(),
        Some(value) => Ok(vec![one(value)?]),
    }
}
