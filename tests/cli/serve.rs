//! `serve`: OpenAI's chat completions over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::talk::{ADAPTED, ADAPTER, GREETING};
use super::{Place, tool_base};

/// A server on a free port, killed at the end of the test.
pub struct Server {
    pub child: Child,
    pub address: String,
    pub output: BufReader<ChildStdout>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

impl Server {
    pub fn start(place: &Place) -> Server {
        Server::with(place, "tiny", &[&format!("--adapter={ADAPTER}=-13")])
    }

    pub fn with(place: &Place, base: &str, arguments: &[&str]) -> Server {
        let fixed = ["serve", base, "--port=0", "--temperature=0", "--max-tokens=60"];
        Server::from_command(place.command(&[&fixed, arguments].concat()))
    }

    /// Starts the server of a command, on any port.
    pub fn from_command(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.starts_with("serving") {
            line.clear();
            assert!(output.read_line(&mut line).expect("UTF-8") > 0, "the server starts");
        }
        let address = line.split("http://").nth(1).and_then(|l| l.split('/').next()).expect("an address");
        Server { child, address: address.into(), output }
    }

    /// Sends a request. The caller reads the response.
    pub fn send(&self, method: &str, path: &str, body: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("sent");
        BufReader::new(stream)
    }

    /// Sends a request and returns status, content type and body.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String, String) {
        let mut answer = String::new();
        self.send(method, path, body).read_to_string(&mut answer).expect("UTF-8");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        let field = |name: &str| {
            let find = |line: &str| Some(line.to_lowercase().strip_prefix(&format!("{name}: "))?.to_owned());
            head.lines().find_map(find).unwrap_or_default()
        };
        let body = if field("transfer-encoding") == "chunked" { dechunk(body) } else { body.to_owned() };
        (status, field("content-type"), body)
    }

    pub fn post(&self, body: &Json) -> (u16, Json) {
        let (status, kind, body) = self.ask("POST", "/v1/chat/completions", &body.to_string());
        assert_eq!(kind, "application/json", "{body}");
        (status, serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}")))
    }

    /// Expects an error in OpenAI's format, in whose message `…` stands for anything.
    pub fn refuses(&self, body: &str, status: u16, param: Json, expected: &str) {
        self.refuses_at("/v1/chat/completions", body, status, param, expected);
    }

    /// [`Server::refuses`] for any route.
    pub fn refuses_at(&self, path: &str, body: &str, status: u16, param: Json, expected: &str) {
        let (found, kind, text) = self.ask("POST", path, body);
        let error: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let error = &error["error"];
        assert_eq!((found, kind.as_str(), &error["param"]), (status, "application/json", &param), "{text}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(super::matches(error["message"].as_str().expect("a string"), expected), "{text}");
    }

    /// Expects an error about the field `param` of a request with the fields `more`.
    fn refuses_field(&self, more: Json, param: &str, expected: &str) {
        self.refuses(&with(hello("tiny"), more).to_string(), 400, json!(param), expected);
    }

    /// The events of a streamed response.
    pub fn stream(&self, body: &Json) -> Vec<Json> {
        self.stream_of("/v1/chat/completions", body)
    }

    /// [`Server::stream`] for any route.
    pub fn stream_of(&self, path: &str, body: &Json) -> Vec<Json> {
        let (status, kind, body) = self.ask("POST", path, &body.to_string());
        assert_eq!((status, kind.as_str()), (200, "text/event-stream"), "{body}");
        let body = body.strip_suffix("data: [DONE]\n\n").expect("an end");
        let event =
            |line: &str| serde_json::from_str(line.strip_prefix("data: ").expect("data")).expect("JSON");
        body.split("\n\n").filter(|line| !line.is_empty()).map(event).collect()
    }

    /// The next line that the server prints.
    pub fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("UTF-8");
        line
    }
}

fn dechunk(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        text += &rest[..size];
        body = &rest[size + 2..];
    }
    text
}

pub fn hello(model: &str) -> Json {
    json!({ "model": model, "messages": [{ "role": "user", "content": "Hello!" }] })
}

