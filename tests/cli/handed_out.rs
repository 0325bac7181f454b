//! What `export`, `merge` and runs hand out, and what they keep back.

use std::path::Path;

use rullama_train::base::Gguf;

use super::{Place, matches, texts};

pub fn handed_out(place: Place) {
    let text = place.run(&["recipe.toml", "--set", "output.export=['peft', 'gguf-lora-f16']"]);
    let says = |text: &str, expected: &[&str]| {
        for part in expected {
            assert!(text.lines().any(|line| matches(line, part)), "expected {part:?} in\n{text}");
        }
    };
    let effect = "effect     KL divergence …, lowers the loss by …, over … tokens";
    says(
        &text,
        &[
            effect,
            "exported   run: peft, read back: the same logits",
            "exported   run/adapter-f16.gguf: gguf-lora-f16, read back: logits differ by … of what the adapter changes",
        ],
    );

    // The text to compare on: built in, a recipe's, a file's. The adapter's own files name its base.
    let export = ["export", "run", "--to", "mlx", "--to", "rullama-v0", "--out", "other"];
    let without = ["--set", "lora.target_modules=['attn_q']", "--set", "output.dir=q"];
    place.run(&[&["recipe.toml"], &without[..]].concat());
    let q = ["export", "q", "--to", "mlx", "--to", "rullama-v0", "--out", "other"];
    for on in [&[][..], &["--recipe", "recipe.toml"], &["--data", "data.jsonl"]] {
        let text = place.run(&[&q[..], on].concat());
        says(
            &text,
            &[
                "effect     KL divergence …",
                "exported   other/mlx: mlx, read back: the same logits",
                "exported   other/rullama-v0.safetensors: rullama-v0, read back: the same logits",
            ],
        );
    }
    // One format that cannot hold it does not keep the others away.
    let output = place.command(&export).output().expect("it starts");
    let (stdout, stderr) = texts(&output);
    assert!(!output.status.success() && stderr.contains("cannot hold inp_gate and proj"), "{stderr}");
    assert!(stdout.contains("other/mlx: mlx, read back"), "{stdout}");

    // A thousand times the adapter says nothing that the base would.
    let refused = |arguments: &[&str], expected: &str| {
        let before = place.contents();
        let output = place.command(arguments).output().expect("it starts");
        let (stdout, stderr) = texts(&output);
        assert!(!output.status.success() && matches(&stderr, expected), "{stdout}\n{stderr}");
        assert!(before == place.contents(), "{arguments:?} left {:?}", place.contents().keys());
    };
    refused(
        &["export", "run=1000", "--to", "gguf-lora", "--out", "broken"],
        "error: the adapter was not written: its KL divergence from the base is … nats over 116 tokens, expected at \
         most 7.62: what blind guessing costs, 7.62, and the 0.00 by which it lowers the loss; lower the learning rate or the \
         alpha\n",
    );
    refused(
        &["merge", "run=1000", "--base", "tiny", "--out", "merged.gguf"],
        "error: the adapter was not merged: its KL divergence from the base is …",
    );
    let text = place.run(&["merge", "run", "--base", "tiny", "--out", "merged.gguf"]);
    says(&text, &["drift      KL divergence …, over … tokens", "effect     …: what the adapter itself does"]);
    let text = place.run(&["merge", "run", "--base", "tiny", "--out", "merged.gguf", "--unverified"]);
    says(&text, &["drift      not measured, as was asked for"]);

    // A run that went wrong is told, and not lost.
    let wild = ["recipe.toml", "--set", "train.learning_rate=1", "--set", "output.dir=wild"];
    let output = place.command(&wild).output().expect("it starts");
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

/// The tiny model as a file, one bit of one norm changed.
pub fn other_tiny() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
    let mut bytes = std::fs::read(path).expect("part of the repository");
    let gguf = Gguf::open(Path::new(path)).expect("sound");
    bytes[gguf.tensor("output_norm.weight").expect("there").range.start as usize] ^= 1;
    bytes
}
