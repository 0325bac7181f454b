//! `example`, `--json` and the MCP server, which agents and new users use.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value as Json, json};

use super::describe::{ADAPTER, has_lines};
use super::{DATA, Place, RECIPE};

fn object(place: &Place, arguments: &[&str]) -> Json {
    serde_json::from_str(&place.run(arguments)).expect("one object")
}

/// The tasks that are part of the program are those of the repository, and nothing is overwritten unasked.
pub fn example(place: Place) {
    has_lines(
        &place.run(&["example"]),
        &["recipe     recipes/chat.toml", "next       rullama-train recipes/chat.toml"],
    );
    let shipped = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../datasets/pirate.jsonl"))
        .expect("it is there");
    assert_eq!(place.read("datasets/pirate.jsonl"), shipped);
    place.run(&["example"]);
    place.write("recipes/chat.toml", "changed");
    place.refused(
        &["example"],
        "recipes/chat.toml exists; choose another folder with --into, or overwrite it with --force",
    );
    let written = object(&place, &["example", "tools", "--into", "x", "--json"]);
    assert_eq!(written["recipe"], "x/recipes/tools.toml");
}

/// Commands whose text is for people print one object, with that text as a part.
pub fn json(place: Place) {
    let written = object(
        &place,
        &["init", "a.toml", "--base", "tiny", "--data", "data.jsonl", "--prompt", "Hi", "--json"],
    );
    assert_eq!(
        (&written["recipe"], &written["samples"], &written["base"]),
        (&json!("a.toml"), &json!(4), &json!("tiny"))
    );
    let labels: Vec<&str> = written["report"]
        .as_array()
        .expect("lines")
        .iter()
        .filter_map(|line| line["label"].as_str())
        .collect();
    assert!(labels.contains(&"proposal") && labels.contains(&"next"), "{labels:?}");
    let export =
        ["export", ADAPTER, "--base", "tiny", "--to", "gguf-lora", "--out", "out", "--unverified", "--json"];
    assert_eq!(
        object(&place, &export)["exports"][0],
        json!({ "format": "gguf-lora", "path": "out/adapter.gguf" })
    );
    let merge = ["merge", ADAPTER, "--base", "tiny", "--out", "m/m.gguf", "--unverified", "--json"];
    assert_eq!(object(&place, &merge)["modelfile"], "m/Modelfile");
    let inspected = object(&place, &["inspect", "tiny", "--json"]);
    assert!(
        inspected["report"].as_array().expect("lines").iter().any(|line| line["label"] == "identity"),
        "{inspected}"
    );
}

/// `check` has the plan and the counts as numbers.
pub fn check(place: Place) {
    let check = object(&place, &["check", "recipe.toml", "--measure", "0", "--json"]);
    assert_eq!((&check["steps"], &check["train"]["samples"]), (&json!(2), &json!(3)));
    assert!(check["plan"]["bytes"].as_u64() > Some(0), "{check}");
    assert!(check["recipe"].as_str().expect("TOML").contains("fingerprint = "), "{check}");
}

/// The program as a server, with a client that speaks JSON-RPC.
struct Mcp {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    id: u64,
}

impl Mcp {
    fn start(place: &Place) -> Mcp {
        let mut command = place.command(&["mcp", "mine"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        let mut client = Mcp { child, stdin, stdout, id: 0 };
        let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } });
        let answer = client.ask("initialize", hello);
        assert_eq!(answer["serverInfo"]["name"], "rullama-train");
        client.send(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    fn send(&mut self, message: Json) {
        writeln!(self.stdin.as_mut().expect("open"), "{message}").expect("it reads");
    }

    fn ask(&mut self, method: &str, params: Json) -> Json {
        self.id += 1;
        self.send(json!({ "jsonrpc": "2.0", "id": self.id, "method": method, "params": params }));
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).expect("UTF-8") > 0, "the server ended");
            let answer: Json = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if answer["id"] == self.id {
                return answer["result"].clone();
            }
        }
    }

    fn call(&mut self, name: &str, arguments: Json) -> Json {
        let result = self.ask("tools/call", json!({ "name": name, "arguments": arguments }));
        assert_eq!(result["isError"], false, "{name}: {result}");
        result["structuredContent"].clone()
    }

    fn refused(&mut self, name: &str, arguments: Json, expected: &str) {
        let result = self.ask("tools/call", json!({ "name": name, "arguments": arguments }));
        let message = result["structuredContent"]["problem"]["message"].as_str().unwrap_or_default();
        assert!(result["isError"] == true && message.contains(expected), "{name}: {result}");
    }
}

