//! `init`, `inspect`, `models`, completions, manual pages and the Markdown reference.

use std::path::Path;

use serde_json::Value as Json;

use super::exports::other_tiny;
use super::{DATA, Place, matches, texts};
use crate::gguf_writer::GgufWriter;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
pub const ADAPTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/chat/adapter");

/// Expects lines that match these patterns, in this order; `…` stands for anything.
#[track_caller]
pub fn has_lines(text: &str, expected: &[&str]) {
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
    has_lines(
        &text,
        &[
            "read       data.jsonl: JSON Lines, 4 prompt_completion",
            "lengths    … to … tokens; …",
            "data.jsonl line 1; loss tokens stand between « and »:",
            "proposal   60 steps (60 epochs of 4 samples) at a learning rate of 4e-3: a base this small takes a high rate",
            "notice     only 4 samples: …",
            "written    mine.toml",
            "next       rullama-train check mine.toml",
            "           rullama-train check mine.toml --lr",
            "           rullama-train mine.toml",
            "           rullama-train chat tiny --adapter runs/mine --compare",
        ],
    );
    let recipe = String::from_utf8(place.read("mine.toml")).expect("UTF-8");
    has_lines(
        &recipe,
        &[
            "#:schema https://…/recipe.schema.json",
            "# 4 samples with … tokens, the longest with … tokens; 60 steps.",
            "#   rullama-train mine.toml  … # trains; …",
            "base = \"tiny\"",
            "train = \"data.jsonl\"",
            "val_size = 0   …",
            "max_seq_len = 128 …",
            "overlong = \"error\" …",
            "samples = ['Say \"hi\".'] …",
            "dir = \"runs/mine\"",
        ],
    );
    place.write(
        "pairs.jsonl",
        "{\"prompt\": \"Hi!\", \"chosen\": \"Ahoy!\", \"rejected\": \"Good day.\"}\n".repeat(2)
            + "{\"prompt\": \"Bye!\", \"chosen\": \"Aye!\", \"rejected\": \"Goodbye.\"}\n",
    );
    let text = place.run(&["init", "pairs.toml", "--base", "tiny", "--data", "pairs.jsonl"]);
    has_lines(
        &text,
        &[
            "proposal   … (10 epochs of 3 pairs) at a learning rate of 2e-4: preferences take a lower rate than examples",
            "notice     preferences come after examples: …lora.init_from",
            "notice     only 3 pairs: …",
        ],
    );
    let pairs = String::from_utf8(place.read("pairs.toml")).expect("UTF-8");
    has_lines(&pairs, &["objective = \"dpo\" …", "beta = 0.1 …", "sft_weight = 0.5 …"]);
    let checked = place.run(&["check", "pairs.toml", "--set", "data.max_seq_len=64"]);
    assert!(checked.contains("packed up to 128 tokens"), "two sides share a row: {checked}");
    place.write(
        "rated.jsonl",
        "{\"prompt\": \"Hi!\", \"completion\": \"Ahoy!\", \"label\": true}\n".repeat(3),
    );
    place.run(&["init", "rated.toml", "--base", "tiny", "--data", "rated.jsonl"]);
    has_lines(&String::from_utf8(place.read("rated.toml")).expect("UTF-8"), &["objective = \"kto\" …"]);
    // An existing recipe is only overwritten with --force.
    let again = ["init", "mine.toml", "--base", "tiny", "--data", "data.jsonl"];
    place.refused(&again, "mine.toml already exists; choose another name, or overwrite it with --force");
    let output = ["--force", "--output", "out/\u{e9}"];
    place.run(&[&again[..], &output].concat());
    assert!(String::from_utf8(place.read("mine.toml")).expect("UTF-8").contains("dir = \"out/\u{e9}\""));

    place.refused(
        &["init", "a.toml", "--base", "tiny"],
        "--data PATH is required when there is no terminal to ask on (Samples (a file, a folder, or a glob pattern))",
    );
    place.refused(
        &["init", "a.toml", "--data", "data.jsonl"],
        "--base BASE is required when there is no terminal to ask on; models on this machine: tiny",
    );
    let of = |recipe: &'static str, base: &'static str, data: &'static str| {
        ["init", recipe, "--base", base, "--data", data]
    };
    place.refused(
        &of("a.json", "tiny", "data.jsonl"),
        "a.json: the recipe is written as TOML; choose a name that ends in .toml",
    );
    place.refused(&of("data.jsonl/a.toml", "tiny", "data.jsonl"), "cannot write data.jsonl/a.toml: …");
    place.refused(
        &of("a.toml", "gemma4:e2b", "data.jsonl"),
        "gemma4:e2b: is no existing file, and Ollama has no such model …",
    );
    // Information about the data is on stdout; the error names the line.
    place.write("bad.jsonl", "{}");
    let output = place.command(&of("a.toml", "tiny", "bad.jsonl")).output().expect("the program starts");
    assert!(texts(&output).1.starts_with("error: bad.jsonl line 1: expected \"messages\", "), "{output:?}");

    // A long sample among many short ones: the recipe skips it, and says so.
    let long = format!("{{\"text\": \"{}\"}}\n", "river stone ".repeat(600));
    place.write("long.jsonl", DATA.repeat(60) + &long);
    place.run(&of("long.toml", "tiny", "long.jsonl"));
    has_lines(
        &String::from_utf8(place.read("long.toml")).expect("UTF-8"),
        &[
            "val_size = 0.05 …",
            "max_seq_len = 1024 …",
            "overlong = \"drop\"   …# skips longer ones (1 sample); …",
            "samples = [\"…\"…] …",
        ],
    );
    // Most samples are too long for the base.
    place.write("most.jsonl", long.repeat(3) + DATA.lines().next().expect("a line"));
    has_lines(
        &place.run(&of("most.toml", "tiny", "most.jsonl")),
        &[
            "notice     3 of 4 samples are longer than 1024 tokens, which is all that tiny takes, and will be cut off there",
        ],
    );
    has_lines(&String::from_utf8(place.read("most.toml")).expect("UTF-8"), &["overlong = \"truncate\" …"]);

    // A base from Ollama: the way ends in Ollama. A table of 60 samples gives enough steps to teach a style.
    place.stored_tiny("gemma4/e2b");
    let rows: String = (0..60).map(|i| format!("What is {i} plus 1?,{} it is.\n", i + 1)).collect();
    place.write("faq.csv", format!("question,answer\n{rows}"));
    let text = place.run(&of("Cat faq.toml", "gemma4:e2b", "faq.csv"));
    has_lines(
        &text,
        &[
            "read       faq.csv: table, 60 prompt_completion",
            "notice     faq.csv: \"question\" and \"answer\" are read as prompt and completion (60 samples)",
            "proposal   … steps (… epochs of 60 samples) at a learning rate of 6e-4: a style takes about 60 steps, and small bases a \
             higher rate than 2e-4; halve it if the validation loss rises",
            "next       rullama-train check \"Cat faq.toml\"",
            "           rullama-train check \"Cat faq.toml\" --lr",
            "           rullama-train \"Cat faq.toml\"",
            "           rullama-train merge \"runs/Cat faq\" --base gemma4:e2b --ollama cat-faq",
            "           ollama run cat-faq",
        ],
    );
    let steps: usize = text
        .split("proposal   ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{text}"));
    assert!((60..=200).contains(&steps), "{text}");
    let recipe = String::from_utf8(place.read("Cat faq.toml")).expect("UTF-8");
    has_lines(
        &recipe,
        &[
            "#   rullama-train merge \"runs/Cat faq\" --base gemma4:e2b --ollama cat-faq …# puts the result into Ollama",
            "learning_rate = 6e-4 …",
            "samples = [\"What is … plus 1?\"…] …",
        ],
    );
}

