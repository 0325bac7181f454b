//! A mixture whose experts lie in host memory.

use std::path::Path;

use serde_json::Value as Json;

use super::{Place, RECIPE, matches, talk, texts};

/// A mixture of experts, its samples as numbers.
pub fn offload(place: Place) {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/moe/model.gguf");
    let recipe =
        RECIPE.replace("tiny", &base.display().to_string()).replace("1e-2", "1e-2\nmemory_limit = 1.0");
    place.write("recipe.toml", recipe + "\n[eval]\nsamples = [\"Hello!\"]\nmax_new_tokens = 3\n");
    let row = "{\"input_ids\": [2, 9, 30, 41, 7], \"labels\": [2, 9, 30, 41, 7]}\n";
    place.write("data.jsonl", row.replace('9', "11") + &row.repeat(3).replace("30", "50"));
    place.write("rows.jsonl", row);
    let text = place.run(&["check", "recipe.toml"]);
    assert!(!text.contains("offload"), "all fit\n{text}");

    let forced = ["recipe.toml", "--set", "train.offload_experts=true"];
    let text = place.run(&[&["check"][..], &forced].concat());
    let plan = "\noffload    the experts of all 4 layers stay in host memory, … of it: … are copied to the device in each \
                micro-batch, … in one of an evaluation and for a token of a reply\n";
    assert!(matches(&text, &format!("…{plan}…")), "{text}");
    let cost = "\noffload    copying … of them took … s, …/s: … s a micro-batch, as far as the device has nothing to compute \
                meanwhile\n";
    assert!(matches(&text, &format!("…{cost}…")), "{text}");
    assert!(text.contains("  experts from host memory, in turn\n"), "{text}");

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

    // What is handed out is the same file, compared with the same result.
    let handed_out = |verb: &[&str], more: &[&str], file: &str| {
        let text = place.run(&[verb, &["--data", "rows.jsonl"], more].concat());
        let says = |start: &str| text.lines().find(|l| l.starts_with(start)).map(str::to_owned);
        let found = (place.read(file), says("drift "), says("effect "), says("exported "));
        assert_eq!(says("offload ").is_some(), !more.is_empty(), "{text}");
        found
    };
    for (verb, file) in [
        (&["merge", "run", "--base", &base, "--type=f32", "--out=out/merged.gguf"][..], "out/merged.gguf"),
        (&["export", "run", "--base", &base, "--to=peft", "--out=out"], "out/adapter_model.safetensors"),
    ] {
        let resident = handed_out(verb, &[], file);
        assert!(resident == handed_out(verb, &["--offload-experts"], file), "{verb:?}");
    }

    for (arguments, expected) in [
        (
            &["recipe.toml", "--set", "train.memory_limit=0.001"][..],
            "error: train.memory_limit is 0.001 GiB, and passes over … tokens need … with every layer recomputed and all experts \
             in host memory; lower data.max_seq_len or train.batch_size, or raise the limit\n",
        ),
        (
            &["recipe.toml", "--set", "train.memory_limit=0.001", "--set", "train.offload_experts=false"],
            "error: train.memory_limit is 0.001 GiB, and passes over … tokens need … with every layer recomputed and \
             train.offload_experts = false; lower data.max_seq_len or train.batch_size, or raise the limit\n",
        ),
        (
            &["recipe.toml", "--set", "model.base=tiny", "--set", "train.offload_experts=true"],
            "error: train.offload_experts is true, but tiny is not a mixture of experts; remove that key\n",
        ),
        (
            &["generate", "tiny", "--prompt", "Hello!", "--offload-experts"],
            "error: --offload-experts: tiny is no mixture of experts; leave it out\n",
        ),
        (
            &["merge", talk::ADAPTER, "--base", "tiny", "--out", "x.gguf", "--offload-experts"],
            "error: --offload-experts: tiny is no mixture of experts; leave it out\n",
        ),
        (
            &["bench", "tiny", "--offload-experts"],
            "error: --offload-experts: tiny is no mixture of experts; leave it out\n",
        ),
    ] {
        let (_, stderr) = texts(&place.command(arguments).output().expect("it starts"));
        assert!(matches(&stderr, expected), "{stderr}");
    }
    let sequence = ["bench", &base, "--batch", "1", "--sequence", "16", "--steps", "1", "--rank", "4"];
    let text = place.run(&[&sequence[..], &["--offload-experts"]].concat());
    assert!(matches(&text, "…\ncopies     … a step, … s without kernels: …/s\n…"), "{text}");
}
