//! GGUF files as bases, whole and streamed, and their vocabularies.

#[path = "../../../tests/common/pieces.rs"]
mod pieces;

use rullama_train::adapter::lora::slots;
use rullama_train::base::gguf::value::{Array, Value};
use rullama_train::base::{Base, Gguf, Module};
use rullama_train::data::tokenizer::{Special, Tokenizer};

use super::{Outcome, accepted_if, refused};
use crate::mutate::GgufWriter;

/// Small models of families that have keys and layers of their own.
pub const FAMILIES: [&[u8]; 5] = [
    include_bytes!("../../../tests/golden/qwen35/model.gguf"),
    include_bytes!("../../../tests/golden/gpt-oss/model.gguf"),
    include_bytes!("../../../tests/golden/qwen3moe/model.gguf"),
    include_bytes!("../../../tests/golden/qwen35moe/model.gguf"),
    include_bytes!("../../../tests/golden/lfm2/model.gguf"),
];

pub fn models() -> Vec<Vec<u8>> {
    let old = GgufWriter { version: 2, ..GgufWriter::gemma4() };
    let written = [GgufWriter::gemma4().bytes(), GgufWriter::mixture().bytes(), old.bytes()];
    written.into_iter().chain(FAMILIES.map(<[u8]>::to_vec)).collect()
}

/// Opens a base, and looks at all of it.
pub fn whole(input: &[u8]) -> Outcome {
    match open(input) {
        Ok(base) => {
            let _ = base.fingerprint();
            let gguf = base.gguf();
            let bytes = |t: &rullama_train::base::TensorInfo| t.range.end - t.range.start;
            let fits = gguf.tensors().iter().all(|t| gguf.data(t).len() as u64 == bytes(t));
            let slots = slots(base.config(), &Module::ALL);
            accepted_if(fits && slots.iter().all(|slot| slot.in_features > 0), || "sizes do not fit".into())
        }
        Err(error) => refused(error),
    }
}

fn open(input: &[u8]) -> Result<Base, rullama_train::base::Error> {
    Base::from_gguf(Gguf::from_bytes(input.to_vec(), "x.gguf")?, "x.gguf")
}

/// A streamed file is the one in memory, and its errors are the same.
pub fn streamed(input: &[u8]) -> Outcome {
    let source = Box::new(pieces::Pieces::of(input.to_vec()));
    let streamed = pollster::block_on(Base::stream(source, "x.gguf"));
    match (streamed, open(input)) {
        (Ok(streamed), Ok(whole)) => {
            accepted_if(streamed.config() == whole.config(), || "another config than in memory".into())
        }
        (Err(streamed), Err(whole)) if streamed.to_string() == whole.to_string() => refused(streamed),
        (streamed, whole) => {
            let [streamed, whole] =
                [streamed, whole].map(|base| base.map(|_| "accepted").map_err(|e| e.to_string()));
            Outcome::Wrong(format!("streamed: {streamed:?}; in memory: {whole:?}"))
        }
    }
}

/// The first words of the tiny base.
pub fn vocabularies() -> Vec<Vec<u8>> {
    let tiny = Base::tiny().expect("part of the program");
    let mut writer = GgufWriter::default();
    for (key, value) in tiny.gguf().metadata() {
        if key.starts_with("tokenizer.ggml") || key == "general.architecture" {
            writer.set(key, value.clone());
        }
    }
    let array = |key: &str| match tiny.gguf().value(key) {
        Some(Value::Array(array)) => array.clone(),
        other => panic!("{key} is {other:?}"),
    };
    const KEPT: usize = 600;
    let (Array::String(mut tokens), Array::String(mut merges)) =
        (array("tokenizer.ggml.tokens"), array("tokenizer.ggml.merges"))
    else {
        panic!("texts");
    };
    tokens.truncate(KEPT);
    let known = |text: &str| tokens.iter().any(|token| token == text);
    merges.retain(|merge| merge.split(' ').all(known) && known(&merge.replace(' ', "")));
    writer.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
    writer.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    for key in ["tokenizer.ggml.token_type", "tokenizer.ggml.scores"] {
        match tiny.gguf().value(key) {
            Some(Value::Array(Array::I32(kinds))) => {
                writer.set(key, Value::Array(Array::I32(kinds[..KEPT].to_vec())))
            }
            Some(Value::Array(Array::F32(scores))) => {
                writer.set(key, Value::Array(Array::F32(scores[..KEPT].to_vec())))
            }
            _ => {}
        }
    }
    vec![writer.bytes()]
}

/// Encodes and decodes a text.
pub fn vocabulary(input: &[u8]) -> Outcome {
    const TEXT: &str = "Hello <bos> world, é🦀 \n\n  and on <turn|> 12";
    let tokenizer = Gguf::from_bytes(input.to_vec(), "x.gguf").map_err(|e| e.to_string());
    let tokenizer = tokenizer.and_then(|gguf| Tokenizer::from_gguf(&gguf).map_err(|e| e.to_string()));
    match tokenizer {
        Ok(tokenizer) => {
            let ids = tokenizer.encode(TEXT, Special::Parse);
            let _ = tokenizer.decode(&ids);
            accepted_if(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()), || {
                "ids beyond the vocabulary".into()
            })
        }
        Err(error) => refused(error),
    }
}
