//! Replies: generate, chat and serve.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::{Place, texts, tool_base};

/// Rank 8 on every linear of the tiny base, with effect.
pub const ADAPTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chat/adapter");
const GREETING: &str = "Hello! How can I help you?";
/// With the adapter at weights from -3 to -10.
const ADAPTED: &str = "Good to see you. How can I help you?";

pub fn refusals(place: Place) {
    let generate = |arguments: &[&str], expected: &str| {
        place.refused(&[&["generate", "tiny", "--prompt=Hi"], arguments].concat(), expected);
    };
    generate(&["--temperature=-1"], "--temperature = -1: expected a number from 0 to 100");
    generate(&["--top-p=2"], "--top-p = 2: expected a number from 0 to 1");
    generate(&["--max-tokens=0"], "--max-tokens starts at 1, and --stop is not empty");
    generate(&["--context=0"], "--context 0: tiny was trained for 1 to 1024 tokens");
    generate(&["--context=1025"], "--context 1025: tiny was trained for 1 to 1024 tokens");
    generate(
        &["--adapter=no"],
        "no: does not exist; give the path of a PEFT or mlx-lm folder, a GGUF LoRA or …",
    );
    generate(
        &["--adapter=data.jsonl=half"],
        "--adapter data.jsonl=half: \"half\" is no weight; expected a number behind the last =, as in data.jsonl=0.5",
    );
    generate(&["--file=no.txt"], "cannot read no.txt: No such file or directory (os error 2)");
    place.refused(&["generate", "tiny"], "there is no prompt; give one with --prompt, or a file with --file");
    place.refused(&["generate", "no.gguf", "--prompt=Hi"], "no.gguf: No such file or directory …");
    place.refused(&["chat", "tiny", "--min-p=-1"], "--min-p = -1: expected a number from 0 to 1");
    place.refused(
        &["serve", "tiny", "--port=0", "--context=4096"],
        "--context 4096: tiny was trained for 1 to 1024 tokens",
    );
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    place.refused(
        &["serve", "tiny", "--port", &port],
        &format!(
            "cannot listen on 127.0.0.1:{port}; choose another --port or --host: Address already in use …"
        ),
    );
    if cfg!(target_os = "linux") {
        generate(&[], "no GPU found: no driver answered. …");
    }
    place.refused(
        &["bench", "tiny", "--decode=1000"],
        "--decode starts at 1, and with --sequence and some tokens to warm up ends at 1024, found 1525",
    );
}

