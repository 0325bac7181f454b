//! Reads the header of GGUF versions 2 and 3.
//!
//! Nothing in the file is trusted: each length, count and offset is checked against the bytes that are there.
//! Source: the GGUF specification; llama.cpp `gguf_init_from_reader` refuses the same files.

use super::value::{Array, TensorInfo, Value};
use crate::base::GgmlType;
use std::collections::HashMap;

const DOWNLOAD: &str = "download the file again";

/// The parsed header.
pub(super) struct Parsed {
    pub version: u32,
    pub alignment: usize,
    pub metadata: Vec<(String, Value)>,
    pub keys: HashMap<String, usize>,
    pub tensors: Vec<TensorInfo>,
    pub names: HashMap<String, usize>,
}

/// Parses the header of a file of `length` bytes that begins with `bytes`. `None` where the header continues after `bytes`.
///
/// The error has what was found, what was expected, and the next step.
pub(super) fn parse(bytes: &[u8], length: u64) -> Option<Result<Parsed, String>> {
    let mut cursor = Cursor { bytes, length, at: 0, continues: false };
    let parsed = cursor.header();
    (!cursor.continues).then_some(parsed)
}

/// A position in the file. Methods take `what`, the thing that is read, for the error message where the file ends.
struct Cursor<'a> {
    bytes: &'a [u8],
    length: u64, // bytes of the whole file
    at: usize,
    continues: bool, // a read went past `bytes`, but not past the end of the file
}

impl<'a> Cursor<'a> {
    fn header(&mut self) -> Result<Parsed, String> {
        let magic = &self.bytes[..self.bytes.len().min(4)];
        if magic != b"GGUF" {
            let found = magic.escape_ascii();
            return Err(format!(
                "starts with \"{found}\", expected \"GGUF\"; name a GGUF file, or {DOWNLOAD}"
            ));
        }
        self.at = 4;
        let version = self.u32("the version")?;
        if version.swap_bytes() <= 3 && version != 0 {
            return Err("is a big-endian GGUF file, expected little-endian; convert it again".into());
        }
        if version != 2 && version != 3 {
            return Err(format!("has GGUF version {version}, expected 2 or 3; convert the model again"));
        }
        // The smallest entries: key length, type and one byte; name length, dimensions, type, offset.
        let (tensor_count, key_count) = (self.u64("the tensor count")?, self.u64("the key count")?);
        self.plausible(key_count, 13, "metadata keys")?;
        self.plausible(tensor_count, 24, "tensors")?;

        let (mut metadata, mut keys) = (Vec::new(), HashMap::new());
        for i in 0..key_count {
            let key = self.string(&format!("metadata key {i}"))?;
            let value = self.value(&key)?;
            if keys.insert(key.clone(), metadata.len()).is_some() {
                return Err(format!("metadata key `{key}` appears twice, expected once; {DOWNLOAD}"));
            }
            metadata.push((key, value));
        }
        let alignment = match keys.get("general.alignment").map(|&i: &usize| &metadata[i].1) {
            None => 32,
            Some(&Value::U32(a)) if a.is_power_of_two() => a as usize,
            Some(other) => {
                let found = other.describe();
                return Err(format!(
                    "metadata key `general.alignment` is {found}, expected a power of two as u32; {DOWNLOAD}"
                ));
            }
        };

        let (mut tensors, mut names) = (Vec::new(), HashMap::new());
        for i in 0..tensor_count {
            let tensor = self.tensor(i, alignment)?;
            if names.insert(tensor.name.clone(), tensors.len()).is_some() {
                return Err(format!("tensor {} appears twice, expected once; {DOWNLOAD}", tensor.name));
            }
            tensors.push(tensor);
        }
        self.place(&mut tensors, alignment)?;
        Ok(Parsed { version, alignment, metadata, keys, tensors, names })
    }

