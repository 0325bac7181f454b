//! What the program says about files and itself: `init`, `inspect`, `models`, completions and the manual.

use std::path::Path;

use serde_json::Value as Json;

use super::handed_out::other_tiny;
use super::{DATA, Place, RECIPE, matches, texts};
use crate::gguf_writer::GgufWriter;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
const ADAPTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chat/adapter");

/// Every part stands in a line of its own, in this order; `…` stands for anything.
#[track_caller]
fn says(text: &str, expected: &[&str]) {
    let mut lines = text.lines();
    for part in expected {
        assert!(lines.any(|line| matches(line, part)), "expected {part:?} in\n{text}");
    }
}

pub fn init(place: Place) {
    let text = place.run(&[
        "init",
        "mine.toml",
        "--base",
        "tiny",
        "--data",
        "data.jsonl",
        "--prompt",
        "Say \"hi\".",
    ]);
    says(
        &text,
        &[
            "read       data.jsonl: JSON Lines, 4 prompt_completion",
            "lengths    … to … tokens, …",
            "written    mine.toml",
            "next       rullama-train check mine.toml; rullama-train mine.toml",
        ],
    );
    let recipe = String::from_utf8(place.read("mine.toml")).expect("UTF-8");
    says(
        &recipe,
        &[
            "# 4 samples of … tokens, the longest of … tokens; about 2 steps.",
            "base = \"tiny\"",
            "train = \"data.jsonl\"",
            "val_size = 0   …",
            "max_seq_len = 256 …",
            "overlong = \"error\" …",
            "samples = ['Say \"hi\".'] …",
            "dir = \"runs/mine\"",
        ],
    );
    // Nothing is replaced that nobody wanted replaced.
    let again = ["init", "mine.toml", "--base", "tiny", "--data", "data.jsonl"];
    place.refused(&again, "mine.toml is there already; choose another name, or replace it with --force");
    let output = ["--force", "--output", "out/\u{e9}"];
    place.run(&[&again[..], &output].concat());
    assert!(String::from_utf8(place.read("mine.toml")).expect("UTF-8").contains("dir = \"out/\u{e9}\""));

    place.refused(
        &["init", "a.toml", "--base", "tiny"],
        "--data PATH is missing, and there is no terminal to ask for it on; expected Samples (a file, a folder, or a pattern)",
    );
    place.refused(
        &["init", "a.toml", "--data", "data.jsonl"],
        "--base BASE is missing, and there is no terminal to ask for it on; expected one of tiny",
    );
    let of = |recipe: &'static str, base: &'static str, data: &'static str| {
        ["init", recipe, "--base", base, "--data", data]
    };
    place.refused(
        &of("a.json", "tiny", "data.jsonl"),
        "a.json: a recipe is written as TOML; choose a name that ends in .toml",
    );
    place.refused(&of("data.jsonl/a.toml", "tiny", "data.jsonl"), "cannot write data.jsonl/a.toml: …");
    place.refused(
        &of("a.toml", "gemma4:e2b", "data.jsonl"),
        "gemma4:e2b: is no existing file, and Ollama has no such model …",
    );
    // What is said of the data so far is on stdout; the error names the line.
    place.write("bad.jsonl", "{}");
    let output = place.command(&of("a.toml", "tiny", "bad.jsonl")).output().expect("it starts");
    assert!(texts(&output).1.starts_with("error: bad.jsonl line 1: expected \"messages\", "), "{output:?}");

    // Long samples among many short ones are said, and left out as the recipe says.
    let long = format!("{{\"text\": \"{}\"}}\n", "river stone ".repeat(600));
    place.write("long.jsonl", DATA.repeat(60) + &long);
    place.run(&of("long.toml", "tiny", "long.jsonl"));
    says(
        &String::from_utf8(place.read("long.toml")).expect("UTF-8"),
        &[
            "val_size = 0.05 …",
            "max_seq_len = 1024 …",
            "overlong = \"drop\"   …# leaves out what is longer, 1 sample; …",
        ],
    );
}

/// What `init` writes, trains.
pub fn init_trains(place: Place) {
    place.run(&["init", "mine.toml", "--base", "tiny", "--data", "data.jsonl"]);
    let text = place.run(&["check", "mine.toml"]);
    says(&text, &["base       tiny: …", "data       train 4 samples, …; validation none", "memory     …"]);
}

