//! What a request may say, and what is refused in which words: OpenAI's chat completions.

use axum::http::StatusCode;
use rullama_train::data::template::Conversation;
use rullama_train::talk::generate::Options;
use serde_json::{Map, Value, json};

use super::messages;

/// A refusal, as OpenAI words one.
#[derive(Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The part of the request that it is about.
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None }
    }

    /// A refusal of the part `param` of a request.
    pub fn at(param: &str, message: impl Into<String>) -> ApiError {
        let message = format!("{param}: {}", message.into());
        ApiError { param: Some(param.into()), ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    }

    pub fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}

/// A chat completion that somebody wants.
pub struct Request {
    pub model: String,
    pub conversation: Conversation,
    pub options: Options,
    pub stream: bool,
    pub include_usage: bool,
}

/// Fields that change nothing about the reply.
const WITHOUT_EFFECT: [&str; 7] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// Reads a request; what it leaves open is as in `defaults`, its draws as `seed` has them.
pub fn parse(body: &[u8], defaults: &Options, seed: u64) -> Result<Request, ApiError> {
    let bad = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
    let value: Value = serde_json::from_slice(body).map_err(|e| bad(format!("the body is no JSON: {e}")))?;
    let Value::Object(fields) = value else {
        return Err(bad(format!("the body is {}, expected a JSON object", kind(&value))));
    };
    let mut fields = Fields(fields);
    let model = fields.string("model")?;
    let model =
        model.ok_or_else(|| ApiError::at("model", "expected the id of a model; /v1/models lists them"))?;
    let messages =
        fields.take("messages").ok_or_else(|| ApiError::at("messages", "expected a list of messages"))?;
    let mut conversation = Conversation::new(messages::messages_of(messages)?);
    let tools = fields.take("tools").map_or(Ok(Vec::new()), messages::tools_of)?;
    match fields.take("tool_choice") {
        None => conversation.tools = tools,
        Some(Value::String(choice)) if choice == "auto" => conversation.tools = tools,
        Some(Value::String(choice)) if choice == "none" => {}
        Some(other) => {
            let message =
                format!("found {other}, only \"auto\" and \"none\" are supported; the model decides");
            return Err(ApiError::at("tool_choice", message));
        }
    }
    if let Some(kwargs) = fields.take("chat_template_kwargs") {
        let Value::Object(kwargs) = kwargs else {
            let message = format!("expected an object, found {}", kind(&kwargs));
            return Err(ApiError::at("chat_template_kwargs", message));
        };
        conversation.kwargs = kwargs;
    }

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
        ApiError { param, ..bad(problem) }
    })?;
    let max_tokens = fields.count("max_tokens", 1)?;
    if let Some(max) = fields.count("max_completion_tokens", 1)?.or(max_tokens) {
        options.max_new_tokens = max;
    }
    if let Some(stop) = fields.take("stop") {
        options.stop = stop_of(stop)?;
    }
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let include_usage = match fields.take("stream_options") {
        None => false,
        Some(_) if !stream => return Err(ApiError::at("stream_options", "only goes with \"stream\": true")),
        Some(Value::Object(o)) => {
            let mut o = Fields(o);
            let include = o.boolean("include_usage")?.unwrap_or(false);
            o.boolean("include_obfuscation")?;
            o.finish()?;
            include
        }
        Some(other) => {
            return Err(ApiError::at(
                "stream_options",
                format!("expected an object, found {}", kind(&other)),
            ));
        }
    };
    fields.finish()?;
    Ok(Request { model, conversation, options, stream, include_usage })
}

fn stop_of(value: Value) -> Result<Vec<String>, ApiError> {
    let list = match value {
        Value::Array(list) => list,
        one => vec![one],
    };
    let text = |value: Value| match value {
        Value::String(text) if !text.is_empty() => Ok(text),
        other => Err(ApiError::at(
            "stop",
            format!("expected a text or a list of texts that are not empty, found {}", kind(&other)),
        )),
    };
    list.into_iter().map(text).collect()
}

/// A JSON object whose fields are taken out one by one: what is left was not understood. Null stands for nothing.
pub struct Fields(pub Map<String, Value>);

impl Fields {
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|v| !v.is_null())
    }

    fn typed<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let wrong = || ApiError::at(name, format!("expected {expected}, found {value}"));
        read(&value).ok_or_else(wrong).map(Some)
    }

    fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a text", |v| v.as_str().map(str::to_owned))
    }

    fn number(&mut self, name: &str) -> Result<Option<f64>, ApiError> {
        self.typed(name, "a number", Value::as_f64)
    }

    fn integer(&mut self, name: &str) -> Result<Option<i64>, ApiError> {
        self.typed(name, "an integer", Value::as_i64)
    }

    fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    fn count(&mut self, name: &str, least: usize) -> Result<Option<usize>, ApiError> {
        let read = |v: &Value| v.as_u64().map(|n| n as usize).filter(|n| *n >= least);
        self.typed(name, &format!("an integer >= {least}"), read)
    }

    /// Refuses what is left, unless it asks for nothing.
    fn finish(mut self) -> Result<(), ApiError> {
        let neutral = [
            ("n", json!(1)),
            ("logprobs", json!(false)),
            ("top_logprobs", json!(0)),
            ("logit_bias", json!({})),
            ("parallel_tool_calls", json!(true)),
            ("response_format", json!({"type": "text"})),
            ("modalities", json!(["text"])),
        ];
        for (name, value) in neutral {
            if self.take(name).is_some_and(|found| found != value) {
                return Err(ApiError::at(name, format!("only {value} is supported; leave it out")));
            }
        }
        let unknown =
            self.0.iter().find(|(name, v)| !v.is_null() && !WITHOUT_EFFECT.contains(&name.as_str()));
        match unknown {
            Some((name, _)) => Err(ApiError::at(name, "is not supported; leave it out")),
            None => Ok(()),
        }
    }
}

pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
