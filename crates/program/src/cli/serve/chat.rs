//! Responses in OpenAI's chat completion format, whole or as a stream of chunks.

use std::sync::Arc;

use rullama_train::data::template::{Part, ReplyParts, ToolCall};
use rullama_train::talk::conversation;
use rullama_train::talk::generate::{Finish, Reply};
use rullama_train::talk::scores::Score;
use serde_json::{Value, json};

use super::Served;
use super::answer::{Answer, Head, Usage};
use crate::cli::talk::tokens;

/// The response to a request for a chat completion, which has one prompt.
pub struct Chat {
    head: Head,
    served: Arc<Served>,
    /// The parser of the reply, at its start.
    parts: ReplyParts,
    /// `None` after the end of the reply.
    deltas: Option<Deltas>,
    logprobs: bool,
    /// Log-probabilities that no chunk has yet.
    pending: Vec<Value>,
}

impl Chat {
    /// A response whose chunks have log-probabilities if `logprobs`.
    pub fn new(head: Head, served: Arc<Served>, parts: ReplyParts, logprobs: bool) -> Chat {
        let deltas = Some(Deltas { parts: parts.clone(), calls: 0 });
        Chat { head, served, parts, deltas, logprobs, pending: Vec::new() }
    }

    /// A chunk of a streamed response. It takes the pending log-probabilities.
    fn chunk(&mut self, delta: Value, finish_reason: Option<&str>) -> Value {
        let logprobs = match self.pending.is_empty() {
            true => Value::Null,
            false => logprobs(std::mem::take(&mut self.pending)),
        };
        let Head { id, created, model } = &self.head;
        json!({
            "id": id, "object": "chat.completion.chunk", "created": created, "model": model,
            "choices": [{ "index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason }],
        })
    }

    fn chunks(&mut self, deltas: Vec<Value>) -> Vec<Value> {
        deltas.into_iter().map(|delta| self.chunk(delta, None)).collect()
    }
}

impl Answer for Chat {
    fn begin(&mut self) -> Vec<Value> {
        vec![self.chunk(json!({ "role": "assistant", "content": "" }), None)]
    }

    fn prompt(&mut self, _: usize, _: &[Score]) -> Vec<Value> {
        Vec::new() // a chat completion never repeats its messages
    }

    fn text(&mut self, _: usize, piece: &str, scores: &[Score]) -> Vec<Value> {
        self.pending.extend(scores.iter().map(|score| tokens::with_top(&self.served.tokenizer, score)));
        let deltas = self.deltas.as_mut().map(|deltas| deltas.push(piece, &self.head)).unwrap_or_default();
        self.chunks(deltas)
    }

    fn done(&mut self, _: usize, reply: &Reply) -> Vec<Value> {
        let Some(deltas) = self.deltas.take() else { return Vec::new() };
        let (mut deltas, reason) = deltas.finish(reply.finish, &self.head);
        if deltas.is_empty() && !self.pending.is_empty() {
            deltas.push(json!({ "content": "" }));
        }
        let mut chunks = self.chunks(deltas);
        chunks.push(self.chunk(json!({}), Some(reason)));
        chunks
    }

    fn counted(&self, usage: &Usage) -> Value {
        let Head { id, created, model } = &self.head;
        json!({
            "id": id, "object": "chat.completion.chunk", "created": created, "model": model,
            "choices": [], "usage": usage.json(),
        })
    }

    fn whole(&mut self, replies: &[(Vec<Score>, Reply)], usage: &Usage) -> Value {
        let choice = |(index, (_, reply)): (usize, &(Vec<Score>, Reply))| {
            let message = conversation::message(self.parts.clone(), &reply.text);
            let calls = message.tool_calls.iter().enumerate();
            let calls: Vec<Value> = calls.map(|(index, call)| tool_call(&self.head, index, call)).collect();
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
            let scored = reply.scores.iter().map(|score| tokens::with_top(&self.served.tokenizer, score));
            let logprobs = if self.logprobs { logprobs(scored.collect()) } else { Value::Null };
            json!({ "index": index, "message": fields, "logprobs": logprobs, "finish_reason": finish })
        };
        let choices: Vec<Value> = replies.iter().enumerate().map(choice).collect();
        let Head { id, created, model } = &self.head;
        json!({
            "id": id, "object": "chat.completion", "created": created, "model": model,
            "choices": choices, "usage": usage.json(),
        })
    }
}

/// The log-probabilities of a choice.
fn logprobs(tokens: Vec<Value>) -> Value {
    json!({ "content": tokens, "refusal": null })
}

/// Tool call number `index` of a reply. Its id is the id of the response, followed by the index.
fn tool_call(head: &Head, index: usize, call: &ToolCall) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments_json() });
    let id = format!("{}-{index}", head.id.replacen("chatcmpl", "call", 1));
    json!({ "id": id, "type": "function", "function": function })
}

/// Converts the pieces of a streamed reply to OpenAI's deltas.
struct Deltas {
    parts: ReplyParts,
    calls: usize,
}

impl Deltas {
    /// The deltas of a further piece of text.
    fn push(&mut self, piece: &str, head: &Head) -> Vec<Value> {
        let parts = self.parts.push(piece);
        parts.into_iter().map(|part| self.delta(part, head)).collect()
    }

    /// The last deltas, and the `finish_reason`.
    fn finish(mut self, finish: Finish, head: &Head) -> (Vec<Value>, &'static str) {
        let parts = self.parts.clone().finish();
        let deltas = parts.into_iter().map(|part| self.delta(part, head)).collect();
        (deltas, finish_reason(finish, self.calls > 0))
    }

    fn delta(&mut self, part: Part, head: &Head) -> Value {
        match part {
            Part::Words(words) => json!({ "content": words }),
            Part::Thought(thought) => json!({ "reasoning_content": thought }),
            Part::Call(call) => {
                let index = self.calls;
                self.calls += 1;
                let mut call = tool_call(head, index, &call);
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
        _ => tokens::finish_reason(finish),
    }
}
