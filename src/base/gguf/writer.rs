//! Writes GGUF version 3: first the header, then the tensors' data as a stream, so that a large model needs little memory.
//!
//! Source: the GGUF specification; llama.cpp's `gguf_write_to_file` writes the same layout.

use std::collections::HashSet;
use std::io::{self, ErrorKind, Write};

use super::value::{Array, Value};
use crate::base::GgmlType;

/// Alignment of the data where the metadata have no `general.alignment`.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Longest name of a tensor in bytes: ggml keeps names in 64 bytes that end with a zero.
const MAX_NAME: usize = 63;
/// Most dimensions of a tensor (`GGML_MAX_DIMS`).
const MAX_DIMENSIONS: usize = 4;

/// A tensor to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Name in the file, with `.weight`.
    pub name: String,
    /// Sizes in GGUF's `ne` order: the first is the contiguous one (columns, the input width).
    pub shape: Vec<usize>,
    /// Element or block format.
    pub ty: GgmlType,
}

impl Entry {
    /// Size of the data in bytes; `None` where rows are not whole blocks or the size exceeds `u64`.
    pub fn bytes(&self) -> Option<u64> {
        let (values, bytes) = (self.ty.block_len() as u64, self.ty.block_bytes() as u64);
        let columns = self.shape.first().copied().unwrap_or(1) as u64;
        let count = self.shape.iter().try_fold(1u64, |n, &size| n.checked_mul(size as u64))?;
        if columns.is_multiple_of(values) { (count / values).checked_mul(bytes) } else { None }
    }
}

/// Writes a whole file to `out`: `metadata` and `tensors` in the given order, then the data. `fill` writes the data of
/// tensor 0, 1, …, exactly [`Entry::bytes`] for each.
///
/// Data are aligned to the metadata's `general.alignment`, or to 32 bytes. Fails with [`ErrorKind::InvalidData`] where
/// llama.cpp would not read the file: a name or a key twice, a name of more than 63 bytes, more than 4 dimensions, rows that
/// are not whole blocks, an alignment that is not a power of two. Also fails where `fill` writes another number of bytes.
pub fn write(
    out: &mut dyn Write,
    metadata: &[(String, Value)],
    tensors: &[Entry],
    mut fill: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let (header, alignment) = header(metadata, tensors)?;
    let mut out = Counter { out, written: 0 };
    out.write_all(&header)?;
    pad(&mut out, alignment)?;
    for (index, tensor) in tensors.iter().enumerate() {
        let expected = tensor.bytes().expect("checked with the header");
        let start = out.written;
        fill(index, &mut out)?;
        let found = out.written - start;
        if found != expected {
            return Err(refuse(format!(
                "tensor {} got {found} bytes of data, expected {expected}",
                tensor.name
            )));
        }
        pad(&mut out, alignment)?;
    }
    Ok(())
}

/// The bytes before the data, without the padding, and the alignment of the data.
pub(crate) fn header(metadata: &[(String, Value)], tensors: &[Entry]) -> io::Result<(Vec<u8>, u64)> {
    let mut alignment = DEFAULT_ALIGNMENT;
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());

    let mut keys = HashSet::new();
    for (key, value) in metadata {
        if !keys.insert(key) {
            return Err(refuse(format!("metadata key `{key}` appears twice")));
        }
        if key == "general.alignment" {
            alignment = match value {
                Value::U32(a) if a.is_power_of_two() => u64::from(*a),
                _ => {
                    let found = value.describe();
                    return Err(refuse(format!("`{key}` is {found}, expected a power of two as u32")));
                }
            };
        }
        write_string(&mut out, key);
        write_value(&mut out, value);
    }

    let (mut names, mut offset) = (HashSet::new(), 0u64);
    for tensor in tensors {
        let (name, shape) = (&tensor.name, &tensor.shape);
        if !names.insert(name) {
            return Err(refuse(format!("tensor {name} appears twice")));
        }
        if name.len() > MAX_NAME {
            return Err(refuse(format!("the name of tensor {name} has more than {MAX_NAME} bytes")));
        }
        if shape.len() > MAX_DIMENSIONS {
            return Err(refuse(format!("tensor {name} has the shape {shape:?}, expected at most 4 sizes")));
        }
        let end = tensor.bytes().and_then(|bytes| offset.checked_add(bytes));
        let next = end.and_then(|end| end.checked_next_multiple_of(alignment)).ok_or_else(|| {
            refuse(format!("tensor {name} of shape {shape:?} cannot be stored as {}", tensor.ty.name()))
        })?;
        write_string(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|&size| out.extend((size as u64).to_le_bytes()));
        out.extend((tensor.ty as u32).to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset = next;
    }
    Ok((out, alignment))
}

