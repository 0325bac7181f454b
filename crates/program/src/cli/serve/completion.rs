//! Reading and checking a request for a completion: plain text that the model continues.

use rullama_train::talk::generate::Options;
use rullama_train::talk::scores::MAX_TOP;
use serde_json::Value;

use super::fields::{Fields, kind};
use super::request::{self, Settings};
use crate::cli::http::ApiError;

/// Default length limit of a completion, as in OpenAI's API.
const MAX_TOKENS: usize = 16;
/// Most prompts of one request.
const MAX_PROMPTS: usize = 128;

/// A request for completions.
pub struct Completion {
    pub settings: Settings,
    pub prompts: Vec<Prompt>,
    /// Whether the response repeats the prompts.
    pub echo: bool,
}

/// A prompt as a request gives it.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// Parses a request. Missing options are taken from `defaults`, a missing seed is `seed`.
pub fn parse(body: &[u8], defaults: &Options, seed: u64) -> Result<Completion, ApiError> {
    let mut fields = request::fields_of(body)?;
    let prompts = prompts(&mut fields)?;
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let max_new_tokens = MAX_TOKENS.min(defaults.max_new_tokens);
    let defaults = Options { max_new_tokens, ..defaults.clone() };
    let mut settings = request::settings(&mut fields, &defaults, seed, 0)?;
    settings.options.logprobs = fields.up_to("logprobs", MAX_TOP)?;
    if settings.options.max_new_tokens == 0 && !echo {
        return Err(ApiError::at("max_tokens", "is 0, which is only allowed with \"echo\": true"));
    }
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::at(
            "suffix",
            "is not supported: text is continued at its end only; remove this field",
        ));
    }
    fields.finish()?;
    Ok(Completion { settings, prompts, echo })
}

/// Reads `prompt`: a string, a list of strings, a list of token ids, or a list of these.
fn prompts(fields: &mut Fields) -> Result<Vec<Prompt>, ApiError> {
    let wrong = |found: &Value| {
        let expected = "expected a string, a list of strings, a list of token ids, or a list of such lists";
        ApiError::at("prompt", format!("{expected}, found {}", kind(found)))
    };
    let prompts = match fields.take("prompt") {
        None => return Err(ApiError::at("prompt", "is missing: expected a string, or a list of token ids")),
        Some(Value::String(text)) => vec![Prompt::Text(text)],
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => {
            vec![Prompt::Ids(ids(&list)?)]
        }
        Some(Value::Array(list)) => {
            if list.len() > MAX_PROMPTS {
                let message = format!(
                    "has {} prompts, expected at most {MAX_PROMPTS}; send several requests",
                    list.len()
                );
                return Err(ApiError::at("prompt", message));
            }
            let one = |value| match value {
                Value::String(text) => Ok(Prompt::Text(text)),
                Value::Array(list) => ids(&list).map(Prompt::Ids),
                other => Err(wrong(&other)),
            };
            list.into_iter().map(one).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong(&other)),
    };
    match prompts.is_empty() {
        true => Err(ApiError::at("prompt", "is an empty list: expected at least one prompt")),
        false => Ok(prompts),
    }
}

fn ids(list: &[Value]) -> Result<Vec<u32>, ApiError> {
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| {
            ApiError::at("prompt", format!("expected token ids, which are integers from 0 on, found {value}"))
        })
    };
    list.iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use rullama_train::talk::sampling::Sampling;
    use serde_json::json;

    use super::*;

    fn parsed(body: Value) -> Result<Completion, String> {
        let options =
            Options { sampling: Sampling::GREEDY, max_new_tokens: 100, stop: Vec::new(), logprobs: None };
        parse(body.to_string().as_bytes(), &options, 1).map_err(|error| error.message)
    }

    #[test]
    fn prompts_have_four_forms() {
        let of = |prompt: Value| parsed(json!({ "prompt": prompt })).map(|request| request.prompts);
        let (text, ids) = (Prompt::Text("a".into()), Prompt::Ids(vec![1, 2]));
        assert_eq!(of(json!("a")), Ok(vec![text.clone()]));
        assert_eq!(of(json!(["a", "a"])), Ok(vec![text.clone(), text]));
        assert_eq!(of(json!([1, 2])), Ok(vec![ids.clone()]));
        assert_eq!(of(json!([[1, 2], [1, 2]])), Ok(vec![ids.clone(), ids]));
        let refused = |prompt: Value, expected: &str| {
            let message = of(prompt).expect_err("it is refused");
            assert!(message.contains(expected), "{message}");
        };
        refused(json!([]), "is an empty list");
        refused(json!({}), "found an object");
        refused(json!([1, "a"]), "found \"a\"");
        refused(json!([-1]), "found -1");
        refused(json!([["a"]]), "found \"a\"");
        refused(json!([true]), "found a boolean");
        refused(json!(vec!["a"; 129]), "has 129 prompts, expected at most 128");
    }

    #[test]
    fn options_are_those_of_the_api() {
        let request = parsed(
            json!({ "prompt": "a", "echo": true, "max_tokens": 0, "logprobs": 5, "suffix": "", "best_of": 1 }),
        );
        let request = request.expect("it is taken");
        let options = &request.settings.options;
        assert_eq!((request.echo, options.max_new_tokens, options.logprobs), (true, 0, Some(5)));
        let plain = parsed(json!({ "prompt": "a" })).expect("it is taken").settings.options;
        assert_eq!((plain.max_new_tokens, plain.logprobs), (16, None));
        for (more, expected) in [
            (json!({ "max_tokens": 0 }), "max_tokens: is 0, which is only allowed with \"echo\": true"),
            (json!({ "logprobs": 21 }), "logprobs: expected an integer from 0 to 20, found 21"),
            (json!({ "logprobs": true }), "logprobs: expected an integer from 0 to 20, found true"),
            (json!({ "suffix": "b" }), "suffix: is not supported: …"),
            (json!({ "best_of": 2 }), "best_of: only 1 is supported; remove this field"),
            (json!({ "messages": [] }), "messages: is not supported; remove this field"),
        ] {
            let mut body = json!({ "prompt": "a" });
            more.as_object().into_iter().flatten().for_each(|(name, value)| body[name] = value.clone());
            let message = parsed(body).err().expect("it is refused");
            let expected = expected.trim_end_matches('…');
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
