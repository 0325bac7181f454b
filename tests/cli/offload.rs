//! A mixture with its experts in host memory.

use std::path::Path;

use serde_json::Value as Json;

use super::{Place, RECIPE, matches, talk, texts};

/// Trains, evaluates, exports and replies with and without offloaded experts. The samples are token ids.
pub fn offload(place: Place) {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/moe/model.gguf");
    let recipe =
        RECIPE.replace("tiny", &base.display().to_string()).replace("1e-2", "1e-2\nmemory_limit = 1.0");
    place.write("recipe.toml", recipe + "\n[eval]\nsamples = [\"Hello!\"]\nmax_new_tokens = 3\n");
    let row = "{\"input_ids\": [2, 9, 30, 41, 7], \"labels\": [2, 9, 30, 41, 7]}\n";
    place.write("data.jsonl", row.replace('9', "11") + &row.repeat(3).replace("30", "50"));
    place.write("rows.jsonl", row);
    let text = place.run(&["check", "recipe.toml"]);
    assert!(!text.contains("offload"), "all experts fit\n{text}");

    let forced = ["recipe.toml", "--set", "train.offload_experts=true"];
    let text = place.run(&[&["check"][..], &forced].concat());
    let plan = "\noffload    … stay in host memory: experts of all 4 layers. Copied to the GPU: … per training micro-batch, … per evaluation \
                batch or generated token\n";
    assert!(matches(&text, &format!("…{plan}…")), "{text}");
    let cost =
        "\noffload    copied … in … s (…/s); up to … s per micro-batch when not hidden behind compute\n";
    assert!(matches(&text, &format!("…{cost}…")), "{text}");
    assert!(text.contains("  matrices from host memory, in turn\n"), "{text}");

    place.run(&["recipe.toml"]);
    place.run(&[&forced[..], &["--set", "output.dir=offloaded"]].concat());
    let adapter = "adapter_model.safetensors";
    assert!(place.read(&format!("run/{adapter}")) == place.read(&format!("offloaded/{adapter}")));
    assert!(place.read("run/metrics.jsonl") == place.read("offloaded/metrics.jsonl"));
    let eval = |more: &[&str]| {
        let asked = ["eval", "recipe.toml", "--adapter", "run", "--data", "rows.jsonl", "--json"];
        let text = place.run(&[&asked[..], more].concat());
        serde_json::from_str::<Json>(&text).expect("one object")
    };
    let (resident, offloaded) = (eval(&[]), eval(&forced[1..]));
    assert_eq!(resident["results"], offloaded["results"]);
    assert_eq!(offloaded["offloaded_layers"], serde_json::json!([0, 1, 2, 3]));

    let base = base.display().to_string();
    let reply = |more: &[&str]| {
        let asked =
            ["generate", &base, "--prompt", "Hello!", "--max-tokens", "4", "--temperature", "0", "--json"];
        let mut reply: Json =
            serde_json::from_str(&place.run(&[&asked[..], more].concat())).expect("one object");
        reply.as_object_mut().expect("an object").retain(|key, _| !key.contains("second"));
        reply
    };
    assert_eq!(reply(&[]), reply(&["--offload-experts"]));

    // Exports and merged files are identical, and so are the results of the comparison.
    let write = |verb: &[&str], more: &[&str], file: &str| {
        let text = place.run(&[verb, &["--data", "rows.jsonl"], more].concat());
        let line = |start: &str| text.lines().find(|l| l.starts_with(start)).map(str::to_owned);
        let found = (place.read(file), line("compared "), line("effect "), line("exported "));
        assert_eq!(line("offload ").is_some(), !more.is_empty(), "{text}");
        found
    };
    for (verb, file) in [
        (
            &["merge", "run", "--base", &base, "--type=f32", "--out=out/merged.gguf", "--force"][..],
            "out/merged.gguf",
        ),
        (
            &["export", "run", "--base", &base, "--to=peft", "--out=out", "--force"],
            "out/adapter_model.safetensors",
        ),
    ] {
        let resident = write(verb, &[], file);
        assert!(resident == write(verb, &["--offload-experts"], file), "{verb:?}");
    }

    for (arguments, expected) in [
        (
            &["recipe.toml", "--set", "output.dir=x", "--set", "train.memory_limit=0.001"][..],
            "error: train.memory_limit is 0.001 GiB, but passes over … tokens, and replies that end within … tokens, need … with every \
             layer recomputed and layers in host memory; lower data.max_seq_len, train.batch_size or eval.max_new_tokens, or raise \
             the limit\n",
        ),
        (
            &[
                "recipe.toml",
                "--set",
                "output.dir=x",
                "--set",
                "train.memory_limit=0.001",
                "--set",
                "train.offload_experts=false",
            ],
            "error: train.memory_limit is 0.001 GiB, but passes over … tokens, and replies that end within … tokens, need … with every \
             layer recomputed and train.offload_experts = false; lower data.max_seq_len, train.batch_size or eval.max_new_tokens, or \
             raise the limit\n",
        ),
        (
            &[
                "recipe.toml",
                "--set",
                "model.base=tiny",
                "--set",
                "train.offload_experts=true",
                "--set",
                "output.dir=x",
            ],
            "error: train.offload_experts: tiny is not a mixture of experts; remove this setting\n",
        ),
        (
            &["generate", "tiny", "--prompt", "Hello!", "--offload-experts"],
            "error: --offload-experts: tiny is not a mixture of experts; remove this setting\n",
        ),
        (
            &["merge", talk::ADAPTER, "--base", "tiny", "--out", "x.gguf", "--offload-experts"],
            "error: --offload-experts: tiny is not a mixture of experts; remove this setting\n",
        ),
        (
            &["bench", "tiny", "--offload-experts"],
            "error: --offload-experts: tiny is not a mixture of experts; remove this setting\n",
        ),
    ] {
        let (_, stderr) = texts(&place.command(arguments).output().expect("the program starts"));
        assert!(matches(&stderr, expected), "{stderr}");
    }
    let sequence = ["bench", &base, "--batch", "1", "--sequence", "16", "--steps", "1", "--rank", "4"];
    let text = place.run(&[&sequence[..], &["--offload-experts"]].concat());
    assert!(matches(&text, "…\ncopies     … per step in … s when nothing else runs (…/s)\n…"), "{text}");
}
