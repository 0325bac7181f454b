//! [`Gguf`]: an opened GGUF file, its metadata by key and its tensors by name. Tensor data stays where it is.

use super::parse::{Parsed, parse};
use super::source::Source;
use super::value::{FromValue, TensorInfo, Value};
use crate::base::Error;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

/// Source of the file's bytes.
enum Bytes {
    #[cfg(feature = "native")]
    Mapped(memmap2::Mmap),
    #[cfg(all(unix, feature = "native"))]
    Parts(super::parts::Region),
    Static(&'static [u8]),
    Owned(Vec<u8>),
    /// In a [`Source`]. The vectors are in memory, each under the position of its first byte.
    Streamed(Box<dyn Source>, BTreeMap<u64, Vec<u8>>),
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
        write!(f, "Gguf({}: {keys} keys, {tensors} tensors, {} bytes)", self.file, self.file_size())
    }
}

impl Gguf {
    /// Maps the file at `path`, and the other parts beside it where it is one of several. The files must not be changed while they are
    /// open.
    #[cfg(feature = "native")]
    pub fn open(path: &Path) -> Result<Gguf, Error> {
        let name = path.display().to_string();
        let io = |source| Error::Io { file: name.clone(), source };
        // Windows opens no folder.
        if path.is_dir() {
            return Err(Error::Damaged {
                file: name,
                problem: "is a folder, expected a GGUF file; name the .gguf file inside it".into(),
            });
        }
        let file = std::fs::File::open(path).map_err(io)?;
        // SAFETY: the map is read-only and private to this value; that nobody truncates the file meanwhile is
        // what every user of a mapped model file relies on, and is stated above.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        let gguf = Gguf::parse(Bytes::Mapped(map), name)?;
        gguf.with_parts(path)
    }

    /// The whole model, if this is one of its parts. A file of another name than a part's stays as it is.
    #[cfg(all(unix, feature = "native"))]
    fn with_parts(self, path: &Path) -> Result<Gguf, Error> {
        use super::parts::{Problem, beside, missing, open};
        let count = self.get::<u32>("split.count").ok().flatten().unwrap_or(1);
        let Some(paths) = (count > 1).then(|| beside(path, count)).flatten() else { return Ok(self) };
        if let Some(problem) = missing(&paths) {
            return Err(Error::Damaged { file: self.file, problem });
        }
        // The first part has the metadata.
        if paths[0] != path {
            return Gguf::open(&paths[0]);
        }
        let Gguf { file, version, alignment, metadata, keys, tensors, names, .. } = self;
        let first = Parsed { version, alignment, metadata, keys, tensors, names };
        match open(&paths, first) {
            Ok((region, parsed)) => Ok(Gguf::of(parsed, Bytes::Parts(region), file)),
            Err(Problem::Io(path, source)) => Err(Error::Io { file: path.display().to_string(), source }),
            Err(Problem::Damaged(path, problem)) => {
                Err(Error::Damaged { file: path.display().to_string(), problem })
            }
        }
    }

    /// Parts are read on Unix alone.
    #[cfg(not(all(unix, feature = "native")))]
    #[cfg(feature = "native")]
    fn with_parts(self, _: &Path) -> Result<Gguf, Error> {
        Ok(self)
    }

    /// Reads the file at `path` of the tree in memory.
    #[cfg(not(feature = "native"))]
    pub fn open(path: &Path) -> Result<Gguf, Error> {
        let name = path.display().to_string();
        match crate::files::read(path) {
            Ok(bytes) => Gguf::from_bytes(bytes, &name),
            Err(source) => Err(Error::Io { file: name, source }),
        }
    }

    /// Reads a file that is part of the program. Messages call it `name`.
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<Gguf, Error> {
        Gguf::parse(Bytes::Static(bytes), name.into())
    }

    /// Reads a file in memory. Messages call it `name`.
    pub fn from_bytes(bytes: Vec<u8>, name: &str) -> Result<Gguf, Error> {
        Gguf::parse(Bytes::Owned(bytes), name.into())
    }

    /// Opens a file without loading it: reads the header and the vectors now, and matrices in [`Gguf::read`].
    pub async fn stream(source: Box<dyn Source>, name: &str) -> Result<Gguf, Error> {
        let io = |error| Error::Io { file: name.into(), source: error };
        let length = source.bytes();
        let mut start = Vec::new();
        let parsed = loop {
            let known = start.len() as u64;
            let more = length.min(known + known.max(FIRST_BYTES));
            let next = source.read(std::slice::from_ref(&(known..more))).await.map_err(io)?;
            start.extend(next.concat());
            if let Some(parsed) = parse(&start, length) {
                break parsed;
            }
        };
        let parsed = parsed.map_err(|problem| Error::Damaged { file: name.into(), problem })?;
        // Biases of experts are one vector per expert, a convolution's taps some per channel.
        let is_vector = |t: &&TensorInfo| {
            t.shape.iter().skip(1).all(|&size| size == 1)
                || [".bias", ".ssm_conv1d.weight", ".shortconv.conv.weight"]
                    .iter()
                    .any(|end| t.name.ends_with(end))
        };
        let vectors = parsed.tensors.iter().filter(is_vector);
        let ranges: Vec<Range<u64>> = vectors.map(|t| t.range.clone()).collect();
        let read = source.read(&ranges).await.map_err(io)?;
        let vectors = ranges.iter().map(|range| range.start).zip(read).collect();
        Ok(Gguf::of(parsed, Bytes::Streamed(source, vectors), name.into()))
    }

