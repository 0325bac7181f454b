//! Replies: `generate` and `chat`.

use std::io::Write;
use std::net::TcpListener;
use std::process::Stdio;

use serde_json::{Value as Json, json};

use super::serve::{Server, hello, with};
use super::{Place, texts};

/// An adapter of rank 8 on every linear layer of the tiny base.
pub const ADAPTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/chat/adapter");
pub const GREETING: &str = "Hello! How can I help you?";
/// The reply with the adapter at weights from -12 to -14.
pub const ADAPTED: &str = "Good to see you.";

pub fn refusals(place: Place) {
    let generate = |arguments: &[&str], expected: &str| {
        place.refused(&[&["generate", "tiny", "--prompt=Hi"], arguments].concat(), expected);
    };
    generate(&["--temperature=-1"], "--temperature = -1: expected a number from 0 to 100");
    generate(&["--top-p=2"], "--top-p = 2: expected a number from 0 to 1");
    generate(&["--max-tokens=0"], "--max-tokens must be at least 1");
    generate(&["--context=0"], "--context 0: expected 1 to 1024, the context of tiny");
    generate(&["--context=1025"], "--context 1025: expected 1 to 1024, the context of tiny");
    generate(
        &["--adapter=no"],
        "no: does not exist; give the path of a PEFT or mlx-lm folder, a GGUF LoRA or …",
    );
    generate(
        &["--adapter=data.jsonl=half"],
        "--adapter data.jsonl=half: invalid weight \"half\": expected a number after the last `=`, as in data.jsonl=0.5",
    );
    generate(&["--file=no.txt"], "cannot read no.txt: No such file or directory (os error 2)");
    place.refused(&["generate", "tiny"], "no prompt given; use --prompt TEXT, --file FILE or --samples FILE");
    place
        .refused(&["generate", "no.gguf", "--prompt=Hi"], "no.gguf: No such file or directory (os error 2)…");
    place.refused(&["chat", "tiny", "--min-p=-1"], "--min-p = -1: expected a number from 0 to 1");
    place.refused(
        &["serve", "tiny", "--port=0", "--context=4096"],
        "--context 4096: expected 1 to 1024, the context of tiny",
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
    generate(&["--stop="], "--stop must not be empty");
    generate(&["--device=RTX"], "--device is now called --gpu: use --gpu \"RTX\"");
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
    // The chat template, written by hand.
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
    assert_eq!(
        whole["prompt_ids"].as_array().map(Vec::len),
        whole["prompt_tokens"].as_u64().map(|n| n as usize)
    );
    assert_eq!(whole["logprobs"], Json::Null);
    let scored = json(&["--prompt=Hello!", "--logprobs=2"]);
    let scores = scored["logprobs"].as_array().expect("a list");
    let ids: Vec<&Json> = scores.iter().map(|score| &score["id"]).collect();
    assert_eq!(ids, scored["ids"].as_array().expect("a list").iter().collect::<Vec<_>>());
    let all =
        |score: &Json| score["top_logprobs"][0]["id"] == score["id"] && score["logprob"].as_f64() < Some(0.0);
    assert!(scores.iter().all(all), "{scored}");
    place.refused(
        &["generate", "tiny", "--prompt=Hi", "--logprobs=2"],
        "--logprobs prints nothing without --json; add it",
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
    assert_eq!(with(&["-13"]), format!("{ADAPTED}\n"));
    assert_eq!(with(&["-16", "9", "-6"]), format!("{ADAPTED}\n"));
    assert_eq!(with(&["-13", "13"]), format!("{GREETING}\n"));
    assert_eq!(run(&["--prompt=Hello!", "--adapter", ADAPTER]), with(&["1"]));

    // The seed decides what is sampled.
    let sampled = |seed: &str| {
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
    assert_eq!(sampled("1"), sampled("1"));
    // Several replies together are those that each seed gives alone.
    let two = place.command(&[&greedy[..], &["--prompt=Hello!", "--n=2"]].concat()).output();
    let (stdout, stderr) = texts(&two.expect("the program starts"));
    assert_eq!(stdout, format!("--- 1 of 2\n{GREETING}\n--- 2 of 2\n{GREETING}\n"));
    assert_eq!(
        stderr,
        "note: without a temperature, the 2 replies to a prompt are the same; set --temperature\n"
    );
    let hot = ["generate", "tiny", "--prompt=Tell me a story.", "--temperature=1.5", "--max-tokens=24"];
    let three = place.run(&[&hot[..], &["--seed=1", "--n=3", "--json", "--logprobs=0"]].concat());
    let three: Vec<Json> = three.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(three.iter().map(|reply| &reply["reply"]).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(three.iter().map(|reply| &reply["seed"]).collect::<Vec<_>>(), [1, 2, 3]);
    for (reply, seed) in three.iter().zip(["1", "2", "3"]) {
        assert_eq!(reply["ids"], sampled(seed));
        assert_eq!(reply["logprobs"].as_array().map(Vec::len), reply["ids"].as_array().map(Vec::len));
    }
    assert_ne!(sampled("1"), sampled("2"));

    place.refused_on_device(
        &[&greedy[..], &["--prompt=a <turn|> b"]].concat(),
        "prompt \"a <turn|> b\": message 1 (user) contains the text of the control token <turn|>, …",
    );
    place.refused_on_device(
        &[&greedy[..], &["--prompt=Hello!", "--context=4"]].concat(),
        "the prompt has 11 tokens, but the context holds 4; shorten it, or raise the context",
    );
    let cut = place.command(&[&greedy[..], &["--prompt=Hello!", "--context=13"]].concat()).output();
    assert_eq!(
        texts(&cut.expect("it starts")).1,
        "note: the reply was cut at the end of the context of 13 tokens\n"
    );
}

/// Runs a chat with these lines as input and returns stdout and stderr.
pub fn chat(place: &Place, arguments: &[&str], lines: &str) -> (String, String) {
    let arguments = [&["chat", "tiny", "--temperature=0", "--max-tokens=40"], arguments].concat();
    let mut command = place.command(&arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    child.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("it reads");
    texts(&child.wait_with_output().expect("it ends"))
}

pub fn chat_commands(place: Place) {
    let (text, notes) =
        chat(&place, &["--verbose"], "Hello!\nWhat is 7 plus 8?\n/reset\nHello!\n/quit\nHello!\n");
    assert_eq!(text, format!("{GREETING}\n7 plus 8 is 15.\nStarted a new conversation.\n{GREETING}\n"));
    let prompts: Vec<&str> = notes.lines().map(|line| line.split(',').next().expect("a part")).collect();
    // The conversation so far is cached; after a reset, all but the last token of the same prompt.
    let cached: Vec<&str> = notes.lines().filter_map(|l| l.split(", ").nth(1)).collect();
    assert_eq!(prompts.len(), 3, "{notes}");
    assert_eq!(cached, ["0 cached", "19 cached", "10 cached"], "{notes}");

    let adapter = format!("--adapter={ADAPTER}=-13");
    let (text, errors) =
        chat(&place, &[&adapter], "Hello!\n/adapter off\n/reset\nHello!\n/adapter on\n/adapter\n");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(errors, "");
    assert_eq!(lines[..2], [ADAPTED, "The adapter is off."]);
    assert_eq!(
        lines[2..],
        ["Started a new conversation.", GREETING, "The adapter is on.", "The adapter is on."]
    );

    let (text, errors) = chat(&place, &[&adapter, "--compare"], "Hello!\n/help\n");
    let (base, rest) = text.split_once("\n[adapter] ").expect("both answer");
    assert_eq!((base, errors.as_str()), (&format!("[base] {GREETING}")[..], ""));
    assert!(rest.starts_with(&format!("{ADAPTED}\n/reset ")), "{text}");

    for (arguments, line, expected) in [
        (&[][..], "/rest", "/rest: unknown command; /help lists the commands"),
        (&[], "/adapter on", "/adapter: no adapter is loaded; start with --adapter PATH"),
        (&[&adapter[..]], "/adapter of", "/adapter of: expected on or off"),
        (
            &[&adapter, "--compare"],
            "/adapter off",
            "/adapter: not available with --compare, which always shows both replies",
        ),
    ] {
        let (text, errors) = chat(&place, arguments, &format!("{line}\n"));
        assert_eq!((text.as_str(), errors), ("", format!("error: {expected}\n")));
    }
    let (_, errors) = chat(&place, &["--context=30"], "Hello!\nWhat is 7 plus 8?\n");
    assert_eq!(
        errors,
        "error: the prompt has 37 tokens, but the context holds 30; shorten it, or raise the context\n"
    );
}

/// Replies follow the template: the built-in one, the one in the GGUF file, or a Jinja file.
pub fn templates(place: Place) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
    let jinja = "{{ bos_token }}<|turn>user\nHello!<turn|>\n<|turn>model{{ '\\n' }}";
    place.write("hello.jinja", jinja);
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

    // A conversation is rendered again for each message; the file's template gives the same text as the built-in one.
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
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("tools")), "{refused}");

    place.write("bad.jinja", "{% if %}");
    place.refused(
        &["generate", "tiny", "--prompt=Hi", "--template=bad.jinja"],
        "--template: the chat template bad.jinja cannot be read: …",
    );
    place.refused(&["chat", "tiny", "--template=no.jinja"], "no.jinja: …");
    // An adapter of another model is refused without --allow-other-base.
    place.write("other.gguf", super::exports::other_tiny());
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
