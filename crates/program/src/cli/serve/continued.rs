//! Responses in OpenAI's completion format: the text that continues each prompt, whole or as a stream of events.

use std::sync::Arc;

use rullama_train::data::tokenizer::{DecodeStream, Tokenizer};
use rullama_train::talk::generate::Reply;
use rullama_train::talk::scores::Score;
use serde_json::{Map, Value, json};

use super::answer::{Answer, Head, Usage};
use super::{Prompted, Served};
use crate::cli::talk::tokens;
use crate::cli::talk::tokens::finish_reason;

/// Spells tokens whose bytes are no characters, as OpenAI's API does.
const BYTES: &str = "bytes:";

/// The response to a request for completions.
pub struct Continued {
    head: Head,
    served: Arc<Served>,
    prompts: Vec<Prompted>,
    echo: bool,
    logprobs: bool,
    /// The log-probabilities of each reply in a stream.
    lists: Vec<Listed>,
}

impl Continued {
    /// A response to `prompts`. It begins with them if `echo`.
    pub fn new(
        head: Head,
        served: Arc<Served>,
        prompts: Vec<Prompted>,
        echo: bool,
        logprobs: bool,
    ) -> Continued {
        let lists = prompts.iter().map(|_| Listed::default()).collect();
        Continued { head, served, prompts, echo, logprobs, lists }
    }

    fn choice(&self, index: usize, text: &str, list: Value, finish_reason: Option<&str>) -> Value {
        let logprobs = if self.logprobs { list } else { Value::Null };
        json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason })
    }

    fn response(&self, choices: Vec<Value>) -> Value {
        let Head { id, created, model } = &self.head;
        json!({ "id": id, "object": "text_completion", "created": created, "model": model, "choices": choices })
    }

    /// The text of a prompt as the client wrote it.
    fn text_of(&self, prompt: &Prompted) -> String {
        self.served.tokenizer.decode(&prompt.ids[prompt.added..])
    }
}

impl Answer for Continued {
    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn prompt(&mut self, number: usize, scores: &[Score]) -> Vec<Value> {
        let prompt = &self.prompts[number];
        let mut list = Listed::default();
        list.prompt(&self.served.tokenizer, prompt, scores);
        let (text, taken) = (self.text_of(prompt), list.take());
        self.lists[number] = list;
        vec![self.response(vec![self.choice(number, &text, taken, None)])]
    }

    fn text(&mut self, number: usize, piece: &str, scores: &[Score]) -> Vec<Value> {
        let list = &mut self.lists[number];
        scores.iter().for_each(|score| list.add(&self.served.tokenizer, score.id, Some(score)));
        let list = list.take();
        vec![self.response(vec![self.choice(number, piece, list, None)])]
    }

    fn done(&mut self, number: usize, reply: &Reply) -> Vec<Value> {
        let mut list = std::mem::take(&mut self.lists[number]);
        list.end(&self.served.tokenizer, reply);
        let list = list.take();
        vec![self.response(vec![self.choice(number, "", list, Some(finish_reason(reply.finish)))])]
    }

    fn counted(&self, usage: &Usage) -> Value {
        let mut response = self.response(Vec::new());
        response["usage"] = usage.json();
        response
    }

    fn whole(&mut self, replies: &[(Vec<Score>, Reply)], usage: &Usage) -> Value {
        let choice = |(index, (scores, reply)): (usize, &(Vec<Score>, Reply))| {
            let (prompt, tokenizer) = (&self.prompts[index], &self.served.tokenizer);
            let (mut text, mut list) = (String::new(), Listed::default());
            if self.echo {
                text = self.text_of(prompt);
                list.prompt(tokenizer, prompt, scores);
            }
            text += &reply.text;
            reply.scores.iter().for_each(|score| list.add(tokenizer, score.id, Some(score)));
            list.end(tokenizer, reply);
            self.choice(index, &text, list.take(), Some(finish_reason(reply.finish)))
        };
        let choices = replies.iter().enumerate().map(choice).collect();
        let mut response = self.response(choices);
        response["usage"] = usage.json();
        response
    }
}

/// The log-probabilities of a completion: lists with one item per token.
#[derive(Default)]
struct Listed {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
    stream: DecodeStream,
    /// Characters of text so far.
    characters: usize,
}

impl Listed {
    /// Adds the tokens of a prompt. The first one has no score.
    fn prompt(&mut self, tokenizer: &Tokenizer, prompt: &Prompted, scores: &[Score]) {
        let scores = std::iter::once(None).chain(scores.iter().map(Some)).chain(std::iter::repeat(None));
        for (place, (&id, score)) in prompt.ids.iter().zip(scores).enumerate() {
            match place < prompt.added {
                true => self.add_without_text(tokenizer, id, score),
                false => self.add(tokenizer, id, score),
            }
        }
        self.characters += std::mem::take(&mut self.stream).finish().chars().count();
    }

    /// Adds the token with which the model ended its reply, which has no text.
    fn end(&mut self, tokenizer: &Tokenizer, reply: &Reply) {
        if let Some(end) = &reply.end {
            self.add_without_text(tokenizer, end.id, Some(end));
        }
    }

    fn add(&mut self, tokenizer: &Tokenizer, id: u32, score: Option<&Score>) {
        self.add_without_text(tokenizer, id, score);
        self.characters += self.stream.push(tokenizer, id).chars().count();
    }

    fn add_without_text(&mut self, tokenizer: &Tokenizer, id: u32, score: Option<&Score>) {
        self.tokens.push(tokens::text(tokenizer, id, BYTES));
        self.token_logprobs.push(score.map(|score| score.logprob));
        self.top_logprobs.push(score.map(|score| top(tokenizer, score)));
        self.text_offset.push(self.characters);
    }

    /// The lists, which are empty afterwards.
    fn take(&mut self) -> Value {
        json!({
            "tokens": std::mem::take(&mut self.tokens),
            "token_logprobs": std::mem::take(&mut self.token_logprobs),
            "top_logprobs": std::mem::take(&mut self.top_logprobs),
            "text_offset": std::mem::take(&mut self.text_offset),
        })
    }
}

/// The likeliest tokens by their text, and the token itself. Of tokens with equal texts, the likeliest counts.
fn top(tokenizer: &Tokenizer, score: &Score) -> Map<String, Value> {
    let mut map = Map::new();
    for (id, logprob) in score.top.iter().copied().chain([(score.id, score.logprob)]) {
        map.entry(tokens::text(tokenizer, id, BYTES)).or_insert_with(|| logprob.into());
    }
    map
}