/// A recipe that `init` writes passes `check`.
pub fn init_trains(place: Place) {
    place.write("pairs.jsonl", "{\"prompt\": \"Hi!\", \"chosen\": \"Ahoy!\", \"rejected\": \"Good day.\"}\n");
    place.run(&["init", "pairs.toml", "--base", "tiny", "--data", "pairs.jsonl"]);
    place.run(&["check", "pairs.toml"]);
    place.run(&["init", "mine.toml", "--base", "tiny", "--data", "data.jsonl"]);
    let text = place.run(&["check", "mine.toml"]);
    has_lines(
        &text,
        &["base       tiny: …", "data       train 4 samples, …; validation none", "memory     …"],
    );
}

pub fn inspect_models(place: Place) {
    for name in [TINY, "tiny"] {
        let text = place.run(&["inspect", name]);
        has_lines(
            &text,
            &[
                &format!("model      {name}"),
                "file       GGUF 3, 4.1 MiB: gemma4, …",
                "weights    Q4_K_M: Q6_K 2.3 MiB in 5 tensors, Q4_K …",
                "template   in the file, … characters",
                "shape      4 layers, width 256, context 1 024, vocabulary 2 048; 2 sliding-window and 2 full-attention layers, \
                 2 of them share another layer's keys and values",
                "identity   v1:…",
                "training   possible on attn_q, …, proj: 18 304 trainable parameters per rank",
            ],
        );
    }
    let mut other = GgufWriter::gemma4();
    other.set("general.architecture", rullama_train::base::gguf::value::Value::String("mamba".into()));
    place.write("llama.gguf", other.bytes());
    has_lines(
        &place.run(&["inspect", "llama.gguf"]),
        &["file       GGUF 3, …: mamba…", "training   not possible: llama.gguf: …`mamba`…"],
    );
    place.write("cut.gguf", &std::fs::read(TINY).expect("the tiny model")[..10_000]);
    place.refused(&["inspect", "cut.gguf"], "cut.gguf: …download the file again");
    place.refused(&["inspect", "no.such"], "no.such: …");
    place.write("report.html", "<!doctype html>");
    place.refused(
        &["inspect", "report.html"],
        "report.html is a report; open it in a browser, or use `rullama-train inspect .` for its run",
    );
    place.stored_tiny("gemma4/e2b");
    place.refused(
        &["inspect", "gemma4:e2"],
        "gemma4:e2: is no existing file, and Ollama has no such model in store, …; found there: gemma4:e2b; did you mean \
         gemma4:e2b? Otherwise run `ollama pull` with a tag that exists, set OLLAMA_MODELS, or name a .gguf file",
    );
    place.refused(
        &["inspect", "recipe.toml"],
        "recipe.toml is a recipe; use `rullama-train check recipe.toml`",
    );
}

