//! `ui`: the page's API with the program behind it, and who may use it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::place::{DATA, Place, RECIPE};

/// Ids of uploads.
const SAMPLES: &str = "00000000000000000000000000000001";
const OTHER: &str = "00000000000000000000000000000002";

/// The program, killed at the end of the test.
struct Ui {
    child: Child,
    address: String,
    key: String,
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ui {
    fn start(place: &Place) -> Ui {
        let arguments = ["ui", "mine", "--port=0", "--no-open", "--no-page"];
        let mut child = place.command(&arguments).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.starts_with("serving") {
            line.clear();
            assert!(output.read_line(&mut line).expect("UTF-8") > 0, "it serves");
        }
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        let mut parts = line.split("http://").nth(1).expect("a URL").split('/');
        let (address, key) = (parts.next().expect("an address").into(), parts.next().expect("a key").into());
        Ui { child, address, key }
    }

    /// Sends a request with exactly these headers besides its length.
    fn raw(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(240))).expect("a timeout");
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        // A refused request may be answered before its body is read.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        BufReader::new(stream)
    }

    /// Status and body of the answer to such a request.
    fn status(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> (u16, String) {
        let mut answer = Vec::new();
        let _ = self.raw(method, path, headers, body).read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status.unwrap_or_else(|| panic!("no status: {answer}")), body.into())
    }

    /// The headers of the page's own requests.
    fn own(&self) -> [String; 3] {
        let json = "Content-Type: application/json".into();
        [format!("Host: {}", self.address), format!("Authorization: Bearer {}", self.key), json]
    }

    fn stream(&self, method: &str, path: &str, body: &[u8]) -> BufReader<TcpStream> {
        let own = self.own();
        self.raw(method, &format!("/{}/api/{path}", self.key), &own.each_ref().map(|h| &h[..]), body)
    }

    fn ask(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        let own = self.own();
        self.status(method, &format!("/{}/api/{path}", self.key), &own.each_ref().map(|h| &h[..]), body)
    }

    fn json(&self, method: &str, path: &str, body: &Json) -> Json {
        let (status, text) = self.ask(method, path, body.to_string().as_bytes());
        assert_eq!(status, 200, "{path}: {text}");
        let text = &text[text.find(['{', '[']).expect("JSON")..=text.rfind(['}', ']']).expect("JSON")];
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Expects an error whose message contains `expected`.
    #[track_caller]
    fn refuses(&self, path: &str, body: &Json, expected: &str) {
        let (status, text) = self.ask("POST", path, body.to_string().as_bytes());
        assert!((400..500).contains(&status) && text.contains(expected), "{path}: {status} {text}");
    }

    fn upload(&self, id: &str, bytes: &[u8]) {
        assert_eq!(self.ask("PUT", &format!("uploads/{id}/0"), bytes).0, 204);
    }

    /// The events of the run from the first on, until `last`.
    fn events(&self, last: impl Fn(&Json) -> bool) -> Vec<Json> {
        let mut stream = self.stream("GET", "run/events/0", b"");
        let mut events = Vec::new();
        loop {
            let mut line = String::new();
            assert!(stream.read_line(&mut line).expect("UTF-8") > 0, "the stream ended after {events:?}");
            if let Ok(event @ Json::Object(_)) = serde_json::from_str::<Json>(&line) {
                events.push(event);
                if last(&events[events.len() - 1]) {
                    return events;
                }
            }
        }
    }

    fn command(&self, word: &str) {
        assert_eq!(self.ask("POST", "run/command", json!({ "command": word }).to_string().as_bytes()).0, 204);
    }
}

fn is(name: &'static str) -> impl Fn(&Json) -> bool {
    move |event| event["event"] == name
}

fn task(recipe: &str) -> Json {
    json!({ "base": "tiny", "recipe": recipe, "files": [{ "path": "data.jsonl", "upload": SAMPLES }] })
}

/// A recipe of many steps.
fn long() -> String {
    RECIPE.replace("max_steps = 2", "max_steps = 400")
}