fn refuse(problem: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, problem)
}

/// Counts the bytes that are written.
struct Counter<'a> {
    out: &'a mut dyn Write,
    written: u64,
}

impl Write for Counter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes zeros up to the next multiple of `alignment`.
fn pad(out: &mut Counter, alignment: u64) -> io::Result<()> {
    let missing = out.written.next_multiple_of(alignment) - out.written;
    io::copy(&mut io::Read::take(io::repeat(0), missing), out).map(drop)
}

/// Writes the type's id and the value. Source of the ids: `gguf_metadata_value_type`; `parse.rs` reads them.
fn write_value(out: &mut Vec<u8>, value: &Value) {
    let mut plain = |id: u32, bytes: &[u8]| {
        out.extend(id.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(x) => plain(0, &x.to_le_bytes()),
        Value::I8(x) => plain(1, &x.to_le_bytes()),
        Value::U16(x) => plain(2, &x.to_le_bytes()),
        Value::I16(x) => plain(3, &x.to_le_bytes()),
        Value::U32(x) => plain(4, &x.to_le_bytes()),
        Value::I32(x) => plain(5, &x.to_le_bytes()),
        Value::F32(x) => plain(6, &x.to_le_bytes()),
        Value::Bool(x) => plain(7, &[u8::from(*x)]),
        Value::U64(x) => plain(10, &x.to_le_bytes()),
        Value::I64(x) => plain(11, &x.to_le_bytes()),
        Value::F64(x) => plain(12, &x.to_le_bytes()),
        Value::String(text) => {
            plain(8, &[]);
            write_string(out, text);
        }
        Value::Array(array) => {
            plain(9, &[]);
            write_array(out, array);
        }
    }
}

/// Writes the elements' type id, their number, and the elements.
fn write_array(out: &mut Vec<u8>, array: &Array) {
    let mut elements = |id: u32, bytes: Vec<u8>| {
        out.extend(id.to_le_bytes());
        out.extend((array.len() as u64).to_le_bytes());
        out.extend(bytes);
    };
    match array {
        Array::U8(a) => elements(0, a.clone()),
        Array::I8(a) => elements(1, a.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::U16(a) => elements(2, a.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::I16(a) => elements(3, a.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::U32(a) => elements(4, a.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::I32(a) => elements(5, a.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::F32(a) => elements(6, a.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::Bool(a) => elements(7, a.iter().map(|&x| u8::from(x)).collect()),
        Array::U64(a) => elements(10, a.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::I64(a) => elements(11, a.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::F64(a) => elements(12, a.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::String(a) => {
            elements(8, Vec::new());
            a.iter().for_each(|text| write_string(out, text));
        }
    }
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Base, Gguf};

    fn entry(name: &str, shape: &[usize], ty: GgmlType) -> Entry {
        Entry { name: name.into(), shape: shape.into(), ty }
    }

    fn bytes(metadata: &[(String, Value)], tensors: &[Entry], data: &[Vec<u8>]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        write(&mut out, metadata, tensors, |i, out| out.write_all(&data[i]))?;
        Ok(out)
    }

    #[test]
    fn every_value_and_the_data_are_read_back() {
        let arrays = [
            Array::U8(vec![1, 255]),
            Array::I8(vec![-1, 127]),
            Array::U16(vec![65535]),
            Array::I16(vec![-32768]),
            Array::U32(vec![u32::MAX]),
            Array::I32(vec![i32::MIN]),
            Array::U64(vec![u64::MAX]),
            Array::I64(vec![i64::MIN]),
            Array::F32(vec![1e-44, -0.5]),
            Array::F64(vec![0.1]),
            Array::Bool(vec![true, false]),
            Array::String(vec!["▁a".into(), String::new()]),
            Array::U32(Vec::new()),
        ];
        let values = [
            Value::U8(255),
            Value::I8(-128),
            Value::U16(65535),
            Value::I16(-2),
            Value::U32(7),
            Value::I32(-7),
            Value::U64(u64::MAX),
            Value::I64(i64::MIN),
            Value::F32(0.1),
            Value::F64(0.1),
            Value::Bool(true),
            Value::String("größer".into()),
        ];
        let values = values.into_iter().chain(arrays.map(Value::Array));
        let mut metadata: Vec<(String, Value)> =
            values.enumerate().map(|(i, value)| (format!("key.{i}"), value)).collect();
        let tensors = [
            entry("a", &[3, 5], GgmlType::F16),
            entry("b", &[256, 2], GgmlType::Q4_K),
            entry("c", &[], GgmlType::F32),
        ];
        let data: Vec<Vec<u8>> =
            tensors.iter().map(|t| vec![7; t.bytes().expect("small") as usize]).collect();
        assert_eq!(data.iter().map(Vec::len).collect::<Vec<_>>(), [30, 288, 4]);
        for alignment in [None, Some(1u32), Some(64), Some(4096)] {
            metadata.retain(|(key, _)| key != "general.alignment");
            metadata.extend(alignment.map(|a| ("general.alignment".to_string(), Value::U32(a))));
            let file = bytes(&metadata, &tensors, &data).expect("sound");
            assert!(file.len().is_multiple_of(alignment.unwrap_or(32) as usize), "{alignment:?}");
            let read = Gguf::from_bytes(file, "test").unwrap_or_else(|e| panic!("{alignment:?}: {e}"));
            assert_eq!(read.version(), 3);
            assert_eq!(read.metadata(), metadata);
            for (tensor, data) in tensors.iter().zip(&data) {
                let found = read.tensor(&tensor.name).expect("written");
                assert_eq!((&found.shape, found.ty), (&tensor.shape, tensor.ty));
                assert_eq!(read.data(found), data, "{}", tensor.name);
            }
        }
    }

    #[test]
    fn a_rewritten_file_has_the_same_bytes() {
        // llama.cpp's own writer made this file: same order, same values, same padding.
        let tiny = Base::tiny().expect("part of the program");
        let (read, original) = (tiny.gguf(), tiny.gguf().bytes());
        let entries: Vec<Entry> = read.tensors().iter().map(|t| entry(&t.name, &t.shape, t.ty)).collect();
        let mut out = Vec::new();
        write(&mut out, read.metadata(), &entries, |i, out| out.write_all(read.data(&read.tensors()[i])))
            .expect("sound");
        assert_eq!(out.len(), original.len());
        assert_eq!(out.iter().zip(original).position(|(a, b)| a != b), None);
    }

    #[test]
    fn refuses_files_that_no_reader_accepts() {
        let key = |value| vec![("general.alignment".to_string(), value)];
        let one = entry("a", &[4], GgmlType::F32);
        let long = "n".repeat(64);
        type Case = (Vec<(String, Value)>, Vec<Entry>, &'static str);
        let cases: [Case; 8] = [
            (vec![], vec![one.clone(), one.clone()], "tensor a appears twice"),
            (vec![], vec![entry(&long, &[4], GgmlType::F32)], "has more than 63 bytes"),
            (vec![], vec![entry("a", &[1; 5], GgmlType::F32)], "expected at most 4 sizes"),
            (vec![], vec![entry("a", &[33], GgmlType::Q8_0)], "of shape [33] cannot be stored as Q8_0"),
            (vec![], vec![entry("a", &[usize::MAX, 2], GgmlType::F32)], "cannot be stored as F32"),
            (key(Value::U32(24)), vec![], "is the integer 24, expected a power of two"),
            (
                [key(Value::U32(8)), key(Value::U32(8))].concat(),
                vec![],
                "key `general.alignment` appears twice",
            ),
            (vec![], vec![entry("a", &[3], GgmlType::F32)], "tensor a got 16 bytes of data, expected 12"),
        ];
        for (metadata, tensors, expected) in cases {
            let error = bytes(&metadata, &tensors, &[vec![0; 16], vec![0; 16]]).expect_err(expected);
            assert!(error.to_string().contains(expected), "{error}, expected {expected}");
        }
    }
}
