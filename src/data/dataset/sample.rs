//! One record to one sample.

use std::collections::BTreeSet;
use std::sync::Arc;

use indexmap::IndexSet;
use serde_json::{Map, Value};

use super::error::Problem;
use super::kinds::Format;
use super::shape::shape;
use super::{
    Options, Overlong, alpaca, beside, context, fields, gemini, input_ids, prompt_completion, record, text,
};
use crate::data::batch::targets;
use crate::data::compare::Side;
use crate::data::rollout::Row;
use crate::data::template::{Conversation, LeftOut, Message, Rendered, Role, last_loss};
use crate::data::tokenizer::Tokenizer;

/// Result of one record.
#[derive(Default)]
pub(super) struct Read {
    /// The samples: two of a pair, otherwise one; none if it is too long, and not truncated.
    pub rendered: Vec<(Side, Rendered)>,
    pub shape: Format,
    /// Number of tokens before truncation.
    pub length: usize,
    pub overlong: bool,
    pub control_tokens: bool,
    pub left_out: BTreeSet<LeftOut>,
    pub ignored: IndexSet<String>,
    /// The names of a pair that was read as prompt and completion.
    pub pair: Option<(&'static str, &'static str)>,
    /// The name of the prompt beside answers, if it is not "prompt".
    pub prompt: Option<&'static str>,
    /// Whether nulls of functions or calls were left out.
    pub nulls: bool,
    /// Whether nulls of calls or results are trained.
    pub kept_nulls: bool,
    /// Whether a "label" of 0 or 1, which may be a rating, is ignored.
    pub binary: bool,
    /// Whether an answer with loss is empty.
    pub empty: bool,
    /// Whether all loss tokens are end marks or white space.
    pub silent: bool,
    /// The token in which the last answer ends, and the one that it should end in, if the former ends no reply.
    pub open_end: Option<(String, String)>,
    /// The fate of the system message that the options add.
    pub system: System,
    /// The context that only a teacher sees.
    pub context: context::Found,
    /// The row that a teacher reads in place of the sample.
    pub taught: Option<Rendered>,
    /// The record of a prompt.
    pub row: Option<Arc<Row>>,
}

/// The fate of [`Options::system`] in one sample.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum System {
    /// It was added, or there is none.
    #[default]
    Added,
    /// The sample has a system message of its own.
    Own,
    /// The sample is no conversation.
    NoConversation,
    /// It has none, and the options add none.
    Missing,
}