/// Pages of other ports, strangers and names that were pointed at this machine get nothing and change nothing.
pub fn strangers(place: Place) {
    let ui = Ui::start(&place);
    let [host, key, json] = ui.own();
    let (api, port) = (format!("/{}/api", ui.key), ui.address.rsplit(':').next().expect("a port").to_owned());
    let state = |headers: &[&str]| ui.status("GET", &format!("{api}/state"), headers, b"").0;
    assert_eq!(state(&[&host, &key]), 200);
    assert_eq!(state(&[&host]), 401, "no key in the header");
    assert_eq!(state(&[&host, "Authorization: Bearer 0"]), 401);
    assert_eq!(state(&[&host, &format!("Cookie: key={}", ui.key)]), 401, "a cookie is no key");
    for path in ["/", "/api/state", "/0/api/state", "/index.html"] {
        let (status, text) = ui.status("GET", path, &[&host, &key, "Accept: text/html"], b"");
        assert_eq!(status, 401, "{path}");
        assert!(text.starts_with("this address has no valid key; open the address that"), "{text}");
    }
    // A page on another port, another site, and a name that was pointed at this machine.
    for origin in ["http://127.0.0.1:1", "http://localhost:1", "https://evil.example", "null"] {
        let origin = format!("Origin: {origin}");
        assert_eq!(state(&[&host, &key, &origin]), 403, "{origin}");
        let preflight =
            ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization"];
        let asked =
            ui.status("OPTIONS", &format!("{api}/train"), &[&host, &origin, preflight[0], preflight[1]], b"");
        assert_eq!(asked.0, 403, "{origin}");
    }
    assert_eq!(state(&[&host, &key, &format!("Origin: http://{}", ui.address)]), 200);
    assert_eq!(state(&[&format!("Host: evil.example:{port}"), &key]), 403);
    assert_eq!(state(&[&key]), 400, "no host");
    assert_eq!(state(&[&host, "Host: evil.example", &key]), 400, "two hosts");
    // An address with a wrong number gets the API's kind of error, too.
    for (method, path) in [("GET", "run/events/-1".into()), ("PUT", format!("uploads/{SAMPLES}/-1"))] {
        let (status, text) = ui.status(method, &format!("{api}/{path}"), &[&host, &key, &json], b"");
        let problem: Json = serde_json::from_str(&text).expect("JSON");
        assert_eq!((status, &problem["kind"]), (400, &json!("other")), "{text}");
    }
    // Nothing is written without the key, and forms of other pages cannot send JSON.
    let put = |headers: &[&str]| ui.status("PUT", &format!("{api}/uploads/{SAMPLES}/0"), headers, b"x").0;
    assert_eq!(put(&[&host]), 401);
    let body = json!({ "task": task(RECIPE) }).to_string();
    let train = |headers: &[&str]| ui.status("POST", &format!("{api}/train"), headers, body.as_bytes()).0;
    assert_eq!(train(&[&host, &json]), 401);
    assert_eq!(train(&[&host, &key, "Content-Type: text/plain"]), 415);
    assert_eq!(train(&[&host, &key]), 415);
    assert_eq!(place.names("mine"), Vec::<String>::new());
    let large = vec![b' '; 9 << 20];
    assert_eq!(ui.status("POST", &format!("{api}/check"), &[&host, &key, &json], &large).0, 413);
}

/// Nothing outside the chosen folder can be read or written, and the page cannot run commands.
pub fn outside(place: Place) {
    place.write("secret.jsonl", DATA);
    place.write("secret.gguf", b"GGUF");
    place.write("mine/inside.jsonl", DATA);
    #[cfg(unix)]
    std::os::unix::fs::symlink(place.dir.join("secret.jsonl"), place.dir.join("mine/link.jsonl"))
        .expect("a link");
    let ui = Ui::start(&place);
    ui.upload(SAMPLES, DATA.as_bytes());
    let dir = place.dir.display().to_string();
    let with = |train: &str| task(&RECIPE.replace("\"data.jsonl\"", train));
    let fine = with(&format!("'{dir}/mine/inside.jsonl'"));
    assert_eq!(ui.json("POST", "check", &fine)["steps"], 2, "the chosen folder can be read");
    let outside = "is neither among the files that were picked nor, as an absolute path, in";
    let mut paths = vec![
        "'../secret.jsonl'".into(),
        "'other.jsonl'".into(),
        format!("'{dir}/secret.jsonl'"),
        format!("'{dir}/missing.jsonl'"),
        format!("'{dir}/mine/../secret.jsonl'"),
        format!("'{dir}/*.jsonl'"),
        format!("'{dir}'"),
    ];
    if cfg!(unix) {
        paths.push(format!("'{dir}/mine/link.jsonl'"));
        paths.push(format!("'{dir}/mine/*.jsonl'"));
    }
    for path in paths {
        ui.refuses("check", &with(&path), outside);
        ui.refuses("train", &json!({ "task": with(&path) }), outside);
    }
    for base in [format!("{dir}/secret.gguf"), "secret.gguf".into(), "../secret.gguf".into()] {
        let mut task = task(RECIPE);
        task["base"] = base.into();
        ui.refuses(
            "check",
            &task,
            "is neither a model that `rullama-train models` lists nor a .gguf file in",
        );
    }
    let keys = [
        (format!("{RECIPE}\n[log]\nhook = \"touch hooked\"\n"), "the page may not run commands"),
        (
            RECIPE.replace("[data]", &format!("[data]\ncache = '{dir}/cache'")),
            "the page may not choose this folder",
        ),
        (RECIPE.replace("[data]", &format!("[data]\ntemplate = '{dir}/recipe.toml'")), outside),
        (RECIPE.replace("[lora]", &format!("[lora]\ninit_from = '{dir}'")), outside),
    ];
    for (recipe, expected) in keys {
        ui.refuses("check", &task(&recipe), expected);
    }
    let mut named = task(RECIPE);
    named["files"][0]["path"] = "../../escaped.jsonl".into();
    ui.refuses("check", &named, "is not a plain name");
    for path in
        ["runs/..%2f/secret.jsonl", "runs/../secret.jsonl", "runs/x/secret.jsonl", "outputs/x/y", "nothing"]
    {
        assert_eq!(ui.ask("GET", path, b"").0, 404, "{path}");
    }
    assert_eq!(ui.ask("PUT", "uploads/..%2f..%2fx/0", b"x").0, 422);
    ui.refuses("train", &json!({ "task": task(RECIPE), "resume": "../.." }), "the run is no longer in");
    ui.refuses("check", &task(&" ".repeat((1 << 20) + 1)), "the recipe is larger than 1.0 MiB");
    // What a mistake in the recipe looks like.
    let mistake = task(&RECIPE.replace("rank", "rnak"));
    let (status, text) = ui.ask("POST", "check", mistake.to_string().as_bytes());
    let problem: Json = serde_json::from_str(&text).expect("JSON");
    assert_eq!((status, &problem["kind"]), (422, &json!("recipe")), "{text}");
    assert_eq!((&problem["line"], &problem["column"]), (&json!(5), &json!(1)), "{text}");
    assert!(!place.dir.join("hooked").exists() && !place.dir.join("cache").exists());
    let left: Vec<String> = place.names("mine").into_iter().filter(|name| name.contains("runs/")).collect();
    assert_eq!(left, Vec::<String>::new(), "refused runs leave nothing");
}