impl Drop for Mcp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client lists, checks, trains, watches, asks and exports, and gets nothing outside of the folders.
pub fn mcp(place: Place) {
    place.write("mine/data.jsonl", DATA);
    place.write("secret.jsonl", DATA);
    let mut client = Mcp::start(&place);
    let tools = client.ask("tools/list", json!({}));
    let names: Vec<&str> =
        tools["tools"].as_array().expect("a list").iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert!(names.contains(&"start_training") && names.len() == 9, "{names:?}");
    assert_eq!(client.call("list_bases", json!({}))["models"][0]["model"], "tiny");
    let inside = |train: &str, more: &str| {
        let path = place.dir.join(train).display().to_string();
        let recipe =
            RECIPE.replace("\"data.jsonl\"", &format!("'{path}'")).replace("[model]\nbase = \"tiny\"\n", "");
        let recipe = recipe.replace("[output]\ndir = \"run\"\n", "") + more;
        json!({ "base": "tiny", "recipe": recipe })
    };
    let recipe = inside("mine/data.jsonl", "");
    assert_eq!(client.call("check_recipe", recipe.clone())["steps"], 2);
    client.refused(
        "check_recipe",
        inside("secret.jsonl", ""),
        "is neither among the files that were picked nor",
    );
    client.refused("start_training", inside("mine/data.jsonl", "[log]\nhook = 'touch x'\n"), "log.hook");
    let elsewhere = json!({ "base": place.dir.join("secret.gguf"), "recipe": "" });
    client.refused("check_recipe", elsewhere, "is neither a model that");
    client.refused(
        "check_recipe",
        json!({ "base": "hf:org/none:Q4_K_M", "recipe": "" }),
        "is neither a model that",
    );
    client.refused("ask", json!({ "base": "tiny", "run": "../..", "prompt": "Hi" }), "there is no run ../..");
    client.refused("ask", json!({ "base": "tiny" }), "missing field `prompt`");
    client.refused("training_events", json!({}), "no run was started");
    let started = client.call("start_training", recipe);
    let (run, mut from) = (started["run"].as_str().expect("a name").to_owned(), 0);
    let mut kinds = Vec::new();
    loop {
        let answer = client.call("training_events", json!({ "from": from, "wait_seconds": 60 }));
        from = answer["next"].as_u64().expect("a number");
        kinds.extend(
            answer["events"].as_array().expect("a list").iter().map(|event| event["event"].to_string()),
        );
        if answer["over"] == true {
            break;
        }
    }
    assert!(kinds.contains(&"\"step\"".into()) && kinds.last().expect("one") == "\"exit\"", "{kinds:?}");
    assert_eq!(client.call("list_runs", json!({}))["runs"][0]["status"], "finished");
    let asked =
        json!({ "base": "tiny", "run": run, "prompt": "Hello!", "max_new_tokens": 4, "temperature": 0 });
    assert!(client.call("ask", asked)["reply"].is_string());
    let exported = client.call("export_adapter", json!({ "base": "tiny", "run": run, "to": "gguf-lora" }));
    assert_eq!(exported["files"], json!(["adapter.gguf"]));
    drop(client.stdin.take());
    assert!(client.child.wait().expect("it ends").success());
}
