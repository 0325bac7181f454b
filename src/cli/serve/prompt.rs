//! From the body of a request to the tokens of its prompt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::StatusCode;
use rullama_train::data::template::Conversation;
use rullama_train::data::tokenizer::Special;

use super::Served;
use super::request::{self, Request};
use crate::cli::http::ApiError;

/// Bytes of a text per token of the context that are encoded to see whether the text can fit.
const PROBE_PER_TOKEN: usize = 8;
/// Tokens by which a text can have fewer tokens than its start.
const SLACK: usize = 64;

/// A request that can be answered.
pub struct Prepared {
    pub request: Request,
    /// The id of the model.
    pub model: String,
    pub with_adapter: bool,
    /// The prompt.
    pub tokens: Vec<u32>,
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

/// Parses a request and encodes its prompt. `number`: of the request, from 0. Gives up if `gone` becomes true.
pub fn prepare(served: &Served, body: &[u8], number: u64, gone: &AtomicBool) -> Result<Prepared, ApiError> {
    let seed = served.defaults.sampling.seed.wrapping_add(number);
    let request = request::parse(body, &served.defaults, seed)?;
    let (model, with_adapter) = served.model(request.model.as_deref())?;
    let model = model.to_owned();
    let tokens = encode(served, &request.conversation, gone)?;
    Ok(Prepared { request, model, with_adapter, tokens })
}

/// The tokens of a conversation. An error if they exceed the context.
fn encode(served: &Served, conversation: &Conversation, gone: &AtomicBool) -> Result<Vec<u32>, ApiError> {
    let bad = |message: String, code| {
        let param = Some("messages".into());
        ApiError { param, code, ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    };
    let long = |found: String| {
        let message = format!(
            "the messages have {found} tokens, but the context holds {}; shorten them",
            served.context
        );
        bad(message, Some("context_length_exceeded"))
    };
    if let Some(least) = too_long(served, conversation, gone) {
        return Err(long(format!("at least {least}")));
    }
    if gone.load(Ordering::Relaxed) {
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "the client is gone"));
    }
    let prompt = served.template.prompt(&served.tokenizer, conversation);
    let prompt = prompt.map_err(|error| bad(format!("messages: {error}"), None))?;
    if prompt.len() > served.context { Err(long(prompt.len().to_string())) } else { Ok(prompt) }
}

/// A number of tokens that `conversation` surely has, if that exceeds the context. Encodes only the start of long texts.
fn too_long(served: &Served, conversation: &Conversation, gone: &AtomicBool) -> Option<usize> {
    for text in conversation.messages.iter().flat_map(|message| [&message.content, &message.thinking]) {
        let mut size = PROBE_PER_TOKEN * served.context;
        while size < text.len() && !gone.load(Ordering::Relaxed) {
            let end = (0..=size).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
            let start = served.tokenizer.encode(&text[..end], Special::Plain).len().saturating_sub(SLACK);
            if start > served.context {
                return Some(start);
            }
            size *= 2;
        }
    }
    None
}