pub fn inspect_models(place: Place) {
    for name in [TINY, "tiny"] {
        let text = place.run(&["inspect", name]);
        says(
            &text,
            &[
                &format!("model      {name}"),
                "file       GGUF 3, 4.1 MiB: gemma4, …",
                "weights    Q6_K 2.3 MiB in 5 tensors, Q4_K …",
                "template   its own, … characters",
                "shape      4 layers, width 256, context 1 024, vocabulary 2 048; 2 sliding and 2 full layers, 2 with keys and \
                 values of another",
                "identity   v1:…",
                "training   possible on attn_q, …, proj: 18 304 trainable parameters for each rank",
            ],
        );
    }
    let mut other = GgufWriter::gemma4();
    other.set("general.architecture", rullama_train::base::gguf::value::Value::String("llama".into()));
    place.write("llama.gguf", other.bytes());
    says(
        &place.run(&["inspect", "llama.gguf"]),
        &["file       GGUF 3, …: llama…", "training   not possible: llama.gguf: …`llama`…"],
    );
    place.write("cut.gguf", &std::fs::read(TINY).expect("the tiny model")[..10_000]);
    place.refused(&["inspect", "cut.gguf"], "cut.gguf: …download the file again");
    place.refused(&["inspect", "no.such"], "no.such: …");
    place.refused(
        &["inspect", "recipe.toml"],
        "recipe.toml is no data; `rullama-train check recipe.toml` says what a recipe resolves to",
    );
}

pub fn inspect_adapters(place: Place) {
    let text = place.run(&["inspect", ADAPTER, "--base", "tiny"]);
    says(
        &text,
        &[
            "adapter    …: PEFT folder",
            "trained on …",
            "matrices   … pairs in 4 layers of 4 on attn_q, …",
            "size       rank 8, alpha 16 (scale 2.0000), 146 432 parameters",
            "norms      A …, B …",
        ],
    );
    // Of a base that is not here, what the files say.
    place.write("other.gguf", other_tiny());
    place.write("empty/adapter_config.json", "{}");
    place.refused(&["inspect", "empty"], "…empty…");
}

pub fn inspect_samples(place: Place) {
    let text = place.run(&["inspect", "data.jsonl"]);
    says(
        &text,
        &[
            "read       data.jsonl: JSON Lines, 4 prompt_completion",
            "samples    4 samples, … tokens of tiny's, … % carry loss",
            "lengths    …",
            "data.jsonl line 1; what stands between « and » carries loss:",
            "«Ahoy!<turn|>»",
        ],
    );
    place.write("many/a.jsonl", DATA);
    place.write("many/b.jsonl", DATA);
    place.write("many/notes.txt", "");
    says(&place.run(&["inspect", "many"]), &["samples    8 samples, …", "notice     …"]);
    says(&place.run(&["inspect", "many/*.jsonl"]), &["samples    8 samples, …"]);
    place.write("nothing.jsonl", "");
    place.refused(
        &["inspect", "nothing.jsonl"],
        "nothing.jsonl: the file holds no sample; expected one JSON object a line",
    );
}

/// A run's folder, its checkpoints, and its adapter in other formats.
pub fn inspect_runs(place: Place) {
    let exports = "output.export=['peft', 'gguf-lora', 'mlx']";
    place.run(&["recipe.toml", "--set", exports]);
    says(
        &place.run(&["inspect", "run"]),
        &[
            "run        run: finished, after step 2 of 2",
            "base       tiny",
            "checkpoint run/checkpoint-2: whole, …",
            "adapter    run: PEFT folder",
            "trained on tiny",
            "identity   v1:…, its base's",
            "size       rank 4, alpha 8 (scale 2.0000), 73 216 parameters",
        ],
    );
    for (path, format) in [("run/adapter.gguf", "GGUF LoRA"), ("run/mlx", "mlx-lm folder")] {
        let text = place.run(&["inspect", path]);
        says(&text, &[&format!("adapter    {path}: {format}"), "size       rank 4, …, 73 216 parameters"]);
    }
    says(
        &place.run(&["inspect", "run/checkpoint-2"]),
        &[
            "checkpoint run/checkpoint-2: after step 2 of 2, whole",
            "progress   2 updates; the best evaluation was at step 2",
            &format!("written    by rullama-train {}, …", env!("CARGO_PKG_VERSION")),
            "digest     base …",
            "digest     validation samples …",
            "adapter    run/checkpoint-2: PEFT folder",
        ],
    );
    let state = place.read("run/checkpoint-2/optimizer.safetensors");
    place.write("run/checkpoint-2/optimizer.safetensors", &state[..99]);
    place.refused(
        &["inspect", "run/checkpoint-2"],
        "run/checkpoint-2 is damaged: optimizer.safetensors has 99 bytes, expected …",
    );
    says(&place.run(&["inspect", "run"]), &["checkpoint run/checkpoint-2 is damaged: …"]);
}

