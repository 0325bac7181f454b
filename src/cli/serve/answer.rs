//! How answers look: OpenAI's chat completions, whole and in pieces.

use rullama_train::data::template::{Message, Part, ReplyParts, ToolCall};
use rullama_train::talk::generate::{Finish, Reply};
use serde_json::{Map, Value, json};

use crate::cli::generate;

/// What every part of an answer says about itself.
pub struct Answer {
    pub id: String,
    pub created: u64,
    pub model: String,
}

impl Answer {
    /// The whole reply, which is `message`.
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

    /// A piece of a stream.
    pub fn chunk(&self, delta: Value, finish_reason: Option<&str>) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model,
            "choices": [{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason }],
        })
    }

    /// The last piece of a stream that wants to know.
    pub fn usage_chunk(&self, reply: &Reply) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model,
            "choices": [], "usage": usage(reply),
        })
    }

    /// Call number `index` of the reply; its id is the reply's with that number behind it.
    fn call(&self, index: usize, call: &ToolCall) -> Value {
        let arguments = Map::clone(&call.arguments);
        let function = json!({ "name": call.name, "arguments": Value::Object(arguments).to_string() });
        let id = format!("{}-{index}", self.id.replacen("chatcmpl", "call", 1));
        json!({ "id": id, "type": "function", "function": function })
    }
}

/// A reply on its way, as pieces of a stream.
pub struct Deltas {
    parts: ReplyParts,
    calls: usize,
}

impl Deltas {
    pub fn new(parts: ReplyParts) -> Deltas {
        Deltas { parts, calls: 0 }
    }

    /// What a piece of text adds.
    pub fn push(&mut self, piece: &str, answer: &Answer) -> Vec<Value> {
        let parts = self.parts.push(piece);
        parts.into_iter().map(|part| self.delta(part, answer)).collect()
    }

    /// What the end adds, and why the reply ended.
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

/// OpenAI's word: a reply that ends with calls wants their results.
fn finish_reason(finish: Finish, calls: bool) -> &'static str {
    match (finish, calls) {
        (Finish::Stop, true) => "tool_calls",
        _ => generate::finish_reason(finish),
    }
}

/// Tokens of prompt and reply; the token that ended the reply is not counted.
fn usage(reply: &Reply) -> Value {
    let (prompt, completion) = (reply.prompt_tokens, reply.ids.len());
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": reply.cached_tokens },
    })
}