/// Adds fields to a body.
pub fn with(mut body: Json, more: Json) -> Json {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// Starts a server, asks for two replies, and kills it.
pub fn one_reply(place: &Place) {
    let server = Server::start(place);
    assert_eq!(server.post(&hello("tiny")).0, 200);
    assert_eq!(server.post(&hello("tiny")).0, 200, "the first request is finished now");
}

/// One reply at a time, and several.
pub fn serve(place: Place) {
    answers(&Server::start(&place));
    answers(&Server::with(&place, "tiny", &[&format!("--adapter={ADAPTER}=-13"), "--parallel=3"]));
}

fn answers(server: &Server) {
    let (status, _, body) = server.ask("GET", "/v1/models", "");
    let list: Json = serde_json::from_str(&body).expect("JSON");
    let ids: Vec<&str> =
        list["data"].as_array().expect("a list").iter().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!((status, &ids[..]), (200, &["tiny", "tiny+adapter"][..]));
    assert_eq!(server.ask("GET", "/v1/models/tiny+adapter", "").0, 200);

    let (status, whole) = server.post(&hello("tiny"));
    assert_eq!((status, &whole["object"]), (200, &json!("chat.completion")), "{whole}");
    assert_eq!(
        whole["choices"][0]["message"],
        json!({"role": "assistant", "content": GREETING, "refusal": null})
    );
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let usage = &whole["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"], &usage["total_tokens"]),
        (&json!(11), &json!(8), &json!(19))
    );
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    // The conversation so far is cached; content may be a list of parts.
    let (_, next) = server.post(&json!({ "model": "tiny", "max_completion_tokens": 4, "messages": [
        { "role": "user", "content": [{ "type": "text", "text": "Hel" }, { "type": "text", "text": "lo!" }] },
        { "role": "assistant", "content": GREETING },
        { "role": "user", "content": "What is 7 plus 8?" },
    ] }));
    assert_eq!(next["choices"][0]["finish_reason"], "length");
    assert_eq!(next["usage"]["completion_tokens"], 4);
    assert_eq!(next["usage"]["prompt_tokens_details"]["cached_tokens"], 19, "{next}");
    let (_, adapted) = server.post(&hello("tiny+adapter"));
    assert_eq!(adapted["choices"][0]["message"]["content"], ADAPTED);
    let (_, stopped) =
        server.post(&with(hello("tiny"), json!({ "stop": ["can"], "n": 1, "tools": [], "user": "x" })));
    assert_eq!(stopped["choices"][0]["message"]["content"], "Hello! How ");
    let sampled = |seed: u64| {
        let more = json!({ "temperature": 1.5, "top_k": 0, "top_p": 1, "seed": seed, "max_tokens": 20 });
        server.post(&with(hello("tiny"), more)).1["choices"][0]["message"]["content"].clone()
    };
    assert_eq!(sampled(5), sampled(5));
    assert_ne!(sampled(5), sampled(6));

    let stream = |more: Json| server.stream(&with(hello("tiny"), more));
    let events = stream(json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let content = |e: &Json| e["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(events.iter().filter_map(content).collect::<String>(), GREETING);
    assert!(events.len() > 5, "streamed in pieces: {events:?}");
    assert!(events.iter().all(|e| e["object"] == "chat.completion.chunk" && e["id"] == events[0]["id"]));
    let [.., last, usage] = &events[..] else { panic!("{events:?}") };
    assert_eq!(
        last["choices"][0],
        json!({ "index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop" })
    );
    assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(19)));
    assert_eq!(stream(json!({ "stream": true })).len(), events.len() - 1, "usage only on request");

    // One of two simultaneous requests waits; both are answered.
    let bodies: Vec<_> =
        ["tiny", "tiny"].map(|m| server.send("POST", "/v1/chat/completions", &hello(m).to_string())).into();
    for mut answer in bodies {
        let mut text = String::new();
        answer.read_to_string(&mut text).expect("UTF-8");
        assert!(text.starts_with("HTTP/1.1 200") && text.contains(GREETING), "{text}");
    }
}

