//! Adapters and merged files that runs, `export` and `merge` write or reject.

use std::path::Path;

use rullama_train::base::Gguf;

use super::{Place, matches, texts};

pub fn exports(place: Place) {
    let text = place.run(&["recipe.toml", "--set", "output.export=['peft', 'gguf-lora-f16']"]);
    let has_lines = |text: &str, expected: &[&str]| {
        for part in expected {
            assert!(text.lines().any(|line| matches(line, part)), "expected {part:?} in\n{text}");
        }
    };
    let data = "your data  changes the most likely token at … % of … places (validation samples), KL divergence …; lowers the loss there by …";
    let general = "general    changes the most likely token at … % of … places (8 built-in questions), KL divergence …; … the loss there by …";
    has_lines(
        &text,
        &[
            data,
            general,
            "exported   run: peft, reloaded: identical logits",
            "exported   run/adapter-f16.gguf: gguf-lora-f16, reloaded: rounding changes the adapter's effect by … %",
        ],
    );

    // The text for the comparison: built in, from a recipe, or from a file. The adapter's files name its base.
    let export = ["export", "run", "--to", "mlx", "--to", "rullama-v0", "--out", "other"];
    let without = ["--set", "lora.target_modules=['attn_q']", "--set", "output.dir=q"];
    place.run(&[&["recipe.toml"], &without[..]].concat());
    let q = ["export", "q", "--to", "mlx", "--to", "rullama-v0", "--out", "other"];
    let given = [
        (&[][..], "8 built-in questions, not your data"),
        (&["--recipe", "recipe.toml", "--force"], "validation samples of recipe.toml"),
        (&["--data", "data.jsonl", "--force"], "data.jsonl"),
    ];
    for (on, place_of) in given {
        let text = place.run(&[&q[..], on].concat());
        has_lines(
            &text,
            &[
                &format!("effect     … places ({place_of}), KL divergence …"),
                "next       rullama-train chat tiny --adapter other/mlx --compare",
                "exported   other/mlx: mlx, reloaded: identical logits",
                "exported   other/rullama-v0.safetensors: rullama-v0, reloaded: identical logits",
            ],
        );
    }
    // A format that cannot hold the adapter does not prevent the others.
    place.refused(
        &export,
        "other/mlx already exists; choose another folder with --out, or overwrite it with --force",
    );
    let output = place.command(&[&export[..], &["--force"]].concat()).output().expect("the program starts");
    let (stdout, stderr) = texts(&output);
    assert!(!output.status.success() && stderr.contains("cannot hold inp_gate and proj"), "{stderr}");
    assert!(matches(&stdout, "…other/mlx: mlx, reloaded…"), "{stdout}");

    // At 1000 times its weight, the adapter breaks the base.
    let refused = |arguments: &[&str], expected: &str| {
        let before = place.contents();
        let output = place.command(arguments).output().expect("the program starts");
        let (stdout, stderr) = texts(&output);
        assert!(!output.status.success() && matches(&stderr, expected), "{stdout}\n{stderr}");
        assert!(before == place.contents(), "{arguments:?} left {:?}", place.contents().keys());
    };
    refused(
        &["export", "run=1000", "--to", "gguf-lora", "--out", "broken"],
        "error: the adapter was not written: its KL divergence from the base is … nats over 116 tokens, expected at \
         most 7.62: 7.62 for a random guess plus 0.00 for the lower loss; lower the learning rate or the alpha\n",
    );
    refused(
        &["merge", "run=1000", "--base", "tiny", "--out", "merged.gguf"],
        "error: the adapter was not merged: its KL divergence from the base is …",
    );
    let text = place.run(&["merge", "run", "--base", "tiny", "--out", "merged.gguf"]);
    has_lines(
        &text,
        &[
            "compared   the merged model has another most likely token than base and adapter at … % of 116 places (8 built-in …",
            "effect     the adapter changes the most likely token at …",
            "rounding   keeps … % of the adapter's change, which is … % of the matrices; rounding to the stored format adds noise of … %",
            "ollama     ollama create NAME -f Modelfile",
        ],
    );
    // A second model in the folder gets a Modelfile of its own.
    let text = place.run(&["merge", "run", "--base", "tiny", "--out", "the second.gguf", "--type", "f16"]);
    has_lines(
        &text,
        &["rounding   keeps 100.0 % of …", "ollama     ollama create NAME -f 'the second.Modelfile'"],
    );
    let modelfile = String::from_utf8(place.read("the second.Modelfile")).expect("UTF-8");
    assert!(modelfile.starts_with("FROM ./the second.gguf\n"), "{modelfile}");
    let first = String::from_utf8(place.read("Modelfile")).expect("UTF-8");
    assert!(first.starts_with("FROM ./merged.gguf\n"), "{first}");
    let text =
        place.run(&["merge", "run", "--base", "tiny", "--out", "merged.gguf", "--unverified", "--force"]);
    has_lines(&text, &["compared   no: … (--unverified)"]);

    // A run with a useless result is an error, but its adapter is kept.
    let wild = ["recipe.toml", "--set", "train.learning_rate=1", "--set", "output.dir=wild"];
    let output = place.command(&wild).output().expect("the program starts");
    let (stdout, stderr) = texts(&output);
    let expected = "error: the adapter was not written: its KL divergence from the base is …; the trained adapter is \
                    kept in wild/refused\n";
    assert!(!output.status.success() && matches(&stderr, expected), "{stdout}\n{stderr}");
    let names = place.names("wild");
    for file in [
        "metrics.jsonl",
        "recipe.resolved.toml",
        "refused/adapter_config.json",
        "refused/adapter_model.safetensors",
    ] {
        assert!(names.iter().any(|name| name == file), "{file} in {names:?}");
    }
    assert!(!names.iter().any(|name| name == "adapter_model.safetensors"), "{names:?}");
}

/// The tiny model with one bit of one norm changed.
pub fn other_tiny() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
    let mut bytes = std::fs::read(path).expect("part of the repository");
    let gguf = Gguf::open(Path::new(path)).expect("sound");
    bytes[gguf.tensor("output_norm.weight").expect("there").range.start as usize] ^= 1;
    bytes
}
