//! Families with delta nets, from the base file to replies of the merged model.

use crate::place::Place;

pub fn delta_nets(place: Place) {
    for family in ["qwen35", "qwen35moe"] {
        let base = format!("{}/../../tests/golden/{family}/model.gguf", env!("CARGO_MANIFEST_DIR"));
        let text = place.run(&["inspect", &base]);
        assert!(text.contains("; 1 full-attention and 1 delta-net layers\n"), "{text}");
        let lines: Vec<String> =
            (0..12).map(|i| format!("{{\"prompt\": \"hi {i}\", \"completion\": \"aye aye\"}}\n")).collect();
        place.write("hi.jsonl", lines.concat());
        let set = |key: &str| ["--set".to_owned(), key.to_owned()];
        let settings = [
            set(&format!("model.base={base}")),
            set("data.train=hi.jsonl"),
            set("train.max_steps=10"),
            set("train.learning_rate=5e-3"),
            set(&format!("output.dir={family}")),
        ]
        .concat();
        let recipe = ["recipe.toml".to_owned()];
        let arguments: Vec<&str> = recipe.iter().chain(&settings).map(String::as_str).collect();
        place.run(&arguments);
        let reply = ["--prompt", "hi 3", "--max-tokens", "12"];
        let unmerged = place.run(&[&["generate", &base, "--adapter", family][..], &reply].concat());
        assert_eq!(unmerged, "aye aye\n");
        let merged = format!("{family}-merged/model.gguf");
        place.run(&["merge", family, "--base", &base, "--out", &merged]);
        assert_eq!(place.run(&[&["generate", &merged][..], &reply].concat()), "aye aye\n");
    }
}
