//! `serve`: completions of plain text, and log-probabilities.

use serde_json::{Value as Json, json};

use super::Place;
use super::serve::{Server, hello, with};
use super::talk::{ADAPTER, GREETING};

/// The chat template of the tiny base, written by hand.
const PROMPT: &str = "<|turn>user\nHello!<turn|>\n<|turn>model\n";
/// Largest difference between log-probabilities that the host computes from logits and those of the device.
const CLOSE: f64 = 1e-4;

fn complete(server: &Server, more: Json) -> Json {
    let (status, _, body) = server.ask("POST", "/v1/completions", &more.to_string());
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"))
}

fn numbers(list: &Json) -> Vec<f64> {
    list.as_array().expect("a list").iter().filter_map(Json::as_f64).collect()
}

fn close(found: &[f64], expected: &[f64]) {
    let same = |(found, expected): (&f64, &f64)| (found - expected).abs() < CLOSE;
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(same), "{found:?} {expected:?}");
}

/// One reply at a time, and several.
pub fn completions(place: Place) {
    answers(&Server::start(&place));
    answers(&Server::with(&place, "tiny", &[&format!("--adapter={ADAPTER}=-13"), "--parallel=2"]));
}

fn answers(server: &Server) {
    let chat = chat_logprobs(server);
    let plain = complete(server, json!({ "model": "tiny", "prompt": PROMPT, "max_tokens": 60 }));
    assert_eq!((&plain["object"], &plain["usage"]["total_tokens"]), (&json!("text_completion"), &json!(19)));
    let expected = json!({ "index": 0, "text": GREETING, "logprobs": null, "finish_reason": "stop" });
    assert_eq!(plain["choices"], json!([expected]));
    scored_prompt(server, &chat);
    lists(server);
    streams(server);
    // Tokens of a stop text are not listed.
    let stopped = json!({ "model": "tiny", "prompt": PROMPT, "stop": " can", "logprobs": 0 });
    let stopped = &complete(server, stopped)["choices"][0];
    assert_eq!(stopped["text"], "Hello! How");
    let tokens = stopped["logprobs"]["tokens"].as_array().expect("a list").iter().filter_map(Json::as_str);
    assert_eq!(tokens.collect::<String>(), "Hello! How");
    refusals(server);
}

/// The log-probabilities of a chat completion, whole and streamed. Returns those of its tokens.
fn chat_logprobs(server: &Server) -> Vec<f64> {
    let ask = |more: Json| with(with(hello("tiny"), json!({ "logprobs": true, "top_logprobs": 3 })), more);
    let (status, whole) = server.post(&ask(json!({})));
    assert_eq!(status, 200, "{whole}");
    let logprobs = &whole["choices"][0]["logprobs"];
    assert_eq!(logprobs["refusal"], Json::Null);
    let content = logprobs["content"].as_array().expect("a list");
    assert_eq!(content.len(), 8, "the end token is not among them: {whole}");
    for token in content {
        let text = token["token"].as_str().expect("a string");
        let bytes: Vec<u64> = text.bytes().map(u64::from).collect();
        assert_eq!(token["bytes"], json!(bytes));
        let top = token["top_logprobs"].as_array().expect("a list");
        let likeliest = json!({ "token": text, "logprob": token["logprob"], "bytes": bytes });
        assert_eq!((top.len(), &top[0]), (3, &likeliest), "the likeliest token is chosen");
        let logprobs = top.iter().map(|t| t["logprob"].as_f64().expect("a number"));
        assert!(
            logprobs.clone().is_sorted_by(|a, b| a >= b) && logprobs.map(f64::exp).sum::<f64>() <= 1.0 + 1e-9
        );
    }
    let text: String = content.iter().filter_map(|token| token["token"].as_str()).collect();
    assert_eq!(text, GREETING);
    let events = server.stream(&ask(json!({ "stream": true })));
    let streamed = events.iter().filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array()).flatten();
    assert_eq!(streamed.cloned().collect::<Vec<Json>>(), *content);
    // Temperature and penalties change the choice, not the log-probabilities.
    let hot = ask(json!({ "temperature": 1.5, "seed": 3, "presence_penalty": 1, "max_tokens": 1 }));
    let (_, hot) = server.post(&hot);
    assert_eq!(hot["choices"][0]["logprobs"]["content"][0]["top_logprobs"], content[0]["top_logprobs"]);
    content.iter().map(|token| token["logprob"].as_f64().expect("a number")).collect()
}