    /// Reads a tensor's entry. Its `range` still counts from the start of the data.
    fn tensor(&mut self, index: u64, alignment: usize) -> Result<TensorInfo, String> {
        let name = self.string(&format!("the name of tensor {index}"))?;
        let dimensions = self.u32(&name)?;
        if dimensions > 4 {
            return Err(format!("tensor {name} has {dimensions} dimensions, expected at most 4; {DOWNLOAD}"));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(self.u64(&name)?);
        }
        let id = self.u32(&name)?;
        let Some(ty) = GgmlType::from_id(id) else {
            return Err(format!(
                "tensor {name} has the unknown type {id}, expected one of {}; use another quantization",
                GgmlType::names(&GgmlType::SUPPORTED)
            ));
        };
        let offset = self.u64(&name)?;
        if offset % alignment as u64 != 0 {
            return Err(format!(
                "tensor {name} starts at offset {offset}, expected a multiple of {alignment}; {DOWNLOAD}"
            ));
        }
        let columns = shape.first().copied().unwrap_or(1);
        if columns % ty.block_len() as u64 != 0 {
            return Err(format!(
                "tensor {name} has rows of {columns} values of type {}, expected a multiple of {}; {DOWNLOAD}",
                ty.name(),
                ty.block_len()
            ));
        }
        let end = shape
            .iter()
            .try_fold(1u64, |n, &size| n.checked_mul(size))
            .and_then(|values| (values / ty.block_len() as u64).checked_mul(ty.block_bytes() as u64))
            .and_then(|bytes| offset.checked_add(bytes));
        let Some(end) = end else {
            return Err(format!(
                "tensor {name} has shape {shape:?} at offset {offset}, more bytes than can be addressed; {DOWNLOAD}"
            ));
        };
        // `offset` and every size are at most `end`, or some size is 0 and `end` bounds only `offset`.
        let shape = shape.into_iter().map(usize::try_from).collect::<Result<_, _>>();
        let shape = shape.map_err(|_| format!("tensor {name} is too large for this machine"))?;
        Ok(TensorInfo { name, shape, ty, range: offset..end })
    }

    /// Makes every range count from the start of the file. The data begin at the next multiple of `alignment`.
    fn place(&self, tensors: &mut [TensorInfo], alignment: usize) -> Result<(), String> {
        let too_far = |name: &str| format!("tensor {name} ends beyond what can be addressed; {DOWNLOAD}");
        for t in tensors.iter_mut() {
            let start = (self.at as u64).checked_next_multiple_of(alignment as u64);
            let start = start.ok_or_else(|| too_far(&t.name))?;
            let end = start.checked_add(t.range.end).ok_or_else(|| too_far(&t.name))?;
            if end > self.length {
                return Err(format!(
                    "the file is cut short: it has {} bytes, tensor {} ends at {end}; {DOWNLOAD}",
                    self.length, t.name
                ));
            }
            t.range = start + t.range.start..end;
        }
        let mut order: Vec<&TensorInfo> = tensors.iter().collect();
        order.sort_by_key(|t| (t.range.start, t.range.end));
        for pair in order.windows(2) {
            if pair[0].range.end > pair[1].range.start {
                return Err(format!(
                    "tensors {} (bytes {:?}) and {} (bytes {:?}) overlap, expected each on its own; {DOWNLOAD}",
                    pair[0].name, pair[0].range, pair[1].name, pair[1].range
                ));
            }
        }
        Ok(())
    }

    fn value(&mut self, key: &str) -> Result<Value, String> {
        let id = self.u32(key)?;
        Ok(match id {
            0 => Value::U8(u8::from_le_bytes(self.take(key)?)),
            1 => Value::I8(i8::from_le_bytes(self.take(key)?)),
            2 => Value::U16(u16::from_le_bytes(self.take(key)?)),
            3 => Value::I16(i16::from_le_bytes(self.take(key)?)),
            4 => Value::U32(self.u32(key)?),
            5 => Value::I32(i32::from_le_bytes(self.take(key)?)),
            6 => Value::F32(f32::from_le_bytes(self.take(key)?)),
            7 => Value::Bool(self.bool(key)?),
            8 => Value::String(self.text(&format!("metadata key `{key}`"))?),
            9 => Value::Array(self.array(key)?),
            10 => Value::U64(self.u64(key)?),
            11 => Value::I64(i64::from_le_bytes(self.take(key)?)),
            12 => Value::F64(f64::from_le_bytes(self.take(key)?)),
            _ => {
                return Err(format!(
                    "metadata key `{key}` has the unknown type {id}, expected 0 to 12; {DOWNLOAD}"
                ));
            }
        })
    }