/// Choose a base, check, train, reply, export and merge.
pub fn whole(place: Place) {
    place.stored_tiny("gemma4/e2b");
    let ui = Ui::start(&place);
    let state = ui.json("GET", "state", &Json::Null);
    assert!(state["gpu"]["name"].is_string() && state["run"].is_null(), "{state}");
    let bases = ui.json("GET", "bases", &Json::Null);
    let names: Vec<&str> =
        bases.as_array().expect("a list").iter().filter_map(|b| b["model"].as_str()).collect();
    assert_eq!(names, ["tiny", "gemma4:e2b"], "{bases}");
    ui.upload(SAMPLES, DATA.as_bytes());
    let check = ui.json("POST", "check", &task(RECIPE));
    assert_eq!((&check["steps"], &check["train"]["samples"]), (&json!(2), &json!(3)), "{check}");
    assert_eq!(check["work"]["evaluations"], 2, "{check}");
    assert!(check["plan"]["bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{check}");

    let started = ui.json("POST", "train", &json!({ "task": task(RECIPE) }));
    assert_eq!(started["run"], "data-tiny");
    let events = ui.events(is("exit"));
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!((kinds[0], kinds[1]), ("check", "start"), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == "step").count(), 2, "{kinds:?}");
    let exit = &events[events.len() - 1];
    assert_eq!((&exit["problem"], &exit["finished"]), (&Json::Null, &json!(true)), "{exit}");
    assert_eq!(exit["adapter"], json!(["adapter_model.safetensors", "adapter_config.json"]));
    // The folder is one of the program's.
    let inspected = place.run(&["inspect", "mine/runs/data-tiny"]);
    assert!(inspected.contains("finished"), "{inspected}");
    let (status, report) = ui.ask("GET", "runs/data-tiny/report.html", b"");
    assert!(status == 200 && report.to_lowercase().starts_with("<!doctype html>"), "{status}");
    // Every browser sees the runs of the folder, and the names that another one gave them.
    let runs = ui.json("GET", "runs", &Json::Null);
    assert_eq!((runs.as_array().map(Vec::len), &runs[0]["id"]), (Some(1), &json!("data-tiny")), "{runs}");
    assert_eq!(ui.ask("PUT", "runs/data-tiny/page.json", br#"{"name": "first"}"#).0, 200);
    let runs = ui.json("GET", "runs", &Json::Null);
    assert_eq!((&runs[0]["id"], &runs[0]["name"]), (&json!("data-tiny"), &json!("first")), "{runs}");
    for (path, text, status) in
        [("page.json", "[]", 422), ("run.json", "{}", 404), ("../x/page.json", "{}", 404)]
    {
        assert_eq!(ui.ask("PUT", &format!("runs/data-tiny/{path}"), text.as_bytes()).0, status, "{path}");
    }
    let state = ui.json("GET", "state", &Json::Null);
    assert_eq!((&state["run"]["over"], &state["run"]["delivered"]), (&json!(true), &json!(true)), "{state}");

    ui.upload(SAMPLES, &place.read("mine/runs/data-tiny/adapter_model.safetensors"));
    ui.upload(OTHER, &place.read("mine/runs/data-tiny/adapter_config.json"));
    let adapter = json!([
        { "path": "adapter/adapter_model.safetensors", "upload": SAMPLES },
        { "path": "adapter/adapter_config.json", "upload": OTHER },
    ]);
    let question = json!([{ "role": "user", "content": "Hello!" }]);
    for adapter in [json!([]), adapter.clone()] {
        let sampling = json!({ "temperature": 0, "max_new_tokens": 8 });
        let chat = json!({ "base": "tiny", "adapter": adapter, "messages": question, "sampling": sampling });
        let (status, reply) = ui.ask("POST", "chat", chat.to_string().as_bytes());
        assert!(
            status == 200 && reply.contains("{\"text\":") && reply.contains("{\"done\":true}"),
            "{reply}"
        );
    }
    let export = json!({ "base": "tiny", "adapter": adapter, "to": "gguf-lora" });
    let exported = ui.json("POST", "export", &export);
    let path = format!(
        "outputs/{}/{}",
        exported["output"].as_str().expect("an id"),
        exported["files"][0].as_str().expect("a file")
    );
    let mut bytes = Vec::new();
    ui.stream("GET", &path, b"").read_to_end(&mut bytes).expect("read");
    assert!(bytes.windows(4).any(|four| four == b"GGUF"));
    let merge = json!({ "base": "tiny", "adapter": adapter, "name": "pirate", "ollama": false });
    let merged = ui.json("POST", "merge", &merge);
    assert!(place.dir.join("mine/models/pirate/pirate.gguf").exists(), "{merged}");
    ui.refuses("merge", &merge, "exists; choose another name for the model");
    let bases = ui.json("GET", "bases", &Json::Null);
    let made = bases[2]["model"].as_str().expect("the merged model").to_owned();
    assert!(made.ends_with("pirate.gguf") && bases[2]["trainable"] == true, "{bases}");
}

/// A run goes on without the page, can be paused, stopped and resumed, and outlives neither Ctrl-C nor the death of the program.
pub fn long_run(place: Place) {
    let mut ui = Ui::start(&place);
    ui.upload(SAMPLES, DATA.as_bytes());
    let step = |event: &Json| event["event"] == "step" && event["step"].as_u64() >= Some(2);
    ui.json("POST", "train", &json!({ "task": task(&long()) }));
    ui.events(step); // the page goes away here
    ui.refuses("train", &json!({ "task": task(&long()) }), "the run data-tiny uses the GPU");
    ui.refuses(
        "chat",
        &json!({ "base": "tiny", "adapter": [], "messages": [], "sampling": {} }),
        "uses the GPU",
    );
    ui.command("pause");
    ui.events(is("paused"));
    ui.command("checkpoint");
    ui.events(is("checkpoint"));
    ui.command("resume");
    ui.events(is("resumed"));
    ui.command("stop");
    let events = ui.events(is("exit"));
    assert_eq!(events[events.len() - 1]["problem"], Json::Null, "{:?}", events.last());
    let stopped =
        events.iter().find(|event| event["event"] == "stopped").expect("it stopped")["step"].clone();
    let resume = json!({ "task": task(&long()), "resume": "data-tiny" });
    ui.json("POST", "train", &resume);
    let events = ui.events(step);
    assert_eq!(events[1]["resumed_at"], stopped, "{events:?}");
    if cfg!(unix) {
        let pid = ui.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
        assert_eq!(ui.child.wait().expect("it ends").code(), Some(0));
    }
    drop(ui);
    // After a kill the run stops by itself, with a checkpoint, and another start of the program resumes it.
    let ui = Ui::start(&place);
    ui.upload(SAMPLES, DATA.as_bytes());
    ui.json("POST", "train", &resume);
    let events = ui.events(step);
    assert!(events[1]["resumed_at"].as_u64() >= stopped.as_u64(), "{events:?}");
    drop(ui);
    let run = || serde_json::from_slice::<Json>(&place.read("mine/runs/data-tiny/run.json")).expect("JSON");
    for _ in 0..600 {
        if run()["status"] != "running" {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    // It was not killed, so nothing is lost: the steps up to its last are in the checkpoint.
    let run = run();
    assert_eq!(run["status"], "stopped");
    assert!(place.dir.join(format!("mine/runs/data-tiny/checkpoint-{}", run["step"])).exists(), "{run}");
}