/// What lm-eval asks: the log-probabilities of a prompt's tokens. `reply`: those of the greeting's tokens when it was chosen.
fn scored_prompt(server: &Server, reply: &[f64]) {
    let text = format!("{PROMPT}{GREETING}");
    let ask = |max_tokens: u64| {
        let body =
            json!({ "model": "tiny", "prompt": text, "echo": true, "logprobs": 1, "max_tokens": max_tokens });
        complete(server, body)
    };
    let scored = ask(0);
    assert_eq!(
        (&scored["usage"]["prompt_tokens"], &scored["usage"]["completion_tokens"]),
        (&json!(19), &json!(0))
    );
    assert_eq!(scored["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let choice = &scored["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text), &json!("length")));
    let list = &choice["logprobs"];
    let places = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    assert!(places.iter().all(|name| list[name].as_array().is_some_and(|list| list.len() == 19)), "{list}");
    assert_eq!((&list["token_logprobs"][0], &list["top_logprobs"][0]), (&Json::Null, &Json::Null));
    assert_eq!((&list["tokens"][0], &list["text_offset"][0]), (&json!("<bos>"), &json!(0)));
    let own = numbers(&list["token_logprobs"]);
    close(&own[10..], reply);
    let letters: Vec<char> = text.chars().collect();
    for place in 1..19 {
        let (token, offset) = (list["tokens"][place].as_str(), list["text_offset"][place].as_u64());
        let (token, offset) = (token.expect("a string"), offset.expect("a number") as usize);
        assert!(letters[offset..].iter().collect::<String>().starts_with(token), "{token:?} at {offset}");
    }
    // Greedy tokens are exactly the likeliest: lm-eval compares the numbers.
    for place in 11..19 {
        let top = list["top_logprobs"][place].as_object().expect("an object");
        assert_eq!(top.len(), 1);
        assert_eq!(top.values().next(), Some(&list["token_logprobs"][place]));
    }
    // lm-eval 0.4 asks for one more token, whose log-probability it drops. The end token is listed for it.
    let one_more = ask(1);
    let more = numbers(&one_more["choices"][0]["logprobs"]["token_logprobs"]);
    assert_eq!((more.len(), &one_more["choices"][0]["finish_reason"]), (19, &json!("stop")));
    close(&more[..18], &own);
    assert_eq!(one_more["choices"][0]["text"], text);
    assert_eq!(one_more["choices"][0]["logprobs"]["tokens"][19], "<turn|>");
    // The cache continues as usual.
    let (_, again) = server.post(&hello("tiny"));
    assert_eq!(again["choices"][0]["message"]["content"], GREETING);
}

/// Lists of texts and of ids.
fn lists(server: &Server) {
    let body = json!({ "model": "tiny", "prompt": [PROMPT, "<|turn>user\nWhat is 7 plus 8?<turn|>\n<|turn>model\n"], "max_tokens": 60 });
    let both = complete(server, body);
    let texts: Vec<&Json> = both["choices"].as_array().expect("a list").iter().map(|c| &c["text"]).collect();
    assert_eq!(texts, [&json!(GREETING), &json!("7 plus 8 is 15.")]);
    assert_eq!(both["choices"][1]["index"], 1);
    let scored = |prompt: Json| {
        let body = json!({ "model": "tiny", "prompt": prompt, "echo": true, "logprobs": 2, "max_tokens": 0 });
        complete(server, body)["choices"].clone()
    };
    // Token ids are taken as they are: without the first token of a sequence.
    let ids = scored(json!([[2, 100, 101, 102], [2, 100]]));
    assert_eq!(
        numbers(&ids[0]["logprobs"]["token_logprobs"])[..1],
        numbers(&ids[1]["logprobs"]["token_logprobs"])
    );
    assert_eq!(scored(json!([2, 100]))[0]["logprobs"], ids[1]["logprobs"]);
    assert_eq!(scored(json!([100]))[0]["logprobs"]["token_logprobs"], json!([null]));
}

