//! Requests to the server, and the file of compiled pipelines: readers that belong to the program.

#[allow(dead_code, reason = "some parts are for the program alone")]
#[path = "../../../crates/program/src/cli/serve/completion.rs"]
mod completion;
#[allow(dead_code, reason = "some parts are for the program alone")]
#[path = "../../../crates/program/src/cli/serve/fields.rs"]
mod fields;
#[allow(dead_code, reason = "some parts are for the program alone")]
#[path = "../../../crates/program/src/cli/serve/messages.rs"]
mod messages;
#[allow(dead_code, reason = "some parts are for the program alone")]
#[path = "../../../crates/program/src/cli/setup/pipelines_file.rs"]
mod pipelines_file;
#[allow(dead_code, reason = "some parts are for the program alone")]
#[path = "../../../crates/program/src/cli/serve/request.rs"]
mod request;

use rullama_train::data::template::Template;
use rullama_train::families::gemma4;
use rullama_train::gpu::PipelinesKey;
use rullama_train::talk::generate::Options;
use rullama_train::talk::sampling::Sampling;
use serde_json::json;

use super::{Outcome, accepted_if, refused, tokenizer};

pub fn bodies() -> Vec<Vec<u8>> {
    let calls =
        json!([{ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{\"a\": 1}" } }]);
    let all = json!({
        "model": "tiny", "stream": true, "stream_options": { "include_usage": true }, "temperature": 0.7, "top_p": 0.9,
        "top_k": 40, "min_p": 0.1, "seed": 7, "max_tokens": 20, "stop": ["a", "b"], "repetition_penalty": 1.1,
        "tools": [{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }],
        "logprobs": true, "top_logprobs": 3, "tool_choice": "auto", "chat_template_kwargs": { "enable_thinking": false },
        "messages": [
            { "role": "system", "content": "s" }, { "role": "user", "content": [{ "type": "text", "text": "a" }] },
            { "role": "assistant", "content": null, "tool_calls": calls },
            { "role": "tool", "tool_call_id": "1", "content": "b" },
        ],
    });
    let short = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "Hello!" }] });
    [all, short].map(|body| body.to_string().into_bytes()).to_vec()
}

fn defaults() -> Options {
    let sampling = Sampling {
        temperature: 1.0,
        top_k: 64,
        top_p: 0.95,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 1,
    };
    Options { sampling, max_new_tokens: 100, stop: Vec::new(), logprobs: None }
}

/// A request that is taken has settings that can be used, and a prompt.
pub fn body(input: &[u8]) -> Outcome {
    match request::parse(input, &defaults(), 1) {
        Ok(request) => {
            let template = Template::BuiltIn(&gemma4::template::SMALL);
            match (
                request.settings.options.sampling.check(),
                template.prompt(tokenizer(), &request.conversation),
            ) {
                (Err(problem), _) => Outcome::Wrong(problem),
                (_, Err(error)) => refused(error),
                (_, Ok(prompt)) => accepted_if(!prompt.is_empty(), || "an empty prompt".into()),
            }
        }
        Err(error) => refused(error.message),
    }
}

pub fn completions() -> Vec<Vec<u8>> {
    let all = json!({
        "model": "tiny", "prompt": ["a", [1, 2]], "echo": true, "logprobs": 5, "max_tokens": 0, "suffix": null, "best_of": 1, "n": 1,
        "stop": "a", "seed": 7, "temperature": 0, "stream": false,
    });
    let (text, ids) = (json!({ "prompt": "Hello!" }), json!({ "prompt": [1, 2, 3], "stream": true }));
    [all, text, ids].map(|body| body.to_string().into_bytes()).to_vec()
}

/// A request that is taken has settings that can be used, and prompts.
pub fn completion(input: &[u8]) -> Outcome {
    match completion::parse(input, &defaults(), 1) {
        Ok(request) => match request.settings.options.sampling.check() {
            Err(problem) => Outcome::Wrong(problem),
            Ok(()) => accepted_if(!request.prompts.is_empty(), || "no prompt".into()),
        },
        Err(error) => refused(error.message),
    }
}

fn key() -> PipelinesKey {
    PipelinesKey { device: "a GPU".into(), digest: [7; 32] }
}

const DATA: [u8; 300] = [5; 300];

pub fn pipeline_files() -> Vec<Vec<u8>> {
    vec![pipelines_file::encode(&DATA, &key())]
}

/// Drivers trust the data: they are never changed.
pub fn pipelines(input: &[u8]) -> Outcome {
    match pipelines_file::decode(input, &key()) {
        Ok(data) => accepted_if(data == DATA, || "other data".into()),
        Err(problem) => refused(problem),
    }
}
