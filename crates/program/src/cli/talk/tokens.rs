//! Tokens as text and as JSON.

use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::talk::ending::Ending;
use rullama_train::talk::generate::{Finish, Reply};
use rullama_train::talk::scores::Score;
use serde_json::{Value, json};

/// The text of a token. Bytes that are no characters are spelled `\xe2`, after `mark`.
pub fn text(tokenizer: &Tokenizer, id: u32, mark: &str) -> String {
    let bytes = tokenizer.token_bytes(id);
    match std::str::from_utf8(&bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold(mark.to_owned(), |text, byte| text + &format!("\\x{byte:02x}")),
    }
}

/// Text, bytes and log-probability of a token, as OpenAI's API gives them.
pub fn scored(tokenizer: &Tokenizer, id: u32, logprob: f64) -> Value {
    json!({ "token": text(tokenizer, id, ""), "logprob": logprob, "bytes": &*tokenizer.token_bytes(id) })
}

/// [`scored`] with the likeliest tokens at the token's place.
pub fn with_top(tokenizer: &Tokenizer, score: &Score) -> Value {
    let mut token = scored(tokenizer, score.id, score.logprob);
    token["top_logprobs"] = score.top.iter().map(|(id, logprob)| scored(tokenizer, *id, *logprob)).collect();
    token
}

/// [`with_top`] with the ids of all tokens.
pub fn with_ids(tokenizer: &Tokenizer, score: &Score) -> Value {
    let mut token = with_top(tokenizer, score);
    token["id"] = score.id.into();
    for (value, (id, _)) in token["top_logprobs"].as_array_mut().into_iter().flatten().zip(&score.top) {
        value["id"] = (*id).into();
    }
    token
}

/// OpenAI's `finish_reason`.
pub fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::Cancelled => "stop",
        Finish::Length | Finish::Context => "length",
    }
}

/// Adds a reply to the prompt `ids` to an object for `--json`.
pub fn add_reply(object: &mut Value, ids: &[u32], reply: &Reply) {
    object["text"] = json!(reply.text);
    object["finish_reason"] = json!(finish_reason(reply.finish));
    object["ending"] = json!(Ending::of(reply));
    object["prompt_tokens"] = json!(reply.prompt_tokens);
    object["completion_tokens"] = json!(reply.ids.len());
    object["prompt_ids"] = json!(ids);
    object["ids"] = json!(reply.ids);
}

/// Adds the scores of a reply's tokens to it.
pub fn add_scores(object: &mut Value, tokenizer: &Tokenizer, reply: &Reply) {
    object["logprobs"] = reply.scores.iter().map(|score| with_ids(tokenizer, score)).collect();
}
