//! From the body of a request to the tokens of its prompts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::StatusCode;
use rullama_train::data::template::{Conversation, ReplyParts};
use rullama_train::data::tokenizer::Special;
use rullama_train::talk::refusal::{self, Refusal};
use rullama_train::talk::unwritten;

use super::completion::{self, Prompt};
use super::request::{self, Settings};
use super::{Prompted, Served};
use crate::cli::http::ApiError;
use crate::cli::output;

/// Bytes of a text per token of the context that are encoded to see whether the text can fit.
const PROBE_PER_TOKEN: usize = 8;
/// Tokens by which a text can have fewer tokens than its start.
const SLACK: usize = 64;
/// Tokens that the prompts of one request may have together, if the context is not longer.
const ALL_TOKENS: usize = 32_768;

/// A request that can be answered.
pub struct Prepared {
    pub settings: Settings,
    /// The id of the model.
    pub model: String,
    pub with_adapter: bool,
    pub prompts: Vec<Prompted>,
    pub asked: Asked,
}

/// The route of a request, with what its answer needs.
pub enum Asked {
    /// A chat completion, with the parser of its reply.
    Chat(Box<ReplyParts>),
    /// Completions, and whether they repeat their prompts.
    Completion { echo: bool },
}

/// The routes that reply.
#[derive(Clone, Copy)]
pub enum Route {
    Chat,
    Completion,
}

/// Tells the work on a request that its client is gone, when it is dropped.
#[derive(Default)]
pub struct Gone(Arc<AtomicBool>);

impl Gone {
    /// Becomes true when the client is gone.
    pub fn watch(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Parses a request and encodes its prompts. `number`: of the request, from 0. Gives up if `gone` becomes true.
pub fn prepare(
    served: &Served,
    route: Route,
    body: &[u8],
    number: u64,
    gone: &AtomicBool,
) -> Result<Prepared, ApiError> {
    let seed = served.defaults.sampling.seed.wrapping_add(number);
    match route {
        Route::Chat => {
            let request = request::parse(body, &served.defaults, seed)?;
            let (model, with_adapter) = served.model(request.settings.model.as_deref())?;
            let ids = encode(served, &request.conversation, gone)?;
            note(served, unwritten::texts(&request.conversation));
            let parts = ReplyParts::to(&ids, &served.tokenizer).with_tools(request.conversation.tools);
            let prompts = vec![Prompted { ids, added: 0 }];
            let (model, asked) = (model.to_owned(), Asked::Chat(parts.into()));
            Ok(Prepared { settings: request.settings, model, with_adapter, prompts, asked })
        }
        Route::Completion => {
            let request = completion::parse(body, &served.defaults, seed)?;
            let (model, with_adapter) = served.model(request.settings.model.as_deref())?;
            let prompts = encode_all(served, request.prompts, request.settings.options.max_new_tokens, gone)?;
            let (model, asked) = (model.to_owned(), Asked::Completion { echo: request.echo });
            Ok(Prepared { settings: request.settings, model, with_adapter, prompts, asked })
        }
    }
}

/// Prints a notice if the vocabulary cannot write some bytes of a prompt.
fn note<'a>(served: &Served, texts: impl IntoIterator<Item = &'a str>) {
    if let Some(notice) = unwritten::notice(&served.tokenizer, texts) {
        output::line("notice", notice);
    }
}

/// An error about a field that holds a prompt.
fn bad(field: &str, message: String, code: Option<&'static str>) -> ApiError {
    ApiError { param: Some(field.into()), code, ..ApiError::new(StatusCode::BAD_REQUEST, message) }
}

/// The error for a client that nobody answers any more.
fn left() -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "the client is gone")
}

