//! Fields that responses of all routes share: the first ones, and token counts.

use rullama_train::talk::generate::Reply;
use rullama_train::talk::scores::Score;
use serde_json::{Value, json};

/// The fields that all parts of a response share.
pub struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
}

/// The responses of a route, whole or as a stream of events.
pub trait Answer: Send {
    /// The events at the start of a stream.
    fn begin(&mut self) -> Vec<Value>;
    /// The events of prompt `number`, of which the client wants to see the text, and the scores of its tokens but the first.
    fn prompt(&mut self, number: usize, scores: &[Score]) -> Vec<Value>;
    /// The events of a further piece of text of reply `number`.
    fn text(&mut self, number: usize, piece: &str, scores: &[Score]) -> Vec<Value>;
    /// The last events of reply `number`.
    fn done(&mut self, number: usize, reply: &Reply) -> Vec<Value>;
    /// The event with token counts only, after all others.
    fn counted(&self, usage: &Usage) -> Value;
    /// The response without streaming, to each prompt with its scores and reply.
    fn whole(&mut self, replies: &[(Vec<Score>, Reply)], usage: &Usage) -> Value;
}

/// Token counts of prompts and replies. The end-of-turn token is not counted.
#[derive(Default)]
pub struct Usage {
    prompt: usize,
    completion: usize,
    cached: usize,
}

impl Usage {
    /// Counts a reply and its prompt.
    pub fn add(&mut self, reply: &Reply) {
        self.prompt += reply.prompt_tokens;
        self.completion += reply.ids.len();
        self.cached += reply.cached_tokens;
    }

    pub fn json(&self) -> Value {
        let (prompt, completion) = (self.prompt, self.completion);
        json!({
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}