fn streams(server: &Server) {
    for more in [json!({}), json!({ "echo": true }), json!({ "echo": true, "max_tokens": 0 })] {
        let body = json!({ "model": "tiny", "prompt": [PROMPT, PROMPT], "max_tokens": 60, "logprobs": 2 });
        let body = with(body, more);
        let whole = complete(server, body.clone());
        let stream = json!({ "stream": true, "stream_options": { "include_usage": true } });
        let events = server.stream_of("/v1/completions", &with(body, stream));
        let (last, events) = events.split_last().expect("events");
        assert_eq!(
            (&last["choices"], &last["usage"]["total_tokens"]),
            (&json!([]), &whole["usage"]["total_tokens"])
        );
        for index in 0..2 {
            let of = || events.iter().map(|e| &e["choices"][0]).filter(|c| c["index"] == index);
            let expected = &whole["choices"][index];
            let text: String = of().filter_map(|c| c["text"].as_str()).collect();
            assert_eq!(json!(text), expected["text"]);
            for name in ["tokens", "top_logprobs", "text_offset"] {
                let all: Vec<Json> =
                    of().filter_map(|c| c["logprobs"][name].as_array()).flatten().cloned().collect();
                assert_eq!(json!(all), expected["logprobs"][name], "{name}");
            }
            assert_eq!(of().next_back().expect("an end")["finish_reason"], expected["finish_reason"]);
        }
    }
}

fn refusals(server: &Server) {
    let bad = |more: Json, param: &str, expected: &str| {
        let body = with(json!({ "model": "tiny", "prompt": "a" }), more);
        server.refuses_at("/v1/completions", &body.to_string(), 400, json!(param), expected);
    };
    bad(json!({ "prompt": null }), "prompt", "prompt: is missing: expected a string, or a list of token ids");
    bad(
        json!({ "prompt": "" , "max_tokens": 1100 }),
        "prompt",
        "prompt: has 1 tokens, with max_tokens = 1100 that is more than the context of 1024; …",
    );
    bad(json!({ "prompt": [[]] }), "prompt", "prompt: has no tokens; expected at least one");
    bad(
        json!({ "prompt": [2, 9_999_999] }),
        "prompt",
        "prompt: token id 9999999 does not exist, the last one is …",
    );
    bad(json!({ "prompt": "word ".repeat(3000) }), "prompt", "prompt: has … tokens, …the context …");
    bad(json!({ "suffix": "b" }), "suffix", "suffix: is not supported: …");
    bad(
        json!({ "max_tokens": 0 }),
        "max_tokens",
        "max_tokens: is 0, which is only allowed with \"echo\": true",
    );
    bad(json!({ "logprobs": 21 }), "logprobs", "logprobs: expected an integer from 0 to 20, found 21");
    bad(json!({ "best_of": 2 }), "best_of", "best_of: only 1 is supported; remove this field");
    let chat = |more: Json, param: &str, expected: &str| {
        server.refuses(&with(hello("tiny"), more).to_string(), 400, json!(param), expected);
    };
    chat(
        json!({ "top_logprobs": 2 }),
        "top_logprobs",
        "top_logprobs: is only allowed with \"logprobs\": true",
    );
    chat(
        json!({ "logprobs": true, "top_logprobs": 21 }),
        "top_logprobs",
        "top_logprobs: expected an integer from 0 to 20, found 21",
    );
    chat(json!({ "logprobs": 1 }), "logprobs", "logprobs: expected true or false, found 1");
}

/// A template that has no place for what a client sends is refused in words for the client.
pub fn words(place: Place) {
    let template = "{{ bos_token }}{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}\
        {% if add_generation_prompt %}<|turn>model\n{% endif %}";
    place.write("plain.jinja", template);
    let server = Server::with(&place, "tiny", &["--template=plain.jinja"]);
    let bad = |more: Json, param: &str, lost: &str| {
        let expected = format!(
            "{param}: the model's chat template has no place for \"{lost}\", so the model would not see it; leave it out"
        );
        server.refuses(&with(hello("tiny"), more).to_string(), 400, json!(param), &expected);
    };
    bad(json!({ "tools": [{ "type": "function", "function": { "name": "f" } }] }), "tools", "tools");
    bad(json!({ "chat_template_kwargs": { "tone": "kind" } }), "chat_template_kwargs", "tone");
    let call = json!({ "role": "assistant", "tool_calls": [{ "function": { "name": "f" } }] });
    let messages = json!([{ "role": "user", "content": "a" }, call, { "role": "tool", "content": "b" }]);
    bad(json!({ "messages": messages }), "messages", "tool_calls");
}