pub fn inspect_adapters(place: Place) {
    let text = place.run(&["inspect", ADAPTER, "--base", "tiny"]);
    has_lines(
        &text,
        &[
            "adapter    …: PEFT folder",
            "trained on …",
            "matrices   … pairs in 4 layers of 4, on attn_q, …",
            "size       rank 8, alpha 16 (scale 2.0000), 146 432 parameters",
            "norms      A …, B …",
        ],
    );

    place.write("other.gguf", other_tiny());
    // A foreign adapter: the model that it was trained on comes first, and the list of its tensors is bounded.
    let config = r#"{"peft_type": "LORA", "r": 8, "lora_alpha": 16, "base_model_name_or_path": "meta-llama/Llama-3.2-1B"}"#;
    place.write("foreign/adapter_config.json", config.replace("}", ", \"use_dora\": true}"));
    let names: Vec<String> =
        (0..16).map(|i| format!("base_model.model.model.layers.{i}.mlp.other_proj.lora_A.weight")).collect();
    let data = [0u8; 4];
    let tensors = names.iter().map(|name| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1, 1], &data);
        (name.clone(), view.expect("a tensor"))
    });
    let bytes = safetensors::serialize(tensors, None).expect("sound");
    place.write("foreign/adapter_model.safetensors", bytes);
    has_lines(
        &place.run(&["inspect", "foreign"]),
        &[
            "adapter    foreign: PEFT folder",
            "trained on meta-llama/Llama-3.2-1B",
            "variant    DoRA, which this program cannot load: it trains and loads plain LoRA",
        ],
    );
    place.write("foreign/adapter_config.json", config);
    let output =
        place.command(&["inspect", "foreign", "--base", "tiny"]).output().expect("the program starts");
    let error = texts(&output).1;
    let start = "error: foreign/adapter_model.safetensors: it was trained on meta-llama/Llama-3.2-1B and does not fit tiny: ";
    assert!(matches(&error, &format!("{start}…")) && error.chars().count() < 450, "{error}");

    place.write("empty/adapter_config.json", "{}");
    place.refused(&["inspect", "empty"], "…empty…");
}

