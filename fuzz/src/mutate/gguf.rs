//! Changes of GGUF files.

#[path = "../../../tests/common/gguf_writer.rs"]
mod gguf_writer;

use rullama_train::base::Gguf;
use rullama_train::base::gguf::value::{Array, Value};

pub use gguf_writer::GgufWriter;

use super::bytes::{self, FLOATS, integer};
use super::text;
use crate::rng::Rng;

/// A changed copy.
pub fn mutate(rng: &mut Rng, input: Vec<u8>) -> Vec<u8> {
    let Ok(gguf) = Gguf::from_bytes(input.clone(), "x") else { return bytes::mutate(rng, input) };
    let mut writer = GgufWriter::of(&gguf);
    match rng.below(4) {
        0 | 1 if !writer.tensors.is_empty() => tensor(rng, &mut writer),
        0..=2 if !writer.metadata.is_empty() => key(rng, &mut writer),
        _ => counts(rng, &mut writer),
    }
    writer.bytes()
}

fn counts(rng: &mut Rng, writer: &mut GgufWriter) {
    let (tensors, keys) = (writer.tensors.len() as u64, writer.metadata.len() as u64);
    match rng.below(4) {
        0 => writer.tensor_count = Some(integer(rng, tensors, tensors)),
        1 => writer.key_count = Some(integer(rng, keys, keys)),
        2 => writer.version = integer(rng, 3, 2) as u32,
        _ => writer.set("general.alignment", Value::U32(integer(rng, 32, 64) as u32)),
    }
}

fn tensor(rng: &mut Rng, writer: &mut GgufWriter) {
    let (at, other) = (rng.below(writer.tensors.len()), rng.below(writer.tensors.len()));
    let length = writer.tensors[at].data.len() as u64;
    let name = writer.tensors[other].name.clone();
    let tensor = &mut writer.tensors[at];
    match rng.below(9) {
        0 if !tensor.shape.is_empty() => {
            let size = rng.below(tensor.shape.len());
            tensor.shape[size] = integer(rng, tensor.shape[size], length);
        }
        1 => tensor.shape.push(integer(rng, 1, length)),
        2 => drop(tensor.shape.pop()),
        3 => tensor.ty = rng.below(46) as u32,
        4 => tensor.offset = Some(integer(rng, 32, length)),
        5 => tensor.name = name,
        6 => tensor.data = bytes::mutate(rng, std::mem::take(&mut tensor.data)),
        7 => tensor.shape.reverse(),
        _ => drop(writer.tensors.remove(at)),
    }
}

fn key(rng: &mut Rng, writer: &mut GgufWriter) {
    let (at, other) = (rng.below(writer.metadata.len()), rng.below(writer.metadata.len()));
    match rng.below(5) {
        0 => drop(writer.metadata.remove(at)),
        1 => writer.metadata.push(writer.metadata[at].clone()),
        2 => writer.metadata[at].1 = writer.metadata[other].1.clone(),
        _ => value(rng, &mut writer.metadata[at].1),
    }
}

fn value(rng: &mut Rng, value: &mut Value) {
    let float = *rng.pick(&FLOATS);
    match value {
        Value::U32(number) => *number = integer(rng, (*number).into(), 8) as u32,
        Value::I32(number) => *number = integer(rng, *number as u64, 8) as i32,
        Value::U64(number) => *number = integer(rng, *number, 8),
        Value::F32(number) => *number = float as f32,
        Value::F64(number) => *number = float,
        Value::Bool(flag) => *flag = !*flag,
        Value::String(text) => *text = changed(rng, text),
        Value::Array(Array::String(items)) if !items.is_empty() => {
            let (a, b) = (rng.below(items.len()), rng.below(items.len()));
            match rng.below(4) {
                0 => items[a] = changed(rng, &items[a]),
                1 => items[a] = items[b].clone(),
                2 => items.truncate(a),
                _ => items.swap(a, b),
            }
        }
        Value::Array(Array::I32(items)) if !items.is_empty() => {
            let a = rng.below(items.len());
            items[a] = integer(rng, items[a] as u64, 8) as i32;
        }
        Value::Array(Array::Bool(items)) if !items.is_empty() => {
            let a = rng.below(items.len());
            items.truncate(a);
        }
        other => {
            *other =
                rng.pick(&[Value::U32(7), Value::Array(Array::U32(vec![])), Value::F32(float as f32)]).clone()
        }
    }
}

fn changed(rng: &mut Rng, text: &str) -> String {
    String::from_utf8_lossy(&text::mutate(rng, text.as_bytes().to_vec())).into_owned()
}