pub fn models(place: Place) {
    let text = place.run(&["models"]);
    says(
        &text,
        &[
            "tiny     4.1 MiB  can be trained: 4 layers, width 256, context 1 024 (part of this program)",
            "Ollama has no models in store, …; run `ollama pull gemma4:e2b`, or set OLLAMA_MODELS",
        ],
    );
    let digest = "0".repeat(64);
    let layer = |kind: &str, size: usize| {
        format!(
            "{{\"layers\": [{{\"mediaType\": \"application/vnd.ollama.image.{kind}\", \"digest\": \"sha256:{digest}\", \"size\": {size}}}]}}"
        )
    };
    let tiny = std::fs::read(TINY).expect("the tiny model");
    let library = Path::new("store/manifests/registry.ollama.ai/library");
    let manifest = |name: &str, json: String| place.write(&library.join(name).display().to_string(), json);
    place.write(&format!("store/blobs/sha256-{digest}"), &tiny);
    manifest("gemma4/e2b", layer("model", tiny.len()));
    manifest("gemma4/mlx", layer("tensor", 1));
    manifest("gone/latest", layer("model", 7));
    says(
        &place.run(&["models"]),
        &[
            "tiny  …",
            "gemma4:e2b      4.1 MiB  can be trained: 4 layers, width 256, context 1 024",
            "gemma4:mlx            –  cannot be trained: is an MLX build …",
            "gone:latest           –  cannot be trained: its weights … have … bytes, expected 7; …",
        ],
    );
    let json: Json = serde_json::from_str(&place.run(&["models", "--json"])).expect("JSON");
    let trainable: Vec<_> =
        json["models"].as_array().expect("a list").iter().map(|m| m["trainable"].as_bool()).collect();
    assert_eq!(trainable, [Some(true), Some(true), Some(false), Some(false)]);
    assert_eq!(json["models"][1]["bytes"], tiny.len());
    says(&place.run(&["inspect", "gemma4:e2b"]), &["model      gemma4:e2b", "training   possible on …"]);
}

pub fn manual(place: Place) {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = place.run(&["completions", shell]);
        for word in ["inspect", "max-tokens"] {
            assert!(script.contains(word), "{shell} has no {word}");
        }
    }
    let page = place.run(&["man"]);
    assert!(page.contains(".TH rullama-train 1") && page.contains("inspect"), "{page}");
    let text = place.run(&["man", "man1"]);
    let names = place.names("man1");
    says(&text, &[&format!("written    {} pages into man1", names.len())]);
    for name in ["rullama-train.1", "rullama-train-check.1", "rullama-train-init.1", "rullama-train-serve.1"]
    {
        assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
    }
    // Every command has a page, and every page a line of its own in the program's help.
    let help = place.run(&["--help"]);
    for name in &names {
        let verb = name.strip_prefix("rullama-train-").and_then(|rest| rest.strip_suffix(".1"));
        assert!(verb.is_none_or(|verb| help.contains(&format!("\n  {verb} "))), "{name} in\n{help}");
    }
    assert!(RECIPE.contains("tiny"), "nothing else was touched");
}

/// Each shipped recipe for the built-in base, up to its first step.
pub fn shipped(place: Place) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["chat", "tools", "labels", "stories"] {
        let recipe = format!("recipes/{name}.toml");
        let mut command = place.command(&["check", &recipe]);
        let output = command.current_dir(root).output().expect("it starts");
        let (stdout, stderr) = texts(&output);
        assert!(output.status.success() && stderr.is_empty(), "{name}\n{stdout}\n{stderr}");
        says(&stdout, &["base       tiny: …", "data       train …; validation …", "tried      …"]);
        assert!(!stdout.contains("notice"), "{stdout}");
    }
}