    fn parse(bytes: Bytes, file: String) -> Result<Gguf, Error> {
        let whole = in_memory(&bytes).expect("the whole file is in memory");
        let parsed = parse(whole, whole.len() as u64).expect("the header ends within the whole file");
        let parsed = parsed.map_err(|problem| Error::Damaged { file: file.clone(), problem })?;
        Ok(Gguf::of(parsed, bytes, file))
    }

    fn of(parsed: Parsed, bytes: Bytes, file: String) -> Gguf {
        let Parsed { version, alignment, metadata, keys, tensors, names } = parsed;
        Gguf { file, bytes, version, alignment, metadata, keys, tensors, names }
    }

    /// Lets the system drop the pages of these bytes, so that one pass over a large file keeps little of it in memory.
    /// The bytes stay readable; the system reads them from disk again.
    pub fn release(&self, bytes: Range<u64>) {
        #[cfg(all(unix, feature = "native"))]
        match &self.bytes {
            Bytes::Mapped(map) => {
                let (start, end) = (bytes.start as usize, bytes.end as usize);
                // SAFETY: the map is read-only and backed by its file: dropped pages come back with the same bytes.
                // A failure means only that the pages stay.
                let _ = unsafe {
                    map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
                };
            }
            Bytes::Parts(region) => region.release(bytes.start as usize..bytes.end as usize),
            _ => {}
        }
        #[cfg(not(all(unix, feature = "native")))]
        let _ = bytes;
    }

    /// Name of the file in error messages.
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
    /// An integer of any width can be read as any integer type that holds it.
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

    /// The value of `key` as `count` numbers: an array of that length, or one number that is repeated.
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
    ///
    /// # Panics
    /// If the file is not in memory ([`Gguf::stream`]) and the tensor is not a vector.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        self.slice(tensor.range.clone())
    }

    /// Size of the file in bytes.
    pub fn file_size(&self) -> u64 {
        match (&self.bytes, in_memory(&self.bytes)) {
            (Bytes::Streamed(source, _), _) => source.bytes(),
            (_, whole) => whole.map_or(0, |whole| whole.len() as u64),
        }
    }

    /// Whether the whole file is in memory, or mapped there.
    pub fn is_in_memory(&self) -> bool {
        in_memory(&self.bytes).is_some()
    }

    /// The whole file, which [`TensorInfo::range`] indexes.
    ///
    /// # Panics
    /// If the file is not in memory ([`Gguf::stream`]).
    pub fn bytes(&self) -> &[u8] {
        in_memory(&self.bytes).expect("the file is in memory")
    }

    /// Bytes that are in memory: anything, or a vector of a file that is elsewhere.
    pub(in crate::base) fn slice(&self, range: Range<u64>) -> &[u8] {
        match &self.bytes {
            Bytes::Streamed(_, vectors) => match vectors.get(&range.start) {
                Some(vector) if vector.len() as u64 == range.end - range.start => vector,
                _ => panic!("bytes {range:?} of {} are read by `Gguf::read` only", self.file),
            },
            _ => &self.bytes()[range.start as usize..range.end as usize],
        }
    }

    /// Any bytes of the file, range by range.
    pub async fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Cow<'_, [u8]>>, Error> {
        match &self.bytes {
            Bytes::Streamed(source, _) => {
                let read = source.read(ranges).await;
                let read = read.map_err(|source| Error::Io { file: self.file.clone(), source })?;
                Ok(read.into_iter().map(Cow::Owned).collect())
            }
            _ => Ok(ranges.iter().map(|range| Cow::Borrowed(self.slice(range.clone()))).collect()),
        }
    }
}

/// Bytes that are read first: enough for the header of a small model. A vocabulary of 262 144 tokens makes a header of 16 MiB.
const FIRST_BYTES: u64 = 1 << 20;

/// The whole file; `None` for a [`Source`].
fn in_memory(bytes: &Bytes) -> Option<&[u8]> {
    match bytes {
        #[cfg(feature = "native")]
        Bytes::Mapped(map) => Some(map),
        #[cfg(all(unix, feature = "native"))]
        Bytes::Parts(region) => Some(region.bytes()),
        Bytes::Static(bytes) => Some(bytes),
        Bytes::Owned(bytes) => Some(bytes),
        Bytes::Streamed(..) => None,
    }
}
