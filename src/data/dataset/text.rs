//! `{"text": "…"}`: a document. Every token is a loss token. `<bos>` is added at the start and `<eos>` at the end, unless the
//! text has them. Control tokens in the text are parsed, as in transformers, because such data are often conversations that
//! were already rendered.

use serde_json::{Map, Value};

use super::error::Problem;
use super::record::{Ignored, text};
use crate::data::template::Rendered;
use crate::data::tokenizer::{Special, Tokenizer};

/// Converts the document, and returns whether it contains control tokens.
pub(super) fn sample(
    object: &Map<String, Value>,
    tokenizer: &Tokenizer,
    ignored: &mut Ignored,
) -> Result<(Rendered, bool), Problem> {
    ignored.note(object, &["text"], "")?;
    let text = text(object, "text")?;
    if text.is_empty() {
        return Err(Problem::EmptyText);
    }
    let mut ids = tokenizer.encode(text, Special::Parse);
    if let Some(bos) = tokenizer.bos().filter(|bos| ids.first() != Some(bos)) {
        ids.insert(0, bos);
    }
    let ends = |id: &u32| text.trim_end().as_bytes().ends_with(&tokenizer.token_bytes(*id));
    if !tokenizer.eos().iter().filter(|id| tokenizer.is_special(**id)).any(ends) {
        ids.push(tokenizer.end_of_text());
    }
    let labels = ids.iter().map(|&id| id as i32).collect();
    let unwritten = tokenizer.unwritable(text);
    Ok((Rendered { ids, labels, unwritten, ..Rendered::default() }, tokenizer.find_special(text).is_some()))
}
