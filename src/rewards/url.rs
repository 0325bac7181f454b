//! The reward `url`: what a judge behind an OpenAI-compatible API answers.

mod message;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body, http::Response};

use super::error::shortened;
use super::{Completion, Judge, RewardError, Values};
use crate::data::dataset::Invalid;
use crate::hub::{self, Sent};
use crate::recipe::JudgeReward;

/// Times that a request without an answer is sent again.
const RETRIES: u32 = 5;
/// Characters of an answer in messages.
const SHOWN: usize = 300;

/// The value of a completion.
type Score = Result<Option<f64>, RewardError>;

/// The reward `url`.
pub(super) struct Url {
    name: String,
    judge: JudgeReward,
    address: String,
    key: Option<String>,
    agent: Agent,
}

impl Url {
    /// Reads the key of the API from the environment. Connects to nothing.
    pub fn new(name: &str, judge: &JudgeReward) -> Result<Url, RewardError> {
        let wrong = |key, message| RewardError::Key { reward: name.into(), key, message };
        let key = match &judge.api_key_env {
            None => None,
            Some(variable) => {
                let value = std::env::var(variable).unwrap_or_default().trim().to_owned();
                if value.is_empty() {
                    let message = format!(
                        "the environment variable {variable} is not set; set it to the key of the API"
                    );
                    return Err(wrong("api_key_env", message));
                }
                Some(value)
            }
        };
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("rullama-train/", env!("CARGO_PKG_VERSION")))
            .timeout_global(Some(Duration::from_secs_f64(judge.timeout)));
        if let Some(roots) = hub::own_certificates().map_err(|error| wrong("url", error.to_string()))? {
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        let base = judge.url.trim_end_matches('/');
        let end = "/chat/completions";
        let address = if base.ends_with(end) { base.to_owned() } else { format!("{base}{end}") };
        Ok(Url { name: name.into(), judge: judge.clone(), address, key, agent: config.build().into() })
    }

    fn failed(&self, problem: String) -> RewardError {
        RewardError::Failed { reward: self.name.clone(), message: problem }
    }

    fn score_one(&self, completion: &Completion<'_>) -> Score {
        let text = message::of(&self.judge, completion).map_err(|problem| self.failed(problem))?;
        let Some(text) = text else { return Ok(None) };
        let reply = self.ask(&text).map_err(|problem| self.failed(problem))?;
        match (message::score(&reply, self.judge.max_score), self.judge.invalid) {
            (Some(score), _) => Ok(Some(score / self.judge.max_score)),
            (None, Invalid::Drop) => Ok(None),
            (None, Invalid::Error) => Err(self.failed(format!(
                "{} answered {:?}; expected a number from 0 to {} at the end; change rewards.rubric, or set rewards.invalid = \"drop\"",
                self.judge.model,
                shortened(&reply, SHOWN),
                self.judge.max_score
            ))),
        }
    }

    /// Asks the judge until there is an answer.
    fn ask(&self, text: &str) -> Result<String, String> {
        let body = json!({
            "model": self.judge.model,
            "messages": [{ "role": "user", "content": text }],
            "temperature": self.judge.temperature,
        })
        .to_string();
        hub::persist(RETRIES, || {
            let mut request = self.agent.post(&self.address).header("Content-Type", "application/json");
            if let Some(key) = &self.key {
                request = request.header("Authorization", format!("Bearer {key}"));
            }
            match request.send(&body) {
                Ok(answer) if answer.status().as_u16() == 429 || answer.status().is_server_error() => {
                    let wait = hub::retry_after(&answer);
                    Sent::Again(self.refusal(answer), wait)
                }
                Ok(answer) if !answer.status().is_success() => Sent::Over(Err(self.refusal(answer))),
                Ok(mut answer) => match answer.body_mut().read_to_string() {
                    Ok(text) => Sent::Over(self.reply(&text)),
                    Err(error) => Sent::Again(self.unreachable(&error), None),
                },
                Err(error) => Sent::Again(self.unreachable(&error), None),
            }
        })
    }

    /// The text of an answer.
    fn reply(&self, text: &str) -> Result<String, String> {
        let answer: Option<Value> = serde_json::from_str(text).ok();
        let content = answer.as_ref().map(|answer| &answer["choices"][0]["message"]["content"]);
        match content {
            Some(Value::String(content)) => Ok(content.clone()),
            // A judge that thought up to its limit says nothing.
            Some(Value::Null)
                if answer.as_ref().is_some_and(|answer| answer["choices"][0]["message"].is_object()) =>
            {
                Ok(String::new())
            }
            _ => Err(format!(
                "{} answered {:?}; expected choices[0].message.content, as OpenAI's API answers; check rewards.url",
                self.address,
                shortened(text, SHOWN)
            )),
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> String {
        let next = match error {
            ureq::Error::Timeout(_) => "raise rewards.timeout, or lower rewards.requests",
            _ => "check that the server runs, and rewards.url",
        };
        format!("{} gave no answer ({error}); {next}", self.address)
    }

    /// The meaning of an answer other than success.
    fn refusal(&self, mut answer: Response<Body>) -> String {
        let status = answer.status();
        let text = answer.body_mut().read_to_string().unwrap_or_default();
        let next = match status.as_u16() {
            401 | 403 if self.key.is_none() => {
                "set rewards.api_key_env to the environment variable with the key"
            }
            401 | 403 => "check the key in the environment variable of rewards.api_key_env",
            404 => "check rewards.url and rewards.model",
            429 => "lower rewards.requests, or try again later",
            500.. => "try again later",
            _ => "check rewards.model and rewards.temperature",
        };
        format!("{} answered {status} {:?}; {next}", self.address, shortened(&text, SHOWN))
    }
}

impl Judge for Url {
    fn score(&mut self, completions: &[Completion<'_>]) -> Result<Values, RewardError> {
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let scores: Mutex<Vec<(usize, Score)>> = Mutex::default();
        let this = &*self;
        std::thread::scope(|scope| {
            for _ in 0..this.judge.requests.min(completions.len()) {
                scope.spawn(|| {
                    while !failed.load(Ordering::Relaxed) {
                        let of = next.fetch_add(1, Ordering::Relaxed);
                        let Some(completion) = completions.get(of) else { return };
                        let score = this.score_one(completion);
                        failed.fetch_or(score.is_err(), Ordering::Relaxed);
                        scores.lock().unwrap_or_else(PoisonError::into_inner).push((of, score));
                    }
                });
            }
        });
        let mut scores = scores.into_inner().unwrap_or_else(PoisonError::into_inner);
        scores.sort_by_key(|(of, _)| *of);
        scores.into_iter().map(|(_, score)| score).collect()
    }
}

#[cfg(test)]
mod tests;