pub fn inspect_samples(place: Place) {
    let text = place.run(&["inspect", "data.jsonl"]);
    has_lines(
        &text,
        &[
            "read       data.jsonl: JSON Lines, 4 prompt_completion",
            "samples    4 samples, … tokens, … % loss tokens, with the tokenizer of tiny",
            "lengths    …",
            "data.jsonl line 1; loss tokens stand between « and »:",
            "«Ahoy!<turn|>»",
        ],
    );
    place.write("many/a.jsonl", DATA);
    place.write("many/b.jsonl", DATA);
    place.write("many/notes.txt", "");
    has_lines(&place.run(&["inspect", "many"]), &["samples    8 samples, …", "notice     …"]);
    has_lines(&place.run(&["inspect", "many/*.jsonl"]), &["samples    8 samples, …"]);
    place.write("nothing.jsonl", "");
    place.refused(
        &["inspect", "nothing.jsonl"],
        "nothing.jsonl: the file contains no sample; expected one JSON object per line",
    );
}

/// The output folder of a run, its checkpoints, and its adapter in other formats.
pub fn inspect_runs(place: Place) {
    let exports = "output.export=['peft', 'gguf-lora', 'mlx']";
    place.run(&["recipe.toml", "--set", exports]);
    has_lines(
        &place.run(&["inspect", "run"]),
        &[
            "run        run: finished, after step 2 of 2",
            "base       tiny",
            "checkpoint run/checkpoint-2: intact, …",
            "adapter    run: PEFT folder",
            "trained on tiny",
            "identity   v1:… (of the base)",
            "size       rank 4, alpha 8 (scale 2.0000), 73 216 parameters",
        ],
    );
    for (path, format) in [("run/adapter.gguf", "GGUF LoRA"), ("run/mlx", "mlx-lm folder")] {
        let text = place.run(&["inspect", path]);
        has_lines(
            &text,
            &[&format!("adapter    {path}: {format}"), "size       rank 4, …, 73 216 parameters"],
        );
    }
    has_lines(
        &place.run(&["inspect", "run/checkpoint-2"]),
        &[
            "checkpoint run/checkpoint-2: after step 2 of 2, intact",
            "progress   2 updates; the best evaluation was at step 2",
            &format!("written    by rullama-train {}, …", env!("CARGO_PKG_VERSION")),
            "digest     base …",
            "digest     validation samples …",
            "adapter    run/checkpoint-2: PEFT folder",
        ],
    );
    // The folders that export writes, and a folder of runs.
    for (format, path, kind) in
        [("mlx", "ex_mlx/mlx", "mlx-lm folder"), ("gguf-lora", "ex_gguf/adapter.gguf", "GGUF LoRA")]
    {
        let folder = path.split('/').next().expect("a folder");
        place.run(&["export", "run", "--to", format, "--base", "tiny", "--out", folder, "--unverified"]);
        has_lines(&place.run(&["inspect", folder]), &[&format!("adapter    {path}: {kind}")]);
    }
    place.write("all/notes.txt", "");
    std::fs::rename(place.dir.join("run"), place.dir.join("all/run")).expect("moved");
    has_lines(
        &place.run(&["inspect", "all"]),
        &["run        all/run: finished, after step 2 of 2", "adapter    all/run: PEFT folder"],
    );
    std::fs::rename(place.dir.join("all/run"), place.dir.join("run")).expect("moved");
    let state = place.read("run/checkpoint-2/optimizer.safetensors");
    place.write("run/checkpoint-2/optimizer.safetensors", &state[..99]);
    place.refused(
        &["inspect", "run/checkpoint-2"],
        "run/checkpoint-2 is damaged: optimizer.safetensors has 99 bytes, expected …",
    );
    has_lines(&place.run(&["inspect", "run"]), &["checkpoint run/checkpoint-2 is damaged: …"]);
}

