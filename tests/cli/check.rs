//! `check`, with gradients, and with a closed stdout.

use std::process::Stdio;

use safetensors::SafeTensors;

use super::{Place, matches, texts};

pub fn check(place: Place) {
    let unknown =
        "no GPU has a name that contains \"no such\"; found: …; name one of these in device.gpu (--gpu)";
    place.refused_on_device(&["check", "recipe.toml", "--set", "device.gpu=no such"], unknown);
    let before = place.contents();
    let text = place.run(&["check", "recipe.toml"]);
    let expected = [
        "device     ",
        "base       tiny: 4 layers, width 256, vocabulary 2 048\n",
        "adapter    73 216 trainable parameters: rank 4, alpha 8 (scale 2.0000) on attn_q, ",
        "template   built-in Gemma 4 template (small-model variant); loss on every answer\n",
        "read       data.jsonl: JSON Lines, 4 prompt_completion\n",
        "data       train 3 samples, ",
        "; validation 1 sample, ",
        "steps      2 (max_steps), each 1 row packed up to 64 tokens; peak learning rate 0.01\n",
        "lengths    ",
        "packing    ",
        "duplicates none\n",
        "memory     ",
        "\ndata.jsonl line 1; loss tokens stand between « and »:\n\n<bos><|turn>user\nHello!<turn|>\n<|turn>model\n«Ahoy!<turn|>»\n",
    ];
    for part in expected {
        assert!(text.contains(part), "expected {part:?} in\n{text}");
    }
    let at = |part: &str| text.find(part).expect("it is there");
    assert!(at("loss tokens stand") < at("memory     "), "the sample comes before what takes long\n{text}");
    let wide = place.run(&["check", "recipe.toml", "--set", "lora.rank=200"]);
    assert!(
        wide.contains("\nnotice     lora.rank = 200 is larger than the smaller side of ")
            && wide.contains(" matrices (the smallest is "),
        "{wide}"
    );
    for line in [
        "\ntime       not measured with a software renderer; --measure 1 times a step and an evaluation\n",
        "\nrate       1e-2 was not tried on these samples; `rullama-train check recipe.toml --lr` proposes a rate\n",
    ] {
        assert!(text.contains(line), "expected {line:?} in\n{text}");
    }
    assert!(before == place.contents(), "check left {:?}", place.contents().keys());
    let text = place.run(&["check", "recipe.toml", "--measure", "5"]);
    let time =
        text.lines().find(|line| line.starts_with("time       about ")).unwrap_or_else(|| panic!("{text}"));
    assert!(
        time.contains(" for 2 steps, and ")
            && time.contains(" for 2 evaluations; ")
            && time.ends_with(" tokens/s (measured over 1 step after a warm-up step)"),
        "{time}"
    );
    assert!(before == place.contents(), "check left {:?}", place.contents().keys());
    let tight = ["check", "recipe.toml", "--set", "train.memory_limit=0.001"];
    let (_, stderr) = texts(&place.command(&tight).output().expect("the program starts"));
    let expected = "error: train.memory_limit is 0.001 GiB, but passes over … tokens need … with every layer recomputed…; lower \
                    data.max_seq_len or train.batch_size, or raise the limit\n";
    assert!(matches(&stderr, expected), "{stderr}");
    // The plan counts the replies of evaluations.
    let replies = ["--set", "eval.samples=['Hi']", "--set", "eval.max_new_tokens=70"];
    let (_, stderr) =
        texts(&place.command(&[&tight[..], &replies].concat()).output().expect("the program starts"));
    let expected = "error: train.memory_limit is 0.001 GiB, but passes over … tokens, and replies that end within … tokens, need … with \
                    every layer recomputed…; lower data.max_seq_len, train.batch_size or eval.max_new_tokens, or raise the limit\n";
    assert!(matches(&stderr, expected), "{stderr}");
}

pub fn check_gradients(place: Place) {
    let mut before = place.contents();
    let text = place.run(&["check", "recipe.toml", "--gradients", "first.safetensors"]);
    assert!(text.contains("gradients  "), "{text}");
    let bytes = place.read("first.safetensors");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("sound");
    let metadata = header.metadata().as_ref().expect("there");
    assert!(metadata["loss"].parse::<f64>().expect("a number") > 0.0, "{metadata:?}");
    let file = SafeTensors::deserialize(&bytes).expect("sound");
    // Two layers with their own keys have nine modules, two layers with shared keys seven; each module has A and B.
    assert_eq!(file.len(), 2 * (2 * 9 + 2 * 7));
    // B is zero at first, so the gradient of A is zero and that of B is not.
    for (name, tensor) in file.iter() {
        let moves =
            tensor.data().chunks_exact(4).any(|b| f32::from_le_bytes(b.try_into().expect("4")) != 0.0);
        assert_eq!(moves, name.contains("lora_B"), "{name}");
    }
    before.insert("first.safetensors".into(), Some(bytes));
    assert!(before == place.contents(), "check left {:?}", place.contents().keys());
}

pub fn closed_pipe(place: Place) {
    let mut child = place.command(&["check", "recipe.toml"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the program ends");
    let error = texts(&output).1;
    assert!(output.status.success() && error.is_empty(), "{error}");
}

pub fn learning_rate(place: Place) {
    let check = |optimizer: &str| {
        let set = format!("train.optimizer=\"{optimizer}\"");
        place.run(&["check", "recipe.toml", "--lr", "--set", &set, "--set", "train.max_steps=8"])
    };
    for optimizer in ["adamw", "sgd"] {
        let before = place.names("");
        let shown = check(optimizer);
        for part in ["tested     ", "smoothed loss against the learning rate", "page       recipe-lr.html"] {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
        assert!(shown.contains("advice     train.learning_rate = "), "{shown}");
        let new: Vec<String> = place.names("").into_iter().filter(|name| !before.contains(name)).collect();
        assert!(new.iter().all(|name| name == "recipe-lr.html"), "{new:?}");
    }
    let page = String::from_utf8(place.read("recipe-lr.html")).expect("UTF-8");
    assert!(page.contains("<svg") && page.contains("train.learning_rate = "), "{page}");
    place.refused(
        &["check", "recipe.toml", "--lr", "--lr-page", "data.jsonl/page.html"],
        "…data.jsonl/page.html…",
    );
}