/// The tokens of a conversation. An error if they exceed the context.
fn encode(served: &Served, conversation: &Conversation, gone: &AtomicBool) -> Result<Vec<u32>, ApiError> {
    let long = |found: String| {
        let context = served.context;
        let message =
            format!("the messages have {found} tokens, but the context holds {context}; shorten them");
        bad("messages", message, Some("context_length_exceeded"))
    };
    for text in conversation.messages.iter().flat_map(|message| [&message.content, &message.thinking]) {
        if let Some(least) = too_long(served, text, Special::Plain, gone) {
            return Err(long(format!("at least {least}")));
        }
    }
    if gone.load(Ordering::Relaxed) {
        return Err(left());
    }
    let prompt = refusal::prompt(&served.template, &served.tokenizer, conversation).map_err(refused)?;
    if prompt.len() > served.context { Err(long(prompt.len().to_string())) } else { Ok(prompt) }
}

/// The error for a conversation that the template cannot render, about the field of the request that is the cause.
fn refused(Refusal { field, message }: Refusal) -> ApiError {
    let param = match field.as_deref() {
        Some("tools") => "tools",
        None | Some("tool_calls" | "reasoning_content") => "messages",
        Some(_) => "chat_template_kwargs",
    };
    bad(param, format!("{param}: {message}"), None)
}

/// The tokens of prompts without a template. An error if one of them, with the longest reply, exceeds the context.
fn encode_all(
    served: &Served,
    prompts: Vec<Prompt>,
    reply: usize,
    gone: &AtomicBool,
) -> Result<Vec<Prompted>, ApiError> {
    let (mut encoded, mut total) = (Vec::with_capacity(prompts.len()), 0);
    for prompt in prompts {
        let prompt = encode_one(served, prompt, reply, gone)?;
        if gone.load(Ordering::Relaxed) {
            return Err(left());
        }
        total += prompt.ids.len();
        let most = ALL_TOKENS.max(served.context);
        if total > most {
            let message =
                format!("prompt: its texts have more than {most} tokens together; send several requests");
            return Err(bad("prompt", message, None));
        }
        encoded.push(prompt);
    }
    Ok(encoded)
}

fn encode_one(
    served: &Served,
    prompt: Prompt,
    reply: usize,
    gone: &AtomicBool,
) -> Result<Prompted, ApiError> {
    let context = served.context;
    let code = Some("context_length_exceeded");
    let prompt = match prompt {
        Prompt::Text(text) => {
            if let Some(least) = too_long(served, &text, Special::Parse, gone) {
                let message = format!(
                    "prompt: has at least {least} tokens, but the context holds {context}; shorten it"
                );
                return Err(bad("prompt", message, code));
            }
            let ids = served.tokenizer.encode(&text, Special::Parse);
            note(served, [&*text]);
            let bos = served.tokenizer.bos().filter(|bos| ids.first() != Some(bos));
            Prompted { added: bos.iter().len(), ids: bos.into_iter().chain(ids).collect() }
        }
        Prompt::Ids(ids) => Prompted { ids, added: 0 },
    };
    let last = served.tokenizer.vocab_size() as u32 - 1;
    if let Some(id) = prompt.ids.iter().find(|id| **id > last) {
        return Err(bad(
            "prompt",
            format!("prompt: token id {id} does not exist, the last one is {last}"),
            None,
        ));
    }
    match prompt.ids.len() {
        0 => Err(bad("prompt", "prompt: has no tokens; expected at least one".into(), None)),
        found if found + reply > context => {
            let message = format!(
                "prompt: has {found} tokens, with max_tokens = {reply} that is more than the context of {context}; shorten \
                 it, or lower max_tokens"
            );
            Err(bad("prompt", message, code))
        }
        _ => Ok(prompt),
    }
}

/// A number of tokens that `text` surely has, if that exceeds the context. Encodes only the start of a long text.
fn too_long(served: &Served, text: &str, special: Special, gone: &AtomicBool) -> Option<usize> {
    let mut size = PROBE_PER_TOKEN * served.context;
    while size < text.len() && !gone.load(Ordering::Relaxed) {
        let end = (0..=size).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
        let start = served.tokenizer.encode(&text[..end], special).len().saturating_sub(SLACK);
        if start > served.context {
            return Some(start);
        }
        size *= 2;
    }
    None
}
