//! `{"input_ids": […], "labels": […]}`: token ids, used unchanged. As in transformers, `labels[i]` belongs to `input_ids[i]`,
//! and −100 means no loss. Without `labels`, every token but the first is a loss token.

use serde_json::{Map, Value};

use super::error::Problem;
use super::record::{Ignored, list};
use crate::data::batch::IGNORE;
use crate::data::template::Rendered;
use crate::data::tokenizer::Tokenizer;

/// Converts a record to a sample. Checks the ids against the vocabulary.
pub(super) fn sample(
    object: &Map<String, Value>,
    tokenizer: &Tokenizer,
    ignored: &mut Ignored,
) -> Result<Rendered, Problem> {
    ignored.note(object, &["input_ids", "labels", "attention_mask"], "")?;
    let vocab = tokenizer.vocab_size();
    let token = |value: &Value| value.as_u64().filter(|&id| id < vocab as u64).map(|id| id as u32);
    let label = |value: &Value| match value.as_i64() {
        Some(id) if id == i64::from(IGNORE) => Some(IGNORE),
        _ => token(value).map(|id| id as i32),
    };

    let ids = list(&object["input_ids"], "input_ids", "token ids")?;
    if ids.is_empty() {
        return Err(Problem::NoIds);
    }
    let ids: Vec<u32> = (ids.iter().enumerate())
        .map(|(index, id)| token(id).ok_or_else(|| Problem::Id { index, found: id.to_string(), vocab }))
        .collect::<Result<_, _>>()?;
    let labels = match object.get("labels") {
        None => ids.iter().map(|&id| id as i32).collect(),
        Some(labels) => {
            let labels = list(labels, "labels", "labels")?;
            check_length("labels", labels, &ids)?;
            (labels.iter().enumerate())
                .map(|(index, l)| {
                    label(l).ok_or_else(|| Problem::Label { index, found: l.to_string(), vocab })
                })
                .collect::<Result<_, _>>()?
        }
    };
    if let Some(mask) = object.get("attention_mask") {
        let mask = list(mask, "attention_mask", "ones")?;
        check_length("attention_mask", mask, &ids)?;
        if mask.iter().any(|value| value.as_u64() != Some(1)) {
            return Err(Problem::AttentionMask);
        }
    }
    Ok(Rendered { ids, labels, ..Rendered::default() })
}

fn check_length(key: &'static str, list: &[Value], ids: &[u32]) -> Result<(), Problem> {
    if list.len() == ids.len() {
        return Ok(());
    }
    Err(Problem::Length { key, found: list.len(), ids: ids.len() })
}