/// Requests that come together get the replies that they get alone, also beside one whose client goes away.
pub fn together(place: Place) {
    let adapter = format!("--adapter={ADAPTER}=-13");
    let alone = Server::with(&place, "tiny", &[&adapter]);
    let together = Server::with(&place, "tiny", &[&adapter, "--parallel=3"]);
    let question = |text: &str, more: Json| {
        let messages = json!([{ "role": "user", "content": text }]);
        ("/v1/chat/completions", with(json!({ "model": "tiny", "messages": messages }), more))
    };
    let bodies = [
        question("Hello!", json!({})),
        question("What is 7 plus 8?", json!({ "max_tokens": 3 })),
        question("Spell the word river.", json!({ "temperature": 1.5, "top_k": 0, "top_p": 1, "seed": 5 })),
        question("Hello!", json!({ "temperature": 0.9, "top_k": 20, "seed": 6, "max_tokens": 9 })),
        question("Hello!", json!({ "model": "tiny+adapter" })),
        question("What is 7 plus 8?", json!({ "frequency_penalty": 1.0, "stop": ["."] })),
        (
            "/v1/completions",
            json!({ "model": "tiny", "prompt": ["One", "Two", "Three", "Four"], "max_tokens": 7 }),
        ),
        ("/v1/completions", json!({ "model": "tiny", "prompt": "Once upon", "echo": true, "max_tokens": 2 })),
    ];
    let choices = |mut answer: BufReader<TcpStream>| {
        let mut text = String::new();
        answer.read_to_string(&mut text).expect("UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{text}");
        serde_json::from_str::<Json>(body).expect("JSON")["choices"].clone()
    };
    let ask = |server: &Server, (path, body): &(&str, Json)| server.send("POST", path, &body.to_string());
    let expected: Vec<Json> = bodies.iter().map(|body| choices(ask(&alone, body))).collect();
    for _ in 0..2 {
        let (path, gone) = question("Tell me a long story.", json!({ "stream": true }));
        let mut left = ask(&together, &(path, gone));
        let sent: Vec<BufReader<TcpStream>> = bodies.iter().map(|body| ask(&together, body)).collect();
        left.read_line(&mut String::new()).expect("the first line of the response");
        drop(left);
        let found: Vec<Json> = sent.into_iter().map(choices).collect();
        assert_eq!(found, expected);
    }
}

pub fn bad_requests(place: Place) {
    let server = Server::start(&place);
    let refused = |body: &str, status, param, expected: &str| server.refuses(body, status, param, expected);
    refused("{", 400, Json::Null, "the body is not valid JSON: …");
    refused("[]", 400, Json::Null, "the body is a list, expected a JSON object");
    refused(
        r#"{"model": "tiny"}"#,
        400,
        json!("messages"),
        "messages: is missing: expected a list of messages",
    );
    bad_messages(&server);
    bad_tools(&server);
    bad_options(&server);
    refused(
        &hello("gpt").to_string(),
        404,
        json!("model"),
        "model \"gpt\" does not exist; available: tiny, tiny+adapter",
    );
    for (method, path, status) in [
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v2", 404),
        ("GET", "/v1/models/no", 404),
    ] {
        let (found, _, text) = server.ask(method, path, "");
        let error: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!((found, &error["error"]["type"]), (status, &json!("invalid_request_error")), "{text}");
    }
    // The server still answers.
    assert_eq!(server.post(&hello("tiny")).0, 200);
}

fn bad_messages(server: &Server) {
    let bad = |more: Json, param: &str, expected: &str| server.refuses_field(more, param, expected);
    bad(json!({ "messages": [] }), "messages", "messages: is empty: expected at least one message");
    bad(json!({ "messages": "Hi" }), "messages", "messages: expected a list of messages, found a string");
    let bad_message = |message: Json, param: &str, expected: &str| {
        bad(json!({ "messages": [message] }), param, &format!("{param}: {expected}"));
    };
    bad_message(
        json!({ "role": "bot", "content": "x" }),
        "messages[0].role",
        "found \"bot\", expected \"system\", …",
    );
    bad_message(json!("Hi"), "messages[0]", "expected an object, found a string");
    bad_message(
        json!({ "role": "user", "content": "x", "name": "Ann" }),
        "messages[0].name",
        "is not supported; remove this field",
    );
    bad_message(
        json!({ "role": "tool", "content": "x" }),
        "messages",
        "message 1 is from a tool; expected it after an assistant message …",
    );
    let call = |call: Json| json!({ "role": "assistant", "tool_calls": [call] });
    bad_message(call(json!({})), "messages[0].tool_calls[0].function", "expected an object, found null");
    bad_message(
        call(json!({ "type": "code" })),
        "messages[0].tool_calls[0].type",
        "found \"code\", only \"function\" is supported",
    );
    bad_message(
        call(json!({ "function": { "name": "f", "arguments": "{" } })),
        "messages[0].tool_calls[0].function.arguments",
        "expected a JSON object in a string",
    );
    bad(
        json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
        "messages[0].content",
        "messages[0].content: found a part of type \"image_url\", only \"text\" is supported",
    );
    bad(
        json!({ "messages": [{ "role": "user", "content": null }] }),
        "messages[0].content",
        "messages[0].content: expected a string or a list of text parts, found nothing",
    );
    bad(
        json!({ "messages": [{ "role": "user", "content": "a <turn|>" }] }),
        "messages",
        "messages: message 1 (user) contains the text of the control token <turn|>, …",
    );
    let long = "word ".repeat(2000);
    bad(
        json!({ "messages": [{ "role": "user", "content": long }] }),
        "messages",
        "the messages have … tokens, but the context holds 1024; shorten them",
    );
}

