//! Responses in OpenAI's chat completion format, whole or as a stream of chunks.

use rullama_train::data::template::{Message, Part, ReplyParts, ToolCall};
use rullama_train::talk::generate::{Finish, Reply};
use serde_json::{Map, Value, json};

use crate::cli::talk::generate;

/// The fields that all chunks of a response share.
pub struct Answer {
    pub id: String,
    pub created: u64,
    pub model: String,
}

impl Answer {
    /// The response without streaming. `message` is the parsed reply.
    pub fn whole(&self, reply: &Reply, message: &Message) -> Value {
        let calls = message.tool_calls.iter().enumerate();
        let calls: Vec<Value> = calls.map(|(index, call)| self.call(index, call)).collect();
        let content = match (calls.is_empty(), message.content.is_empty()) {
            (false, true) => Value::Null,
            _ => message.content.as_str().into(),
        };
        let finish = finish_reason(reply.finish, !calls.is_empty());
        let mut fields = json!({ "role": "assistant", "content": content, "refusal": null });
        if !message.thinking.is_empty() {
            fields["reasoning_content"] = message.thinking.as_str().into();
        }
        if !calls.is_empty() {
            fields["tool_calls"] = calls.into();
        }
        json!({
            "id": self.id, "object": "chat.completion", "created": self.created, "model": self.model,
            "choices": [{ "index": 0, "message": fields, "logprobs": null, "finish_reason": finish }],
            "usage": usage(reply),
        })
    }

    /// A chunk of a streamed response.
    pub fn chunk(&self, delta: Value, finish_reason: Option<&str>) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model,
            "choices": [{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason }],
        })
    }

    /// The last chunk of a stream with `include_usage`: token counts only.
    pub fn usage_chunk(&self, reply: &Reply) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model,
            "choices": [], "usage": usage(reply),
        })
    }

    /// Tool call number `index` of the reply. Its id is the id of the response, followed by the index.
    fn call(&self, index: usize, call: &ToolCall) -> Value {
        let arguments = Map::clone(&call.arguments);
        let function = json!({ "name": call.name, "arguments": Value::Object(arguments).to_string() });
        let id = format!("{}-{index}", self.id.replacen("chatcmpl", "call", 1));
        json!({ "id": id, "type": "function", "function": function })
    }
}

/// Converts the pieces of a streamed reply to OpenAI's deltas.
pub struct Deltas {
    parts: ReplyParts,
    calls: usize,
}

impl Deltas {
    /// Starts at the beginning of a reply.
    pub fn new(parts: ReplyParts) -> Deltas {
        Deltas { parts, calls: 0 }
    }

    /// The deltas of a further piece of text.
    pub fn push(&mut self, piece: &str, answer: &Answer) -> Vec<Value> {
        let parts = self.parts.push(piece);
        parts.into_iter().map(|part| self.delta(part, answer)).collect()
    }

    /// The last deltas, and the `finish_reason`.
    pub fn finish(mut self, finish: Finish, answer: &Answer) -> (Vec<Value>, &'static str) {
        let parts = self.parts.clone().finish();
        let deltas = parts.into_iter().map(|part| self.delta(part, answer)).collect();
        (deltas, finish_reason(finish, self.calls > 0))
    }

    fn delta(&mut self, part: Part, answer: &Answer) -> Value {
        match part {
            Part::Words(words) => json!({ "content": words }),
            Part::Thought(thought) => json!({ "reasoning_content": thought }),
            Part::Call(call) => {
                let index = self.calls;
                self.calls += 1;
                let mut call = answer.call(index, &call);
                call["index"] = index.into();
                json!({ "tool_calls": [call] })
            }
        }
    }
}

/// OpenAI's `finish_reason`, which is `tool_calls` for a reply with tool calls.
fn finish_reason(finish: Finish, calls: bool) -> &'static str {
    match (finish, calls) {
        (Finish::Stop, true) => "tool_calls",
        _ => generate::finish_reason(finish),
    }
}

/// Token counts of prompt and reply. The end-of-turn token is not counted.
fn usage(reply: &Reply) -> Value {
    let prompt = reply.prompt_tokens;
    let completion = reply.ids.len();
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": reply.cached_tokens },
    })
}
