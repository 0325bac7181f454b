//! The model that writes: one of this program's, or one behind an address that speaks as OpenAI's does.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pollster::block_on;
use rullama_train::data::template::ReplyParts;
use rullama_train::talk::conversation::{self, Conversation};
use rullama_train::talk::generate::{Finish, Generator, Options};
use serde_json::{Value, json};

use crate::cli::talk::Loaded;

/// A reply, and whether the model ended it.
pub struct Reply {
    pub text: String,
    pub whole: bool,
}

/// Something that replies to a prompt.
pub enum Writer<'a> {
    Local { loaded: &'a Loaded, generator: Box<Generator<'a>>, options: Options },
    Remote(Remote),
}

/// A server.
pub struct Remote {
    agent: ureq::Agent,
    address: String,
    model: String,
    key: Option<String>,
    tokens: usize,
    temperature: f64,
}

impl Remote {
    /// The server at `url`, such as `http://127.0.0.1:11434/v1`. The key is that of `OPENAI_API_KEY`.
    pub fn new(url: &str, model: &str, tokens: usize, temperature: f64) -> Remote {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(600)));
        let base = url.trim_end_matches('/');
        let address = if base.ends_with("/chat/completions") {
            base.into()
        } else {
            format!("{base}/chat/completions")
        };
        let key = std::env::var("OPENAI_API_KEY").ok().filter(|key| !key.is_empty());
        Remote { agent: config.build().into(), address, model: model.into(), key, tokens, temperature }
    }

    fn reply(&self, prompt: &str) -> Result<Reply> {
        let body = json!({
            "model": self.model, "messages": [{ "role": "user", "content": prompt }], "max_tokens": self.tokens,
            "temperature": self.temperature,
        });
        let mut request = self.agent.post(&self.address).header("Content-Type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let sent = request.send(body.to_string());
        let mut answer =
            sent.with_context(|| format!("{} cannot be reached; is the server running?", self.address))?;
        let status = answer.status();
        let text =
            answer.body_mut().read_to_string().with_context(|| format!("{} broke off", self.address))?;
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let choice = &value["choices"][0];
        let Some(content) = choice["message"]["content"].as_str().filter(|_| status.is_success()) else {
            let said = value["error"]["message"].as_str().unwrap_or(&text);
            let said: String = said.chars().take(300).collect();
            bail!(
                "{} answered {status}, expected a chat completion: {said}; check --url and the model's name",
                self.address
            );
        };
        Ok(Reply { text: without_thoughts(content), whole: choice["finish_reason"] != "length" })
    }
}

impl Writer<'_> {
    /// Replies to `prompt`.
    pub fn reply(&mut self, prompt: &str) -> Result<Reply> {
        match self {
            Writer::Remote(remote) => remote.reply(prompt),
            Writer::Local { loaded, generator, options } => {
                let frozen = &loaded.frozen;
                let ids = Conversation::new(None).ask(&frozen.template, &frozen.tokenizer, prompt)?.ids;
                let reply = block_on(generator.reply(&ids, options, |_| ControlFlow::Continue(())))?;
                let parts = ReplyParts::to(&ids, &frozen.tokenizer);
                let text = conversation::message(parts, &reply.text).content.trim().to_owned();
                Ok(Reply { text, whole: reply.finish == Finish::Stop })
            }
        }
    }
}

/// The reply behind its thoughts, as far as a server leaves them in it.
fn without_thoughts(text: &str) -> String {
    text.rsplit_once("</think>").map_or(text, |(_, rest)| rest).trim().to_owned()
}