fn bad_tools(server: &Server) {
    let bad = |more: Json, param: &str, expected: &str| server.refuses_field(more, param, expected);
    let tool = |function: Json, param: &str, expected: &str| {
        let tools = json!({ "tools": [{ "type": "function", "function": function }] });
        bad(tools, param, &format!("{param}: {expected}"));
    };
    tool(json!({}), "tools[0].function.name", "expected the name of a function");
    tool(json!({ "name": "f", "parameters": [] }), "tools[0].function.parameters", "expected a JSON schema");
    tool(
        json!({ "name": "f", "strict": true }),
        "tools[0].function.strict",
        "is not supported: output is not constrained to a schema; remove this field",
    );
    bad(json!({ "tools": {} }), "tools", "tools: expected a list of functions, found an object");
    bad(
        json!({ "tool_choice": "required" }),
        "tool_choice",
        "tool_choice: found \"required\", only \"auto\" and \"none\" are supported",
    );
    bad(
        json!({ "chat_template_kwargs": { "tone": "kind" } }),
        "chat_template_kwargs",
        "chat_template_kwargs: the model's chat template has no place for \"tone\", …",
    );
}

fn bad_options(server: &Server) {
    let bad = |more: Json, param: &str, expected: &str| server.refuses_field(more, param, expected);
    bad(json!({ "temperature": "hot" }), "temperature", "temperature: expected a number, found \"hot\"");
    bad(json!({ "temperature": -1 }), "temperature", "temperature = -1: expected a number from 0 to 100");
    bad(json!({ "max_tokens": 0 }), "max_tokens", "max_tokens: expected an integer >= 1, found 0");
    bad(json!({ "n": 2 }), "n", "n: only 1 is supported; remove this field");
    bad(json!({ "temprature": 1 }), "temprature", "temprature: is not supported; remove this field");
    bad(
        json!({ "stop": [""] }),
        "stop",
        "stop: expected a string or a list of strings, not empty, found an empty string",
    );
    bad(
        json!({ "stream_options": {} }),
        "stream_options",
        "stream_options: is only allowed with \"stream\": true",
    );
}

/// A model calls a function and gets the result, with and without streaming.
pub fn tools(place: Place) {
    tool_base::write(&place.dir);
    place.run(&["looks.toml", "--quiet"]);
    let server = Server::with(&place, "tools.gguf", &["--adapter=looks", "--template=gemma4"]);
    let tools = json!([{ "type": "function", "function": { "name": "sky" } }]);
    let question = json!({ "role": "user", "content": "How is Lima?" });
    let ask = |more: Json| with(json!({ "model": "tools+looks", "tools": tools }), more);
    let (status, called) = server.post(&ask(json!({ "messages": [question] })));
    let message = &called["choices"][0]["message"];
    let id = format!("{}-0", called["id"].as_str().expect("an id").replace("chatcmpl", "call"));
    let expected = json!({ "id": id, "type": "function", "function": { "name": "sky", "arguments": "{\"in\":\"Lima\"}" } });
    assert_eq!((status, &message["tool_calls"]), (200, &json!([expected])), "{called}");
    assert_eq!(
        (&message["content"], &called["choices"][0]["finish_reason"]),
        (&Json::Null, &json!("tool_calls"))
    );

    // The client sends the message back unchanged, with the result.
    let result = json!({ "role": "tool", "tool_call_id": id, "content": "blue" });
    let (_, answered) = server.post(&ask(json!({ "messages": [question, message, result] })));
    assert_eq!(answered["choices"][0]["message"]["content"], "It is blue.", "{answered}");
    assert_eq!(answered["choices"][0]["finish_reason"], "stop");
    assert!(answered["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(40), "{answered}");

    let events = server.stream(&ask(json!({ "messages": [question], "stream": true })));
    let calls: Vec<&Json> =
        events.iter().map(|e| &e["choices"][0]["delta"]["tool_calls"]).filter(|c| !c.is_null()).collect();
    assert_eq!(calls.len(), 1, "{events:?}");
    assert_eq!((&calls[0][0]["index"], &calls[0][0]["function"]), (&json!(0), &expected["function"]));
    let words = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
    assert_eq!(words.collect::<String>(), "");
    assert_eq!(events.last().expect("an end")["choices"][0]["finish_reason"], "tool_calls");

    // With "tool_choice": "none", the prompt does not declare the function.
    let (_, without) = server.post(&ask(json!({ "messages": [question], "tool_choice": "none" })));
    let tokens = |answer: &Json| answer["usage"]["prompt_tokens"].as_u64();
    assert!(tokens(&without) < tokens(&called), "{without}");
}
