//! The output of a run: metrics, JSON events, the report.

use serde_json::Value as Json;

use super::{DATA, Place};

/// Files of samples: one with the first two of [`DATA`], one with the others.
fn two_files(place: &Place) {
    let lines: Vec<&str> = DATA.lines().collect();
    place.write("first.jsonl", lines[..2].join("\n"));
    place.write("second.jsonl", lines[2..].join("\n"));
}

fn number(json: &Json, key: &str) -> f64 {
    json[key].as_f64().unwrap_or_else(|| panic!("{key} in {json}"))
}

/// The mean over all tokens, computed from the parts.
fn mean(parts: &[Json], key: &str) -> f64 {
    let sum: f64 = parts.iter().map(|p| number(p, key) * number(p, "eval_tokens")).sum();
    sum / parts.iter().map(|p| number(p, "eval_tokens")).sum::<f64>()
}

pub fn eval_files(place: Place) {
    place.run(&["recipe.toml"]);
    two_files(&place);
    let arguments =
        ["eval", "recipe.toml", "--data", "first.jsonl", "--data", "second.jsonl", "--adapter", "run"];
    let text = place.run(&[&arguments[..], &["--json"]].concat());
    let json: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(json["samples"], 4);
    let models: Vec<&str> =
        json["results"].as_array().expect("two").iter().filter_map(|r| r["model"].as_str()).collect();
    assert_eq!(models, ["base", "adapter"]);
    for result in json["results"].as_array().expect("two") {
        let parts = result["sources"].as_array().expect("two");
        let names: Vec<_> = parts.iter().map(|p| (p["source"].as_str(), p["samples"].as_u64())).collect();
        assert_eq!(names, [(Some("first.jsonl"), Some(2)), (Some("second.jsonl"), Some(2))]);
        for key in ["eval_loss", "eval_accuracy"] {
            assert!((mean(parts, key) - number(result, key)).abs() < 1e-12, "{key} of {result}");
        }
        assert_eq!(result["not_finite"], 0);
    }
    let text = place.run(&arguments);
    for part in
        ["eval       first.jsonl   loss ", "eval       second.jsonl  loss ", "eval       all           loss "]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(text.ends_with(" of 4 samples\n"), "{text}");

    // The recipe's own data need not exist.
    std::fs::remove_file(place.dir.join("data.jsonl")).expect("removed");
    place.run(&arguments);
    place.refused(
        &["eval", "recipe.toml", "--data", "no.jsonl"],
        "no.jsonl: …No such file or directory (os error 2)…",
    );
}

pub fn sources(place: Place) {
    two_files(&place);
    let valid = ["--set", "data.valid=[\"first.jsonl\", \"second.jsonl\"]", "--set", "data.val_size=0"];
    place.run(&[&["recipe.toml"][..], &valid].concat());
    let text = String::from_utf8(place.read("run/metrics.jsonl")).expect("UTF-8");
    let mut evaluations = 0;
    for line in text.lines() {
        let json: Json = serde_json::from_str(line).expect("JSON");
        if json["event"] != "evaluation" {
            continue;
        }
        evaluations += 1;
        let parts = json["sources"].as_array().expect("two");
        assert_eq!(
            (parts[0]["source"].as_str(), parts[1]["source"].as_str()),
            (Some("first.jsonl"), Some("second.jsonl"))
        );
        assert!((mean(parts, "eval_loss") - number(&json, "eval_loss")).abs() < 1e-12, "{json}");
        assert!((number(&json, "eval_loss").exp() - number(&json, "eval_perplexity")).abs() < 1e-9, "{json}");
    }
    assert_eq!(evaluations, 2);
}

pub fn voices(place: Place) {
    assert_eq!(place.run(&["recipe.toml", "--quiet"]), "");
    let text = place.run(&[
        "recipe.toml",
        "--fresh",
        "--json",
        "--set",
        "output.save_steps=1",
        "--set",
        "eval.samples=[\"Hello!\"]",
    ]);
    let lines: Vec<Json> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let events: Vec<&str> = lines.iter().filter_map(|l| l["event"].as_str()).collect();
    let expected = "start evaluation step checkpoint step evaluation checkpoint effects finished";
    assert_eq!(events.join(" "), expected);
    let step = &lines[4];
    assert_eq!((step["step"].as_u64(), step["steps"].as_u64()), (Some(2), Some(2)));
    for key in [
        "loss",
        "smoothed_loss",
        "accuracy",
        "grad_norm",
        "update_ratio",
        "learning_rate",
        "tokens_per_second",
    ] {
        assert!(number(step, key) > 0.0, "{key} in {step}");
    }
    assert_eq!(number(step, "loss"), place.metrics("run", "loss")[1]);
    assert_eq!(lines[1]["replies"][0]["prompt"], "Hello!");
    assert_eq!(number(&lines[8], "eval_loss"), place.metrics("run", "eval_loss")[1]);
    let run: Json = serde_json::from_slice(&place.read("run/run.json")).expect("JSON");
    for effects in [&lines[7], &lines[8]["effects"], &run["effects"]] {
        for text in ["data", "general"] {
            let found = &effects[text];
            assert!(number(found, "places") > 0.0 && number(found, "kl") > 0.0, "{text} in {effects}");
            assert!(
                number(found, "other_word") <= 1.0 && number(found, "loss_change").is_finite(),
                "{text} in {effects}"
            );
        }
        assert_eq!(effects["general"]["on"], "8 built-in questions");
        let prompts: Vec<_> =
            effects["replies"].as_array().expect("a list").iter().map(|r| r["prompt"].as_str()).collect();
        assert_eq!(prompts.len(), 3, "{effects}");
        assert_eq!(prompts[0], Some("What is the capital of France?"));
    }
    place.refused(&["recipe.toml", "--set", "lora.rank=0", "--json"], "--set lora.rank=0: lora.rank = 0: …");
}