/// Converts one record to a sample.
pub(super) fn sample(
    object: Map<String, Value>,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<Read, Problem> {
    let mut object = fields::rename(object, options.fields)?;
    let mut read = Read::default();
    if let Some((renamed, pair)) = fields::pair(&object, options.format) {
        (object, read.pair) = (renamed, Some(pair));
    }
    let takes_context = options.teacher_prompt.is_some();
    let mut ignored = record::Ignored { takes_context, ..Default::default() };
    read.shape = shape(&object, options.format)?;
    read.binary = beside::is_binary(&object) && read.shape.is_conversation();
    let mut conversation = conversation(&object, read.shape, &mut ignored)?;
    let rendered = match &mut conversation {
        Some(conversation) => {
            read.system = add_system(conversation, options.system);
            read.empty = has_empty_answer(conversation, options);
            let rendered = options.template.render(tokenizer, conversation, options.train_on)?;
            read.open_end = open_end(&rendered, conversation, tokenizer, options);
            rendered
        }
        None => {
            read.system = options.system.map_or(System::Added, |_| System::NoConversation);
            if read.shape == Format::Text {
                let (rendered, spelled) = text::sample(&object, tokenizer, &mut ignored)?;
                read.control_tokens = spelled;
                rendered
            } else {
                input_ids::sample(&object, tokenizer, &mut ignored)?
            }
        }
    };
    if !record::has_loss(&rendered) {
        return Err(Problem::NoLoss { length: rendered.ids.len() });
    }
    (read.context, read.taught) =
        context::read(&object, conversation.as_ref(), &rendered, tokenizer, options)?;
    read.silent = is_silent(&rendered, tokenizer);
    read.empty |= read.silent;
    read.length = rendered.ids.len();
    read.left_out.clone_from(&rendered.left_out);
    read.overlong = read.length > options.max_seq_len;
    let fitted = fit(rendered, options)?;
    let left = fitted.as_ref().map(|rendered| targets(&rendered.labels).count());
    read.taught = read.taught.zip(left).map(|(taught, left)| context::cut(taught, left));
    read.rendered = fitted.map(|rendered| (Side::Example, rendered)).into_iter().collect();
    (read.ignored, read.nulls, read.kept_nulls) = (ignored.keys, ignored.nulls, ignored.kept_nulls);
    Ok(read)
}

/// The conversation of a record of this shape. `None`: its shape has none.
pub(super) fn conversation(
    object: &Map<String, Value>,
    shape: Format,
    ignored: &mut record::Ignored,
) -> Result<Option<Conversation>, Problem> {
    Ok(Some(match shape {
        Format::Messages | Format::Auto => super::conversation::read(object, "messages", ignored)?,
        Format::PromptCompletion => prompt_completion::conversation(object, ignored)?,
        Format::Alpaca => alpaca::conversation(object, ignored)?,
        Format::Sharegpt => super::conversation::read(object, "conversations", ignored)?,
        Format::Gemini => gemini::conversation(object, ignored)?,
        Format::Text | Format::InputIds | Format::Preference | Format::Rated | Format::Prompt => {
            return Ok(None);
        }
    }))
}

/// Puts a system message in front of a conversation that has none.
pub(super) fn add_system(conversation: &mut Conversation, system: Option<&str>) -> System {
    let own = conversation.messages.first().is_some_and(|message| message.role == Role::System);
    let system = match system {
        Some(_) if own => return System::Own,
        Some(system) => system,
        None if own => return System::Added,
        None => return System::Missing,
    };
    conversation.messages.insert(0, Message::new(Role::System, system));
    conversation.trained_from += 1;
    System::Added
}

pub(super) fn has_empty_answer(conversation: &Conversation, options: &Options) -> bool {
    let is_empty = |message: &Message| {
        let text = message.content.trim().is_empty() && message.thinking.trim().is_empty();
        message.role == Role::Assistant && text && message.tool_calls.is_empty()
    };
    let trained = conversation.trained(options.train_on);
    conversation.messages.iter().zip(trained).any(|(message, trained)| trained && is_empty(message))
}

/// Whether a sample teaches nothing but to stop.
pub(super) fn is_silent(rendered: &Rendered, tokenizer: &Tokenizer) -> bool {
    targets(&rendered.labels).all(|label| {
        let id = label as u32;
        tokenizer.eos().contains(&id) || tokenizer.token_bytes(id).trim_ascii().is_empty()
    })
}

/// The last token of the last answer if it does not end a reply, and the token that does.
pub(super) fn open_end(
    rendered: &Rendered,
    conversation: &Conversation,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Option<(String, String)> {
    let trained = conversation.trained(options.train_on).last() == Some(&true);
    let last = last_loss(tokenizer, &rendered.labels).filter(|_| trained)?;
    let spelled = |id| tokenizer.decode(&[id]);
    (!tokenizer.eos().contains(&last)).then(|| (spelled(last), spelled(tokenizer.turn_end())))
}

/// Truncates an overlong sample. Returns `None` if it is dropped, or an error once all samples are counted.
pub(super) fn fit(mut rendered: Rendered, options: &Options) -> Result<Option<Rendered>, Problem> {
    let (length, max_seq_len) = (rendered.ids.len(), options.max_seq_len);
    if length <= max_seq_len {
        return Ok(Some(rendered));
    }
    match options.overlong {
        Overlong::Error | Overlong::Drop => Ok(None),
        Overlong::Truncate => {
            rendered.ids.truncate(max_seq_len);
            rendered.labels.truncate(max_seq_len);
            if !record::has_loss(&rendered) {
                return Err(Problem::TruncatedLoss { length, max_seq_len });
            }
            Ok(Some(rendered))
        }
    }
}
