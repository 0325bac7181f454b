//! [`Gguf`]: an opened GGUF file, its metadata by key and its tensors by name. Tensor data stays where it is.

use super::parse::{Parsed, parse};
use super::value::{FromValue, Value};
use super::{Error, GgmlType};
use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::path::Path;

/// Where the file's bytes live.
enum Bytes {
    Mapped(memmap2::Mmap),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Static(bytes) => bytes,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// One tensor's entry.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Name as in the file, with `.weight`.
    pub name: String,
    /// Sizes in GGUF's `ne` order: the first is the contiguous one (columns, the input width).
    pub shape: Vec<usize>,
    /// Element or block format.
    pub ty: GgmlType,
    /// Bytes of the data, counted from the start of the file.
    pub range: Range<usize>,
}

/// An opened GGUF file.
pub struct Gguf {
    file: String,
    bytes: Bytes,
    version: u32,
    alignment: usize,
    metadata: Vec<(String, Value)>,
    keys: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    names: HashMap<String, usize>,
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (keys, tensors) = (self.metadata.len(), self.tensors.len());
        write!(f, "Gguf({}: {keys} keys, {tensors} tensors, {} bytes)", self.file, self.bytes.len())
    }
}

impl Gguf {
    /// Maps the file at `path`. The file must not be changed while it is open.
    pub fn open(path: &Path) -> Result<Gguf, Error> {
        let name = path.display().to_string();
        let io = |source| Error::Io { file: name.clone(), source };
        let file = std::fs::File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.is_dir() {
            return Err(Error::Damaged {
                file: name,
                problem: "is a folder, expected a GGUF file; name the .gguf file inside it".into(),
            });
        }
        // SAFETY: the map is read-only and private to this value; that nobody truncates the file meanwhile is
        // what every user of a mapped model file relies on, and is stated above.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Gguf::parse(Bytes::Mapped(map), name)
    }

    /// Reads a file that is part of the program; `name` stands for it in messages.
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<Gguf, Error> {
        Gguf::parse(Bytes::Static(bytes), name.into())
    }

    /// Reads a file that is in memory; `name` stands for it in messages.
    pub fn from_bytes(bytes: Vec<u8>, name: &str) -> Result<Gguf, Error> {
        Gguf::parse(Bytes::Owned(bytes), name.into())
    }

    fn parse(bytes: Bytes, file: String) -> Result<Gguf, Error> {
        let Parsed { version, alignment, metadata, keys, tensors, names } =
            parse(&bytes).map_err(|problem| Error::Damaged { file: file.clone(), problem })?;
        Ok(Gguf { file, bytes, version, alignment, metadata, keys, tensors, names })
    }

    /// Tells the system that these bytes of the file will not be read again soon, so that a pass over a large one keeps little
    /// of it in memory. They stay readable; reading fetches them again.
    pub fn release(&self, bytes: Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = &self.bytes {
            let Range { start, end } = bytes;
            // SAFETY: the map is read-only and backed by its file: dropped pages come back with the same bytes.
            // A failure means only that the pages stay.
            let _ =
                unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
        }
        #[cfg(not(unix))]
        let _ = bytes;
    }

    /// The file's name, as error messages give it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// GGUF version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of tensor data in bytes (`general.alignment`, 32 where absent).
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// All metadata, in the file's order.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// The value of `key` in its own type.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).map(|&i| &self.metadata[i].1)
    }

    /// The value of `key`, `None` where the file has no such key; an error where it has another type.
    ///
    /// Integers of any width are accepted where an integer is asked for.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        T::from_value(value).map(Some).ok_or_else(|| self.wrong_value(key, T::EXPECTED))
    }

    /// The value of `key`; an error where the file has no such key or it has another type.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, Error> {
        self.get(key)?.ok_or_else(|| Error::Metadata {
            file: self.file.clone(),
            problem: format!(
                "metadata key `{key}` is missing, expected {}; use another conversion of the model",
                T::EXPECTED
            ),
        })
    }

    /// The value of `key` as `count` numbers: an array of that length, or one number for all.
    pub fn scalar_or_array(&self, key: &str, count: usize) -> Result<Vec<u32>, Error> {
        match self.value(key) {
            Some(Value::Array(a)) if a.len() != count => {
                Err(self.wrong_value(key, &format!("one integer or an array of {count}")))
            }
            Some(Value::Array(_)) => self.require(key),
            _ => Ok(vec![self.require(key)?; count]),
        }
    }

    /// The error for a key whose value is not what it should be.
    pub fn wrong_value(&self, key: &str, expected: &str) -> Error {
        let found = self.value(key).map_or("nothing".into(), Value::describe);
        Error::Metadata {
            file: self.file.clone(),
            problem: format!(
                "metadata key `{key}` is {found}, expected {expected}; use another conversion of the model"
            ),
        }
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor with this full name (`blk.0.attn_q.weight`).
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.names.get(name).map(|&i| &self.tensors[i])
    }

    /// The bytes of a tensor of this file.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        &self.bytes[tensor.range.clone()]
    }

    /// The whole file, which [`TensorInfo::range`] indexes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
