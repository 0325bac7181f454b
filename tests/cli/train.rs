//! Training and evaluation: the files that are written, and that they are the same each time.

use serde_json::Value as Json;

use super::Place;
use super::exports::other_tiny;

pub fn train(place: Place) {
    let text =
        place.run(&["recipe.toml", "--set", "eval.samples=[\"Hello!\"]", "--set", "eval.max_new_tokens=2"]);
    for part in [
        "step 2/2   loss ",
        "trained    2 steps in ",
        "validation loss ",
        "\nyour data  changes the most likely token at ",
        "\ngeneral    changes the most likely token at ",
        "\nverdict    ",
        "  Hello!\n    before  ",
        "  What is the capital of France? (general)\n    base    ",
        "written    run\n",
        "next       rullama-train chat tiny --adapter run --compare\n           rullama-train merge run --base tiny --ollama run\n",
    ] {
        assert!(text.contains(part), "expected {part:?} in\n{text}");
    }
    let files = [
        ".lock",
        "adapter_config.json",
        "adapter_model.safetensors",
        "checkpoint-2",
        "checkpoint-2/adapter_config.json",
        "checkpoint-2/adapter_model.safetensors",
        "checkpoint-2/metrics.jsonl",
        "checkpoint-2/optimizer.safetensors",
        "checkpoint-2/timing.jsonl",
        "checkpoint-2/trainer_state.json",
        "events.out.tfevents.rullama-train",
        "metrics.jsonl",
        "recipe.resolved.toml",
        "report.html",
        "run.json",
        "timing.jsonl",
    ];
    assert_eq!(place.names("run"), files);
    assert_eq!(place.metrics("run", "loss").len(), 2);
    assert_eq!(place.metrics("run", "learning_rate"), [0.0, 1e-2], "one step of warm-up, then the peak");

    place.run(&["recipe.toml", "--set", "output.dir=runs/again"]);
    let of = |dir: &str, key: &str| place.metrics(dir, key);
    for key in ["loss", "grad_norm", "accuracy", "eval_loss", "eval_accuracy"] {
        assert_eq!(of("run", key), of("runs/again", key), "{key}");
    }
    // What a run measures after its last step changes no byte of its adapter.
    let unmeasured =
        ["--set", "output.dir=resolved", "--set", "eval.samples=[]", "--set", "eval.general=false"];
    let shown = place.run(&[&["run/recipe.resolved.toml"][..], &unmeasured].concat());
    assert!(shown.contains("\nyour data  ") && !shown.contains("\ngeneral  "), "{shown}");
    for other in ["runs/again", "resolved"] {
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            assert!(
                place.read(&format!("run/{file}")) == place.read(&format!("{other}/{file}")),
                "{other}/{file}"
            );
        }
    }
    place.run(&["recipe.toml", "--set", "train.seed=7", "--fresh"]);
    assert_eq!(place.names("run"), files, "in place of the earlier run");
    let file = "adapter_model.safetensors";
    assert!(place.read(&format!("run/{file}")) != place.read(&format!("resolved/{file}")), "another seed");
}

pub fn eval(place: Place) {
    place.run(&["recipe.toml"]);
    let during = place.metrics("run", "eval_loss");
    let accuracy = place.metrics("run", "eval_accuracy");
    let json = |arguments: &[&str]| {
        let text = place.run(&[&["eval", "recipe.toml", "--json"], arguments].concat());
        serde_json::from_str::<Json>(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let (base, adapted) = (json(&[]), json(&["--adapter", "run"]));
    let scores = |j: &Json, key: &str| -> Vec<f64> {
        j["results"].as_array().expect("a list").iter().filter_map(|r| r[key].as_f64()).collect()
    };
    // Equal kernels on equal numbers give equal bits.
    assert_eq!(scores(&base, "eval_loss"), [during[0]]);
    assert_eq!(scores(&adapted, "eval_loss"), during);
    assert_eq!(scores(&adapted, "eval_accuracy"), accuracy);
    assert_eq!(scores(&adapted, "eval_perplexity"), [during[0].exp(), during[1].exp()]);
    assert!(during[1] < during[0], "two steps at this rate lower the loss: {during:?}");
    let rest = |j: &Json| (j["samples"].as_u64(), j["base"].clone(), j["adapter"].clone());
    assert_eq!(rest(&base), (Some(1), "tiny".into(), Json::Null));
    assert_eq!(rest(&adapted), (Some(1), "tiny".into(), "run".into()));
    let text = place.run(&["eval", "recipe.toml", "--adapter", "run"]);
    assert!(text.contains(&format!("validation loss {:.4} → {:.4}, ", during[0], during[1])), "{text}");
    assert!(text.ends_with(" of 1 sample\n"), "{text}");

    // Two halves add up to the whole adapter, whatever the sum of their ranks. With f16 operands they are rounded differently.
    let halves_differ = 5e-3;
    let halves = json(&["--adapter", "run=0.5", "--adapter", "run=0.5"]);
    let difference = scores(&halves, "eval_loss")[1] - during[1];
    assert!(difference.abs() < halves_differ, "{difference:e}");
    assert_eq!(halves["adapter"], "run=0.5 + run=0.5");
    let twice = ["--set", "lora.init_from=['run=0.25', 'run=0.75']", "--set", "lora.rank=8"];
    place.run(&[&["recipe.toml", "--set", "output.dir=twice"], &twice[..]].concat());
    let difference = place.metrics("twice", "eval_loss")[0] - during[1];
    assert!(difference.abs() < halves_differ, "{difference:e}");
    assert_eq!(json(&[])["notices"], serde_json::json!([]));

    // This model differs in one bit of a norm.
    place.write("other.gguf", other_tiny());
    let other = ["eval", "recipe.toml", "--set", "model.base=other.gguf", "--json", "--adapter", "run"];
    place.refused(
        &other,
        "run was trained on tiny (v1:…), but other.gguf (v1:…) is a different model; use the base that it was trained on, or \
         allow a different one (--allow-other-base, or lora.allow_other_base = true in a recipe)",
    );
    let text = place.run(&[&other[..], &["--set", "lora.allow_other_base=true"]].concat());
    assert!(
        text.contains(
            "run was trained on tiny, but other.gguf is a different model; loaded because this is allowed"
        ),
        "{text}"
    );
    place.refused(
        &["run/recipe.resolved.toml", "--set", "model.base=other.gguf"],
        "other.gguf has the fingerprint v1:…, but model.fingerprint is v1:…; use the base that the recipe was written for, or \
         remove that key",
    );

    // Another run starts from there.
    place.run(&["recipe.toml", "--set", "lora.init_from=run", "--set", "output.dir=next"]);
    assert_eq!(place.metrics("next", "eval_loss")[0], during[1]);
}
