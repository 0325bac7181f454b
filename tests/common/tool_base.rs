//! The tiny base with words for calling functions, and the recipe of an adapter that calls one.

use std::fs;
use std::path::Path;

use rullama_train::base::gguf::value::{Array, Value};
use rullama_train::base::gguf::writer::{self, Entry};
use rullama_train::base::{Gguf, TensorInfo};
use serde_json::json;

/// Names of girls that the tiny base knows, and what they stand for instead: what it never saw has no row of its own.
const WORDS: [(&str, &str); 9] = [
    ("▁Ursula", "<|tool>"),
    ("▁Xena", "<tool|>"),
    ("▁Quinn", "<|tool_call>"),
    ("▁Yara", "<tool_call|>"),
    ("▁Olga", "<|tool_response>"),
    ("▁Petra", "<tool_response|>"),
    ("▁Wendy", "<|\"|>"),
    ("▁Cleo", "{"),
    ("▁Vera", "}"),
];
/// llama.cpp's type of a token that stands for itself.
const USER_DEFINED: i32 = 4;

const RECIPE: &str = r#"[model]
base = "tools.gguf"

[lora]
rank = 8
alpha = 16

[data]
train = "looks.jsonl"
val_size = 0
max_seq_len = 256
template = "gemma4"

[train]
max_steps = 30
learning_rate = 4e-3

[output]
dir = "looks"
"#;

/// Writes `tools.gguf`, `looks.toml` and `looks.jsonl` into `dir`: asked how Lima is, the adapter calls `sky(in="Lima")`, and
/// says what that gives.
pub fn write(dir: &Path) {
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");
    let gguf = Gguf::open(Path::new(tiny)).expect("part of the repository");
    let mut metadata = gguf.metadata().to_vec();
    let mut array = |key: &str| match metadata.iter_mut().find(|(name, _)| name == key) {
        Some((_, Value::Array(array))) => std::mem::replace(array, Array::U8(Vec::new())),
        _ => panic!("{key} is an array"),
    };
    let (tokens, types, merges) =
        (array("tokenizer.ggml.tokens"), array("tokenizer.ggml.token_type"), array("tokenizer.ggml.merges"));
    let (Array::String(mut tokens), Array::I32(mut types), Array::String(mut merges)) =
        (tokens, types, merges)
    else {
        panic!("arrays of other types");
    };
    for (word, name) in WORDS {
        let id = tokens.iter().position(|token| token == word).expect("a word that it knows");
        tokens[id] = name.into();
        if name.contains('|') {
            types[id] = USER_DEFINED;
        }
        merges.retain(|merge| merge.replace(' ', "") != word);
    }
    for (key, array) in [
        ("tokenizer.ggml.tokens", Array::String(tokens)),
        ("tokenizer.ggml.token_type", Array::I32(types)),
        ("tokenizer.ggml.merges", Array::String(merges)),
    ] {
        let entry = metadata.iter_mut().find(|(name, _)| name == key).expect("found above");
        entry.1 = Value::Array(array);
    }
    let entry = |t: &TensorInfo| Entry { name: t.name.clone(), shape: t.shape.clone(), ty: t.ty };
    let entries: Vec<Entry> = gguf.tensors().iter().map(entry).collect();
    let mut bytes = Vec::new();
    writer::write(&mut bytes, &metadata, &entries, |i, out| out.write_all(gguf.data(&gguf.tensors()[i])))
        .expect("sound");
    fs::write(dir.join("tools.gguf"), bytes).expect("written");
    fs::write(dir.join("looks.toml"), RECIPE).expect("written");
    let sample = json!({ "tools": [{ "type": "function", "function": { "name": "sky" } }], "messages": [
        { "role": "user", "content": "How is Lima?" },
        { "role": "assistant", "tool_calls": [{ "function": { "name": "sky", "arguments": { "in": "Lima" } } }] },
        { "role": "tool", "content": "blue" },
        { "role": "assistant", "content": "It is blue." },
    ] });
    fs::write(dir.join("looks.jsonl"), sample.to_string()).expect("written");
}
