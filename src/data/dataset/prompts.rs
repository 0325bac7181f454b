//! Prompts to complete: `{"prompt": …}`, text or messages, under any of the names of [`beside`], with any other columns, which rewards see.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::comparison_problem::ComparisonProblem;
use super::conversation::with_beside;
use super::error::Problem;
use super::kinds::Format;
use super::record::Ignored;
use super::sample::{Read, add_system};
use super::{Options, beside, fields};
use crate::data::batch::IGNORE;
use crate::data::compare::{Side, Supervision};
use crate::data::rollout::Row;
use crate::data::template::{Rendered, Role};
use crate::data::tokenizer::Tokenizer;

/// Converts one record to a prompt. Its length counts the tokens that a completion may have.
pub(super) fn read(
    object: Map<String, Value>,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<Read, Problem> {
    let columns = object.clone();
    let object = fields::rename(object, options.fields)?;
    let Some(key) = beside::key(&object)? else {
        let found = columns.keys().cloned().collect();
        return Err(ComparisonProblem::NotCompared { supervision: Supervision::Prompts, found }.into());
    };
    let mut ignored = Ignored::default();
    let messages = beside::prompt(&object, key, &mut ignored)?;
    if messages.last().is_some_and(|last| last.role == Role::Assistant) {
        return Err(ComparisonProblem::NothingToComplete.into());
    }
    let trained_from = messages.len();
    let mut conversation = with_beside(&object, messages, trained_from, &mut ignored)?;
    let system = add_system(&mut conversation, options.system);
    let ids = options.template.prompt(tokenizer, &conversation)?;
    let length = ids.len() + options.completion;
    let overlong = length > options.max_seq_len;
    let rendered = Rendered { labels: vec![IGNORE; ids.len()], ids, ..Rendered::default() };
    Ok(Read {
        shape: Format::Prompt,
        length,
        overlong,
        rendered: (!overlong).then_some((Side::Example, rendered)).into_iter().collect(),
        prompt: (key != "prompt").then_some(key),
        row: Some(Arc::new(Row { prompt: object[key].clone(), columns })),
        system,
        nulls: ignored.nulls,
        kept_nulls: ignored.kept_nulls,
        ignored: ignored.keys,
        ..Read::default()
    })
}
