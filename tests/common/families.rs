//! Small vocabularies for the tokenizers of every family.
#![allow(dead_code, reason = "each test uses a part")]

use rullama_train::data::tokenizer::TokenizerData;
use serde_json::Value;

/// Vocabularies, texts and ids that fixtures/tokenizer/families.py wrote.
pub fn fixture() -> Value {
    let json = include_str!("../fixtures/tokenizer/families.json");
    serde_json::from_str(json).expect("the fixture is JSON")
}

pub fn strings(value: &Value) -> Vec<String> {
    let list = value.as_array().expect("a list");
    list.iter().map(|text| text.as_str().expect("text").to_owned()).collect()
}

/// The byte-level vocabulary with a pre-tokenizer.
pub fn byte_level(pre: &str) -> TokenizerData {
    let vocabulary = &fixture()["byte_level"];
    let (mut tokens, control) = (strings(&vocabulary["tokens"]), strings(&vocabulary["control"]));
    let mut token_types = vec![1; tokens.len()];
    for token in strings(&vocabulary["added"]) {
        token_types.push(if control.contains(&token) { 3 } else { 4 });
        tokens.push(token);
    }
    let id = |name: &str| tokens.iter().position(|token| token == name).map(|id| id as u32);
    let (bos, eos) = (id("<|begin|>"), id("<|im_end|>"));
    TokenizerData {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        merges: strings(&vocabulary["merges"]),
        bos,
        eos: eos.into_iter().collect(),
        eos_token: eos,
        tokens,
        token_types,
        ..TokenizerData::default()
    }
}

/// The vocabulary with scores. With `space_prefix`, it is as Llama 2's, without user-defined tokens.
pub fn by_scores(space_prefix: bool) -> TokenizerData {
    let vocabulary = &fixture()["scores"];
    let numbers = |key: &str| vocabulary[key].as_array().expect("a list").clone();
    let mut tokens = strings(&vocabulary["tokens"]);
    let mut token_types: Vec<i32> =
        numbers("types").iter().map(|kind| kind.as_i64().expect("a type") as i32).collect();
    if space_prefix {
        for (token, kind) in tokens.iter_mut().zip(&mut token_types).filter(|(_, kind)| **kind == 4) {
            (*token, *kind) = (token.replace(' ', "▁"), 1);
        }
    }
    TokenizerData {
        model: "llama".into(),
        pre: Some("default".into()),
        tokens,
        token_types,
        scores: numbers("scores").iter().map(|score| score.as_f64().expect("a score") as f32).collect(),
        bos: Some(2),
        eos: vec![1],
        eos_token: Some(1),
        add_space_prefix: Some(space_prefix),
        ..TokenizerData::default()
    }
}