    fn array(&mut self, key: &str) -> Result<Array, String> {
        let id = self.u32(key)?;
        Ok(match id {
            0 => Array::U8(self.numbers(key, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(key, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(key, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(key, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(key, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(key, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(key, f32::from_le_bytes)?),
            7 => {
                let count = self.count(key, 1)?;
                Array::Bool((0..count).map(|_| self.bool(key)).collect::<Result<_, _>>()?)
            }
            8 => {
                let (count, mut strings) = (self.count(key, 8)?, Vec::new());
                for i in 0..count {
                    strings.push(self.text(&format!("element {i} of metadata key `{key}`"))?);
                }
                Array::String(strings)
            }
            10 => Array::U64(self.numbers(key, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(key, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(key, f64::from_le_bytes)?),
            9 => {
                return Err(format!(
                    "metadata key `{key}` is an array of arrays, expected one level; convert the model again"
                ));
            }
            _ => {
                return Err(format!("metadata key `{key}` is an array of the unknown type {id}; {DOWNLOAD}"));
            }
        })
    }

    fn numbers<const N: usize, T>(&mut self, key: &str, read: fn([u8; N]) -> T) -> Result<Vec<T>, String> {
        let count = self.count(key, N)?;
        (0..count).map(|_| self.take(key).map(read)).collect()
    }

    /// An array's length. Fails where the rest of the file cannot hold that many elements.
    fn count(&mut self, key: &str, element_bytes: usize) -> Result<u64, String> {
        let count = self.u64(key)?;
        self.plausible(count, element_bytes, &format!("elements in metadata key `{key}`"))?;
        Ok(count)
    }

    fn plausible(&self, count: u64, least_bytes: usize, of_what: &str) -> Result<(), String> {
        let room = self.length - self.at as u64;
        if count > room / least_bytes as u64 {
            return Err(format!("claims {count} {of_what}, but only {room} bytes follow; {DOWNLOAD}"));
        }
        Ok(())
    }

    /// A bool: any byte but 0 is true, as in llama.cpp and gguf-py.
    fn bool(&mut self, key: &str) -> Result<bool, String> {
        self.take(key).map(|[byte]: [u8; 1]| byte != 0)
    }

    /// A name, which is UTF-8.
    fn string(&mut self, what: &str) -> Result<String, String> {
        let bytes = self.bytes(what)?.to_vec();
        String::from_utf8(bytes).map_err(|_| format!("{what} is not UTF-8 text; {DOWNLOAD}"))
    }

    /// A text of any bytes, as in llama.cpp; those that are not UTF-8 become U+FFFD.
    fn text(&mut self, what: &str) -> Result<String, String> {
        self.bytes(what).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// Bytes behind their number.
    fn bytes(&mut self, what: &str) -> Result<&'a [u8], String> {
        let length = self.u64(what)?;
        self.plausible(length, 1, &format!("bytes in {what}"))?;
        let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        let all = self.bytes;
        let Some(bytes) = end.and_then(|end| all.get(self.at..end)) else {
            return Err(self.ends_inside(what));
        };
        self.at += bytes.len();
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, String> {
        self.take(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, String> {
        self.take(what).map(u64::from_le_bytes)
    }

    fn take<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let Some(bytes) = self.bytes[self.at..].first_chunk::<N>() else {
            return Err(self.ends_inside(what));
        };
        self.at += N;
        Ok(*bytes)
    }

    fn ends_inside(&mut self, what: &str) -> String {
        self.continues = (self.bytes.len() as u64) < self.length;
        let (at, length) = (self.at, self.length);
        format!("the file is cut short: it ends at byte {length}, inside {what} at byte {at}; {DOWNLOAD}")
    }
}