pub fn generate(place: Place) {
    let greedy = ["generate", "tiny", "--temperature=0"];
    let run = |arguments: &[&str]| place.run(&[&greedy, arguments].concat());
    assert_eq!(run(&["--prompt=Hello!"]), format!("{GREETING}\n"));
    assert_eq!(run(&["--prompt", "Hello!", "--stop", "can"]), "Hello! How \n");
    let both = format!("{GREETING}\n7 plus 8 is 15.\n");
    assert_eq!(run(&["--prompt", "Hello!", "--prompt", "What is 7 plus 8?"]), both);
    place.write("prompts.txt", "Hello!\n\nWhat is 7 plus 8?\n");
    assert_eq!(run(&["--file", "prompts.txt", "--lines"]), both);
    place.write("prompt.txt", "Hello!\n");
    assert_eq!(run(&["--file", "prompt.txt"]), format!("{GREETING}\n"));
    // The chat layout by hand.
    let raw = "<|turn>user\nHello!<turn|>\n<|turn>model\n";
    assert_eq!(run(&["--raw", "--prompt", raw]), format!("{GREETING}\n"));
    let mut child = place.command(&[&greedy[..], &["--file=-"]].concat());
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    child.stdin.take().expect("piped").write_all(b"Hello!").expect("it reads");
    assert_eq!(texts(&child.wait_with_output().expect("it ends")).0, format!("{GREETING}\n"));

    let json = |arguments: &[&str]| -> Json {
        let text = run(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let whole = json(&["--prompt=Hello!"]);
    assert_eq!(whole["text"], GREETING);
    assert_eq!((&whole["finish_reason"], &whole["prompt"]), (&json!("stop"), &json!("Hello!")));
    assert_eq!(
        whole["ids"].as_array().map(Vec::len),
        whole["completion_tokens"].as_u64().map(|n| n as usize)
    );
    let cut = place.command(&[&greedy[..], &["--prompt=Hello!", "--max-tokens=3"]].concat()).output();
    let (text, note) = texts(&cut.expect("it starts"));
    assert!(GREETING.starts_with(text.trim_end()) && text.trim_end() != GREETING, "{text}");
    assert_eq!(note, "note: the reply was cut after 3 tokens (--max-tokens)\n");
    let short = json(&["--prompt=Hello!", "--max-tokens=3"]);
    assert_eq!((&short["finish_reason"], &short["completion_tokens"]), (&json!("length"), &json!(3)));

    // Adapters add up.
    let with = |weights: &[&str]| {
        let adapters: Vec<String> = weights.iter().map(|w| format!("--adapter={ADAPTER}={w}")).collect();
        let adapters: Vec<&str> = adapters.iter().map(String::as_str).collect();
        run(&[&["--prompt=Hello!"], &adapters[..]].concat())
    };
    assert_eq!(with(&["-6"]), format!("{ADAPTED}\n"));
    assert_eq!(with(&["-8", "5", "-3"]), format!("{ADAPTED}\n"));
    assert_eq!(with(&["-6", "6"]), format!("{GREETING}\n"));
    assert_eq!(run(&["--prompt=Hello!", "--adapter", ADAPTER]), with(&["1"]));

    // Draws: the seed decides.
    let drawn = |seed: &str| {
        let hot = [
            "generate",
            "tiny",
            "--prompt=Tell me a story.",
            "--temperature=1.5",
            "--max-tokens=24",
            "--json",
        ];
        let text = place.run(&[&hot[..], &["--seed", seed]].concat());
        serde_json::from_str::<Json>(&text).expect("JSON")["ids"].clone()
    };
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));

    place.refused_on_device(
        &[&greedy[..], &["--prompt=a <turn|> b"]].concat(),
        "prompt \"a <turn|> b\": message 1 (user) contains the text of the control token <turn|>, …",
    );
    place.refused_on_device(
        &[&greedy[..], &["--prompt=Hello!", "--context=4"]].concat(),
        "the prompt has 11 tokens, the context holds 4; shorten it, or raise the context",
    );
    let cut = place.command(&[&greedy[..], &["--prompt=Hello!", "--context=13"]].concat()).output();
    assert_eq!(
        texts(&cut.expect("it starts")).1,
        "note: the reply was cut where the context of 13 tokens ended\n"
    );
}