pub fn report(place: Place) {
    // Text written by a user must not become part of the page's markup.
    let prompt = "eval.samples=[\"<script>alert(1)</script> & more\"]";
    place.run(&["recipe.toml", "--set", "eval.steps=1", "--set", prompt, "--set", "eval.max_new_tokens=2"]);
    let html = String::from_utf8(place.read("run/report.html")).expect("UTF-8");
    for part in [
        "<!doctype html>",
        "<svg",
        "prefers-color-scheme: dark",
        "Words changed",
        "General questions</dt>",
        "class=\"card verdict\"",
        "<h3>What is the capital of France? <span class=note>general</span></h3>",
        "<h2>Your data and general questions</h2>",
        "rullama-train chat tiny --adapter run --compare",
        "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more",
    ] {
        assert!(html.contains(part), "the report has no {part}");
    }
    for foreign in ["http:", "https:", "src=", "@import", "url(", "<script>alert", "NaN"] {
        assert!(!html.contains(foreign), "the report has {foreign}");
    }
    let settings = ["learning_rate", "0.01", "max_steps", "tiny", "llvmpipe"];
    for part in &settings[..4] {
        assert!(html.contains(part), "the report has no {part}");
    }
}

/// Activations that overflow look like a model that guesses; evaluation must not confuse the two.
pub fn eval_overflow(place: Place) {
    place.run(&["recipe.toml"]);
    let path = place.dir.join("run/adapter_model.safetensors");
    let mut bytes = std::fs::read(&path).expect("there");
    // All of A and B, so that their product far exceeds f32.
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8")) as usize;
    for value in bytes[data..].as_chunks_mut().0 {
        *value = (1e13 * f32::from_le_bytes(*value)).to_le_bytes();
    }
    std::fs::write(&path, bytes).expect("written");
    let output =
        place.command(&["eval", "recipe.toml", "--adapter", "run", "--json"]).output().expect("it starts");
    let (stdout, stderr) = super::texts(&output);
    let json: Json = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
    let lost: Vec<u64> =
        json["results"].as_array().expect("two").iter().filter_map(|r| r["not_finite"].as_u64()).collect();
    assert!(lost[0] == 0 && lost[1] > 0, "{stdout}");
    let expected = format!("error: the hidden states or logits of {} tokens are not finite", lost[1]);
    assert!(stderr.starts_with(&expected), "{stderr}");
    assert_eq!(output.status.code(), Some(1));
    // Nor does training start from it.
    let from = ["recipe.toml", "--set", "lora.init_from=run", "--set", "output.dir=next"];
    let output = place.command(&from).output().expect("it starts");
    assert!(texts_of(&output).contains("the model overflows before the first step"), "{}", texts_of(&output));
    assert!(!place.dir.join("next").exists());
}

fn texts_of(output: &std::process::Output) -> String {
    let (stdout, stderr) = super::texts(output);
    stdout + &stderr
}

pub fn changes_nothing(place: Place) {
    // One step, which is the warm-up: the learning rate is 0.
    let output = place.command(&["recipe.toml", "--set", "train.max_steps=1"]).output().expect("it starts");
    let expected = "error: training changed nothing: the adapter equals its initial value. ";
    assert!(super::texts(&output).1.starts_with(expected), "{}", texts_of(&output));
    assert!(!place.dir.join("run/adapter_model.safetensors").exists());
    // Nothing prevents another attempt.
    place.run(&["recipe.toml"]);
}

/// Every event goes to the command of `log.hook`, and every step to `metrics.csv`. A hook that fails does not stop the run.
#[cfg(unix)]
pub fn log(place: Place) {
    let settings =
        ["recipe.toml", "--set", "log.csv=true", "--set", "log.hook=cat > $RULLAMA_RUN/events.jsonl"];
    let text = place.run(&settings);
    assert!(!text.contains("log.hook"), "{text}");
    let events = String::from_utf8(place.read("run/events.jsonl")).expect("UTF-8");
    let names: Vec<String> = events
        .lines()
        .map(|line| {
            serde_json::from_str::<Json>(line).expect("JSON")["event"].as_str().expect("text").to_owned()
        })
        .collect();
    assert_eq!(names.join(" "), "start evaluation step step evaluation checkpoint effects finished");
    let csv = String::from_utf8(place.read("run/metrics.csv")).expect("UTF-8");
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), ["step", "0", "1", "2", "2"]);
    assert!(rows.iter().all(|row| row.len() == 10), "{csv}");
    assert_eq!(rows[2][1], place.metrics("run", "loss")[0].to_string());

    let failing = ["recipe.toml", "--fresh", "--set", "log.hook=exit 3"];
    let text = place.run(&failing);
    assert!(text.contains("notice     log.hook failed: exit status: 3; the run is not affected\n"), "{text}");
}