pub fn models(place: Place) {
    let text = place.run(&["models"]);
    has_lines(
        &text,
        &[
            "tiny     4.1 MiB  gemma4 Q4_K_M, trains…: 4 layers, width 256, context 1 024 (built in)",
            "no other models found; searched were",
            "Ollama     store, …",
            "run `ollama pull gemma4:e2b`, `rullama-train pull hf:ORG/REPO:TYPE`, or set OLLAMA_MODELS, HF_HOME or RULLAMA_MODELS",
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
    has_lines(
        &place.run(&["models"]),
        &[
            "tiny  …",
            "gemma4:e2b      4.1 MiB  gemma4 Q4_K_M, trains…: 4 layers, width 256, context 1 024",
            "gemma4:mlx            –  cannot be trained: is an MLX build …",
            "gone:latest           –  cannot be trained: its weights … have … bytes, expected 7; …",
        ],
    );
    let json: Json = serde_json::from_str(&place.run(&["models", "--json"])).expect("JSON");
    let trainable: Vec<_> =
        json["models"].as_array().expect("a list").iter().map(|m| m["trainable"].as_bool()).collect();
    assert_eq!(trainable, [Some(true), Some(true), Some(false), Some(false)]);
    assert_eq!(json["models"][1]["bytes"], tiny.len());
    has_lines(&place.run(&["inspect", "gemma4:e2b"]), &["model      gemma4:e2b", "training   possible on …"]);
}

pub fn manual(place: Place) {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = place.run(&["completions", shell]);
        assert!(script.contains("COMPLETE") && script.contains("rullama-train"), "{script}");
    }
    // What the script asks for.
    let complete = |words: &[&str]| {
        let mut command = place.command(&[&["--", "rullama-train"], words].concat());
        command.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
        command
            .env("_CLAP_COMPLETE_COMP_TYPE", "9")
            .env("_CLAP_COMPLETE_SPACE", "false")
            .env("_CLAP_IFS", "\n");
        texts(&command.output().expect("the program starts")).0
    };
    place.stored_tiny("gemma4/e2b");
    assert_eq!(complete(&["insp"]), "inspect");
    assert!(complete(&["chat", "tiny", "--max"]).contains("--max-tokens"));
    assert_eq!(complete(&["chat", "gem"]), "gemma4:e2b");
    assert_eq!(complete(&["merge", "x", "--base", "ti"]), "tiny");
    let page = place.run(&["man"]);
    assert!(page.contains(".TH rullama-train 1") && page.contains("inspect"), "{page}");
    let text = place.run(&["man", "man1"]);
    let names = place.names("man1");
    has_lines(&text, &[&format!("written    {} pages to man1", names.len())]);
    for name in ["rullama-train.1", "rullama-train-check.1", "rullama-train-init.1", "rullama-train-serve.1"]
    {
        assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
    }
    // Every page is of a command that the program's help lists.
    let help = place.run(&["--help"]);
    for name in &names {
        let verb = name.strip_prefix("rullama-train-").and_then(|rest| rest.strip_suffix(".1"));
        assert!(verb.is_none_or(|verb| help.contains(&format!("\n  {verb} "))), "{name} in\n{help}");
    }
    let reference = place.run(&["describe-cli"]);
    for verb in names.iter().filter_map(|name| name.strip_prefix("rullama-train-")?.strip_suffix(".1")) {
        assert!(reference.contains(&format!("\n## rullama-train {verb}\n")), "no {verb} in\n{reference}");
    }
}

/// Every shipped recipe for the built-in base passes `check`.
pub fn shipped(place: Place) {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    for name in ["chat", "tools", "labels", "stories"] {
        let recipe = format!("recipes/{name}.toml");
        let mut command = place.command(&["check", &recipe]);
        let output = command.current_dir(root).output().expect("the program starts");
        let (stdout, stderr) = texts(&output);
        assert!(output.status.success() && stderr.is_empty(), "{name}\n{stdout}\n{stderr}");
        has_lines(&stdout, &["base       tiny: …", "data       train …; validation …", "dry run    …"]);
        assert!(!stdout.contains("notice"), "{stdout}");
    }
}