/// Standard output and error of a chat with these lines.
pub fn chat(place: &Place, arguments: &[&str], lines: &str) -> (String, String) {
    let arguments = [&["chat", "tiny", "--temperature=0", "--max-tokens=40"], arguments].concat();
    let mut command = place.command(&arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    child.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("it reads");
    texts(&child.wait_with_output().expect("it ends"))
}

pub fn talk(place: Place) {
    let (text, notes) =
        chat(&place, &["--verbose"], "Hello!\nWhat is 7 plus 8?\n/reset\nHello!\n/quit\nHello!\n");
    assert_eq!(text, format!("{GREETING}\n7 plus 8 is 15.\nThe conversation is forgotten.\n{GREETING}\n"));
    let prompts: Vec<&str> = notes.lines().map(|line| line.split(',').next().expect("a part")).collect();
    // All that was said is in the cache; after a reset, all but the last token of the same prompt.
    let cached: Vec<&str> = notes.lines().filter_map(|l| l.split(", ").nth(1)).collect();
    assert_eq!(prompts.len(), 3, "{notes}");
    assert_eq!(cached, ["0 of them cached", "19 of them cached", "10 of them cached"], "{notes}");

    let adapter = format!("--adapter={ADAPTER}=-6");
    let (text, errors) =
        chat(&place, &[&adapter], "Hello!\n/adapter off\n/reset\nHello!\n/adapter on\n/adapter\n");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(errors, "");
    assert_eq!(lines[..2], [ADAPTED, "The adapter is off."]);
    assert_eq!(
        lines[2..],
        ["The conversation is forgotten.", GREETING, "The adapter is on.", "The adapter is on."]
    );

    let (text, errors) = chat(&place, &[&adapter, "--compare"], "Hello!\n/help\n");
    let (base, rest) = text.split_once("\n[adapter] ").expect("both answer");
    assert_eq!((base, errors.as_str()), (&format!("[base] {GREETING}")[..], ""));
    assert!(rest.starts_with(&format!("{ADAPTED}\n/reset ")), "{text}");

    for (arguments, line, expected) in [
        (&[][..], "/rest", "/rest: unknown command; /help shows the commands"),
        (&[], "/adapter on", "/adapter: there is none; start with --adapter PATH"),
        (&[&adapter[..]], "/adapter of", "/adapter of: expected on or off"),
        (&[&adapter, "--compare"], "/adapter off", "/adapter: with --compare both answer"),
    ] {
        let (text, errors) = chat(&place, arguments, &format!("{line}\n"));
        assert_eq!((text.as_str(), errors), ("", format!("error: {expected}\n")));
    }
    let (_, errors) = chat(&place, &["--context=30"], "Hello!\nWhat is 7 plus 8?\n");
    assert_eq!(
        errors,
        "error: the prompt has 37 tokens, the context holds 30; shorten it, or raise the context\n"
    );
}

/// A server on a free port, ended with the test.
struct Server {
    child: Child,
    address: String,
    output: BufReader<ChildStdout>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

impl Server {
    fn start(place: &Place) -> Server {
        Server::with(place, "tiny", &[&format!("--adapter={ADAPTER}=-6")])
    }

    fn with(place: &Place, base: &str, arguments: &[&str]) -> Server {
        let fixed = ["serve", base, "--port=0", "--verbose", "--temperature=0", "--max-tokens=60"];
        let mut command = place.command(&[&fixed, arguments].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.starts_with("serving") {
            line.clear();
            assert!(output.read_line(&mut line).expect("UTF-8") > 0, "it serves");
        }
        let address = line.split("http://").nth(1).and_then(|l| l.split('/').next()).expect("an address");
        Server { child, address: address.into(), output }
    }

    /// Sends a request and leaves the answer to be read.
    fn send(&self, method: &str, path: &str, body: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("sent");
        BufReader::new(stream)
    }

    /// Status, content type and body.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String, String) {
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

    fn post(&self, body: &Json) -> (u16, Json) {
        let (status, kind, body) = self.ask("POST", "/v1/chat/completions", &body.to_string());
        assert_eq!(kind, "application/json", "{body}");
        (status, serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}")))
    }

    /// The events of a stream, up to its end.
    fn stream(&self, body: &Json) -> Vec<Json> {
        let (status, kind, body) = self.ask("POST", "/v1/chat/completions", &body.to_string());
        assert_eq!((status, kind.as_str()), (200, "text/event-stream"), "{body}");
        let body = body.strip_suffix("data: [DONE]\n\n").expect("an end");
        let event =
            |line: &str| serde_json::from_str(line.strip_prefix("data: ").expect("data")).expect("JSON");
        body.split("\n\n").filter(|line| !line.is_empty()).map(event).collect()
    }

    /// The next line that the server prints about a request.
    fn told(&mut self) -> String {
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

fn hello(model: &str) -> Json {
    json!({ "model": model, "messages": [{ "role": "user", "content": "Hello!" }] })
}

/// `body` with more fields.
fn with(mut body: Json, more: Json) -> Json {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// A server that answers once, and is killed.
pub fn one_reply(place: &Place) {
    let server = Server::start(place);
    assert_eq!(server.post(&hello("tiny")).0, 200);
    assert_eq!(server.post(&hello("tiny")).0, 200, "by now the first is done with");
}

pub fn serve(place: Place) {
    let server = Server::start(&place);
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
    // The conversation goes on from what is in the cache; contents may come in parts.
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
    let drawn = |seed: u64| {
        let more = json!({ "temperature": 1.5, "top_k": 0, "top_p": 1, "seed": seed, "max_tokens": 20 });
        server.post(&with(hello("tiny"), more)).1["choices"][0]["message"]["content"].clone()
    };
    assert_eq!(drawn(5), drawn(5));
    assert_ne!(drawn(5), drawn(6));

    let stream = |more: Json| server.stream(&with(hello("tiny"), more));
    let events = stream(json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let content = |e: &Json| e["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(events.iter().filter_map(content).collect::<String>(), GREETING);
    assert!(events.len() > 5, "word by word: {events:?}");
    assert!(events.iter().all(|e| e["object"] == "chat.completion.chunk" && e["id"] == events[0]["id"]));
    let [.., last, usage] = &events[..] else { panic!("{events:?}") };
    assert_eq!(
        last["choices"][0],
        json!({ "index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop" })
    );
    assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(19)));
    assert_eq!(stream(json!({ "stream": true })).len(), events.len() - 1, "usage only where it is asked for");

    // Two at once: one waits for the other, both are answered.
    let bodies: Vec<_> =
        ["tiny", "tiny"].map(|m| server.send("POST", "/v1/chat/completions", &hello(m).to_string())).into();
    for mut answer in bodies {
        let mut text = String::new();
        answer.read_to_string(&mut text).expect("UTF-8");
        assert!(text.starts_with("HTTP/1.1 200") && text.contains(GREETING), "{text}");
    }
}

pub fn bad_requests(place: Place) {
    let server = Server::start(&place);
    let refused = |body: &str, status: u16, param: Json, expected: &str| {
        let (found, kind, text) = server.ask("POST", "/v1/chat/completions", body);
        let error: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let error = &error["error"];
        assert_eq!((found, kind.as_str(), &error["param"]), (status, "application/json", &param), "{text}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(super::matches(error["message"].as_str().expect("a text"), expected), "{text}");
    };
    refused("{", 400, Json::Null, "the body is no JSON: …");
    refused("[]", 400, Json::Null, "the body is a list, expected a JSON object");
    refused("{}", 400, json!("model"), "model: expected the id of a model; /v1/models lists them");
    refused(r#"{"model": "tiny"}"#, 400, json!("messages"), "messages: expected a list of messages");
    let bad = |more: Json, param: &str, expected: &str| {
        refused(&with(hello("tiny"), more).to_string(), 400, json!(param), expected);
    };
    bad(json!({ "messages": [] }), "messages", "messages: the conversation has no message; …");
    bad(json!({ "messages": "Hi" }), "messages", "messages: expected a list of messages, found a text");
    let said = |message: Json, param: &str, expected: &str| {
        bad(json!({ "messages": [message] }), param, &format!("{param}: {expected}"));
    };
    said(
        json!({ "role": "bot", "content": "x" }),
        "messages[0].role",
        "found \"bot\", expected \"system\", …",
    );
    said(json!("Hi"), "messages[0]", "expected an object, found a text");
    said(
        json!({ "role": "user", "content": "x", "name": "Ann" }),
        "messages[0].name",
        "is not supported; leave it out",
    );
    said(
        json!({ "role": "tool", "content": "x" }),
        "messages",
        "message 1 is from a tool; expected it behind an assistant message …",
    );
    let call = |call: Json| json!({ "role": "assistant", "tool_calls": [call] });
    said(call(json!({})), "messages[0].tool_calls[0].function", "expected an object, found null");
    said(
        call(json!({ "type": "code" })),
        "messages[0].tool_calls[0].type",
        "found \"code\", only \"function\" is supported",
    );
    said(
        call(json!({ "function": { "name": "f", "arguments": "{" } })),
        "messages[0].tool_calls[0].function.arguments",
        "expected a JSON object, as a text",
    );
    let tool = |function: Json, param: &str, expected: &str| {
        let tools = json!({ "tools": [{ "type": "function", "function": function }] });
        bad(tools, param, &format!("{param}: {expected}"));
    };
    tool(json!({}), "tools[0].function.name", "expected the name of a function");
    tool(json!({ "name": "f", "parameters": [] }), "tools[0].function.parameters", "expected a JSON schema");
    tool(
        json!({ "name": "f", "strict": true }),
        "tools[0].function.strict",
        "is not supported: nothing forces the model to keep to a schema",
    );
    bad(json!({ "tools": {} }), "tools", "tools: expected a list of functions, found an object");
    bad(
        json!({ "tool_choice": "required" }),
        "tool_choice",
        "tool_choice: found \"required\", only \"auto\" and \"none\" are supported; the model decides",
    );
    bad(
        json!({ "chat_template_kwargs": { "tone": "kind" } }),
        "messages",
        "messages: the chat template never reads \"tone\", …",
    );
    bad(
        json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
        "messages[0].content",
        "messages[0].content: found a part of type \"image_url\", only \"text\" is understood",
    );
    bad(
        json!({ "messages": [{ "role": "user", "content": null }] }),
        "messages[0].content",
        "messages[0].content: expected a text or a list of texts, found nothing",
    );
    bad(
        json!({ "messages": [{ "role": "user", "content": "a <turn|>" }] }),
        "messages",
        "messages: message 1 (user) contains the text of the control token <turn|>, …",
    );
    bad(json!({ "temperature": "hot" }), "temperature", "temperature: expected a number, found \"hot\"");
    bad(json!({ "temperature": -1 }), "temperature", "temperature = -1: expected a number from 0 to 100");
    bad(json!({ "max_tokens": 0 }), "max_tokens", "max_tokens: expected an integer >= 1, found 0");
    bad(json!({ "n": 2 }), "n", "n: only 1 is supported; leave it out");
    bad(json!({ "temprature": 1 }), "temprature", "temprature: is not supported; leave it out");
    bad(
        json!({ "stop": [""] }),
        "stop",
        "stop: expected a text or a list of texts that are not empty, found a text",
    );
    bad(json!({ "stream_options": {} }), "stream_options", "stream_options: only goes with \"stream\": true");
    let long = "word ".repeat(2000);
    bad(
        json!({ "messages": [{ "role": "user", "content": long }] }),
        "messages",
        "the messages have … tokens, the context holds 1024; shorten them",
    );
    refused(
        &hello("gpt").to_string(),
        404,
        json!("model"),
        "there is no model \"gpt\"; there is tiny and tiny+adapter",
    );
    for (method, path, status) in [
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v2", 404),
        ("GET", "/v1/models/no", 404),
    ] {
        let (found, _, text) = server.ask(method, path, "");
        let error: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!((found, &error["error"]["type"]), (status, &json!("invalid_request_error")), "{text}");
    }
    // After all that it still answers.
    assert_eq!(server.post(&hello("tiny")).0, 200);
}

/// Functions are declared, called and answered, whole and in a stream.
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

    // The client hands the message back as it was, with the result.
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

    // Without the declaration it has another prompt, and nobody who reads calls.
    let (_, untold) = server.post(&ask(json!({ "messages": [question], "tool_choice": "none" })));
    let tokens = |answer: &Json| answer["usage"]["prompt_tokens"].as_u64();
    assert!(tokens(&untold) < tokens(&called), "{untold}");
}

/// The template decides what the model reads: the built-in one, the file's own, or one from a file.
pub fn templates(place: Place) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
    let said = "{{ bos_token }}<|turn>user\nHello!<turn|>\n<|turn>model{{ '\\n' }}";
    place.write("hello.jinja", said);
    let reply = |base: &str, template: &str| {
        place.run(&[
            "generate",
            base,
            "--temperature=0",
            "--prompt=What is 7 plus 8?",
            "--template",
            template,
        ])
    };
    for (base, template) in [("tiny", "auto"), ("tiny", "gemma4"), ("tiny", "gguf"), (file, "auto")] {
        assert_eq!(reply(base, template), "7 plus 8 is 15.\n", "{base} {template}");
    }
    assert_eq!(reply("tiny", "hello.jinja"), format!("{GREETING}\n"));

    // A conversation is rendered anew; the file's template says the same as the layout.
    let lines = "Hello!\nWhat is 7 plus 8?\n/reset\nHello!\n";
    let layout = chat(&place, &["--verbose"], lines);
    let own = chat(&place, &["--verbose", "--template=gguf"], lines);
    assert_eq!(own.0, layout.0);
    let cached = |notes: &str| -> Vec<String> {
        notes.lines().filter_map(|l| l.split(", ").nth(1)).map(str::to_owned).collect()
    };
    assert_eq!(cached(&own.1), cached(&layout.1));
    assert_eq!(chat(&place, &["--template=hello.jinja"], "x\ny\n").0, format!("{GREETING}\n{GREETING}\n"));

    let server = Server::with(&place, "tiny", &["--template=hello.jinja"]);
    let (_, answer) =
        server.post(&json!({ "model": "tiny", "messages": [{ "role": "user", "content": "x" }] }));
    assert_eq!(answer["choices"][0]["message"]["content"], GREETING);
    let (status, refused) = server.post(&with(
        hello("tiny"),
        json!({ "tools": [{ "type": "function", "function": { "name": "f" } }] }),
    ));
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("messages")), "{refused}");

    place.write("bad.jinja", "{% if %}");
    place.refused(
        &["generate", "tiny", "--prompt=Hi", "--template=bad.jinja"],
        "--template: the chat template cannot be read: …",
    );
    place.refused(&["chat", "tiny", "--template=no.jinja"], "no.jinja: …");
    // An adapter of another model is refused, unless that is allowed.
    place.write("other.gguf", super::handed_out::other_tiny());
    place.run(&["recipe.toml", "--quiet"]);
    let other = ["generate", "other.gguf", "--prompt=Hello!", "--max-tokens=2", "--adapter=run"];
    place.refused(&other, "run was trained on tiny …, but other.gguf … is a different model; …");
    let allowed = place.command(&[&other[..], &["--allow-other-base"]].concat()).output();
    let (_, notes) = texts(&allowed.expect("it starts"));
    assert!(
        notes.starts_with("note: run was trained on tiny, but other.gguf is a different model"),
        "{notes}"
    );
}

/// A reply of which nobody could wait for the end.
fn endless() -> Json {
    let more =
        json!({ "stream": true, "temperature": 50, "top_k": 0, "top_p": 1, "max_tokens": 1000, "seed": 1 });
    with(hello("tiny"), more)
}

pub fn goes_away(place: Place) {
    let mut server = Server::start(&place);
    let mut answer = server.send("POST", "/v1/chat/completions", &endless().to_string());
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        answer.read_line(&mut line).expect("UTF-8");
    }
    drop(answer);
    let line = server.told();
    assert!(line.starts_with("request ") && line.ends_with(", cancelled\n"), "{line}");
    // Without a stream, too.
    let answer =
        server.send("POST", "/v1/chat/completions", &with(endless(), json!({ "stream": false })).to_string());
    std::thread::sleep(Duration::from_millis(500));
    drop(answer);
    let line = server.told();
    assert!(line.ends_with(", cancelled\n"), "{line}");
    assert_eq!(server.post(&hello("tiny")).0, 200);

    // Ctrl-C in the middle of a reply ends it, says so, and is no failure.
    if cfg!(unix) {
        let mut answer = server.send("POST", "/v1/chat/completions", &endless().to_string());
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            answer.read_line(&mut line).expect("UTF-8");
        }
        let id = server.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-INT", &id]).status().expect("kill").success());
        let mut rest = String::new();
        answer.read_to_string(&mut rest).expect("UTF-8");
        assert!(rest.contains("the server is about to end") && !rest.contains("[DONE]"), "{rest}");
        assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
        let mut told = String::new();
        server.output.read_to_string(&mut told).expect("UTF-8");
        assert!(told.ends_with("ended      no request is left\n"), "{told}");
    }
}

pub fn bench_decode(place: Place) {
    let bench = ["bench", "tiny", "--sequence=20", "--decode=3", "--rank=4"];
    let found: Json = serde_json::from_str(&place.run(&[&bench[..], &["--json"]].concat())).expect("JSON");
    let (base, adapted) = (&found["of_base"], &found["with_adapter"]);
    for speed in [base, adapted] {
        assert!(speed["tokens_per_second"].as_f64().is_some_and(|s| s > 0.0), "{found}");
    }
    // The adapter's products ride along: what one token takes is as many dispatches with it as without.
    assert_eq!(base["dispatches_per_token"], adapted["dispatches_per_token"]);
    assert!(base["dispatches_per_token"].as_u64().is_some_and(|n| n <= 13 * 4 + 7), "{found}");
    let text = place.run(&[&bench[..4], &["--adapter", ADAPTER]].concat());
    assert!(text.contains("of base    prompt of 20 tokens ") && text.contains(", rank 8\n"), "{text}");
}
