//! Reading and checking a chat completion request, and the fields that all requests for replies share.

use axum::http::StatusCode;
use rullama_train::data::parse_json;
use rullama_train::data::template::Conversation;
use rullama_train::talk::generate::Options;
use rullama_train::talk::scores::MAX_TOP;
use serde_json::Value;

use super::fields::{Fields, kind};
use super::messages;
use crate::cli::http::ApiError;

/// A request for a chat completion.
pub struct Request {
    pub settings: Settings,
    pub conversation: Conversation,
}

/// Fields that every request for a reply may have.
pub struct Settings {
    /// The id of a model; `None` for the default.
    pub model: Option<String>,
    pub options: Options,
    pub stream: bool,
    pub include_usage: bool,
}

/// Parses a request. Missing options are taken from `defaults`, a missing seed is `seed`.
pub fn parse(body: &[u8], defaults: &Options, seed: u64) -> Result<Request, ApiError> {
    let mut fields = fields_of(body)?;
    let conversation = conversation(&mut fields)?;
    let mut settings = settings(&mut fields, defaults, seed, 1)?;
    settings.options.logprobs = logprobs(&mut fields)?;
    fields.finish()?;
    Ok(Request { settings, conversation })
}

/// The fields of a body.
pub fn fields_of(body: &[u8]) -> Result<Fields, ApiError> {
    let invalid = |error: String| bad_request(format!("the body is not valid JSON: {error}"));
    let text = std::str::from_utf8(body).map_err(|error| invalid(error.to_string()))?;
    match parse_json(text).map_err(|error| invalid(error.to_string()))? {
        Value::Object(fields) => Ok(Fields(fields)),
        other => Err(bad_request(format!("the body is {}, expected a JSON object", kind(&other)))),
    }
}

/// Reads the fields of [`Settings`], but log-probabilities, which each route spells in its own way. A reply has at least `least` tokens.
pub fn settings(
    fields: &mut Fields,
    defaults: &Options,
    seed: u64,
    least: usize,
) -> Result<Settings, ApiError> {
    let model = fields.string("model")?;
    let options = options(fields, defaults, seed, least)?;
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let include_usage = include_usage(fields, stream)?;
    Ok(Settings { model, options, stream, include_usage })
}

/// Reads `logprobs` and `top_logprobs`.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.up_to("top_logprobs", MAX_TOP)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::at("top_logprobs", "is only allowed with \"logprobs\": true")),
    }
}

/// An error that is not about one field.
fn bad_request(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, message)
}

/// Messages, tools and arguments of the template.
fn conversation(fields: &mut Fields) -> Result<Conversation, ApiError> {
    let messages = fields
        .take("messages")
        .ok_or_else(|| ApiError::at("messages", "is missing: expected a list of messages"))?;
    let messages = messages::messages_of(messages)?;
    if messages.is_empty() {
        return Err(ApiError::at("messages", "is empty: expected at least one message"));
    }
    let mut conversation = Conversation::new(messages);
    let tools = fields.take("tools").map_or(Ok(Vec::new()), messages::tools_of)?;
    match fields.take("tool_choice") {
        None => conversation.tools = tools,
        Some(Value::String(choice)) if choice == "auto" => conversation.tools = tools,
        Some(Value::String(choice)) if choice == "none" => {}
        Some(other) => {
            let message = format!("found {other}, only \"auto\" and \"none\" are supported");
            return Err(ApiError::at("tool_choice", message));
        }
    }
    match fields.take("chat_template_kwargs") {
        None => {}
        Some(Value::Object(kwargs)) => conversation.kwargs = kwargs,
        Some(other) => {
            let message = format!("expected an object, found {}", kind(&other));
            return Err(ApiError::at("chat_template_kwargs", message));
        }
    }
    Ok(conversation)
}

/// Sampling options, the length of the reply, and stop texts.
fn options(fields: &mut Fields, defaults: &Options, seed: u64, least: usize) -> Result<Options, ApiError> {
    let mut options = defaults.clone();
    let sampling = &mut options.sampling;
    sampling.seed = fields.integer("seed")?.unwrap_or(seed as i64) as u64;
    let numbers = [
        ("temperature", &mut sampling.temperature),
        ("top_p", &mut sampling.top_p),
        ("min_p", &mut sampling.min_p),
        ("repetition_penalty", &mut sampling.repetition_penalty),
        ("presence_penalty", &mut sampling.presence_penalty),
        ("frequency_penalty", &mut sampling.frequency_penalty),
    ];
    for (name, place) in numbers {
        if let Some(number) = fields.number(name)? {
            *place = number;
        }
    }
    if let Some(top_k) = fields.count("top_k", 0)? {
        sampling.top_k = top_k;
    }
    sampling.check().map_err(|problem| {
        let param = problem.split(' ').next().map(str::to_owned);
        ApiError { param, ..bad_request(problem) }
    })?;
    let max_tokens = fields.count("max_tokens", least)?;
    if let Some(max) = fields.count("max_completion_tokens", least)?.or(max_tokens) {
        options.max_new_tokens = max;
    }
    if let Some(stop) = fields.take("stop") {
        options.stop = stop_texts(stop)?;
    }
    Ok(options)
}

fn stop_texts(value: Value) -> Result<Vec<String>, ApiError> {
    let list = match value {
        Value::Array(list) => list,
        one => vec![one],
    };
    let text = |value: Value| match value {
        Value::String(text) if !text.is_empty() => Ok(text),
        other => {
            let found = if other == "" { "an empty string" } else { kind(&other) };
            let message = format!("expected a string or a list of strings, not empty, found {found}");
            Err(ApiError::at("stop", message))
        }
    };
    list.into_iter().map(text).collect()
}

fn include_usage(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    match fields.take("stream_options") {
        None => Ok(false),
        Some(_) if !stream => Err(ApiError::at("stream_options", "is only allowed with \"stream\": true")),
        Some(Value::Object(options)) => {
            let mut options = Fields(options);
            let include = options.boolean("include_usage")?.unwrap_or(false);
            options.boolean("include_obfuscation")?;
            options.finish()?;
            Ok(include)
        }
        Some(other) => {
            Err(ApiError::at("stream_options", format!("expected an object, found {}", kind(&other))))
        }
    }
}
