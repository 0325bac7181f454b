//! `inspect --ids` and `inspect --text`.

use serde_json::Value as Json;

use super::Place;
use super::describe::{ADAPTER, has_lines};

/// Ids of samples and of texts, for people and as JSON.
pub fn inspect(place: Place) {
    has_lines(
        &place.run(&["inspect", "data.jsonl", "--ids"]),
        &[
            "data.jsonl line 1; …",
            "      id  loss  token",
            "       2        \"<bos>\"",
            "       6  yes   \"<turn|>\"",
        ],
    );
    let json = |arguments: &[&str]| -> Json {
        let text = place.run(&[&["inspect"], arguments].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let ids = json(&["data.jsonl", "--ids", "--json", "--first", "2"]);
    assert_eq!((&ids["base"], &ids["total"]), (&"tiny".into(), &4.into()));
    let samples = ids["samples"].as_array().expect("a list");
    assert_eq!(samples.len(), 2);
    for sample in samples {
        let lists = ["ids", "tokens", "loss"].map(|name| sample[name].as_array().expect("a list"));
        assert!(lists.iter().all(|list| list.len() == lists[0].len()), "{sample}");
        assert_eq!((&lists[1][0], &lists[2][0]), (&"<bos>".into(), &false.into()));
        let answer = lists[1].iter().zip(lists[2]).filter(|(_, loss)| **loss == true);
        let answer: String = answer.filter_map(|(text, _)| text.as_str()).collect();
        assert!(answer.ends_with("<turn|>") && !answer.contains("user"), "{answer}");
    }
    let text = json(&["--text", "Hi<turn|>é", "--json"]);
    assert_eq!(text["special"]["tokens"], serde_json::json!(["<bos>", "Hi", "<turn|>", "\\xc3", "\\xa9"]));
    assert_eq!(text["special"]["ids"][0], 2);
    let plain = text["plain"]["tokens"].as_array().expect("a list");
    assert!(plain[0] == "Hi" && plain.iter().all(|token| token != "<turn|>" && token != "<bos>"), "{text}");
    has_lines(
        &place.run(&["inspect", "--text", "é", "--base", "tiny"]),
        &["special    3 tokens, …", "…\\xa9"],
    );
    place.refused(
        &["inspect", "recipe.toml", "--json"],
        "recipe.toml is a recipe; use `rullama-train check recipe.toml`",
    );
    place.refused(
        &["inspect", ADAPTER, "--base", "tiny", "--ids"],
        "--ids and --first are for samples; leave them out",
    );
}
