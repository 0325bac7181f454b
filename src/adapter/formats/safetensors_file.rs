//! Safetensors files: checked when read, and written deterministically.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::assemble::{Place, Tensor};
use crate::adapter::Error;
use crate::files;

/// Maximum size of a header in bytes. The crate has the same limit.
const MAX_HEADER: u64 = 100_000_000;

/// Opens a file. Unlike the crate, which takes the last one, it rejects duplicate names.
pub(super) fn open(bytes: &[u8]) -> Result<SafeTensors<'_>, String> {
    if bytes.starts_with(b"version https://git-lfs") {
        return Err("is a Git LFS pointer, expected the tensors; run `git lfs pull`".into());
    }
    let file = SafeTensors::deserialize(bytes)
        .map_err(|e| format!("not a complete safetensors file: {e}; copy or export the adapter again"))?;
    let header = header(bytes).expect("the crate has parsed the header");
    let _: UniqueNames = serde_json::from_slice(header)
        .map_err(|e| format!("the header is ambiguous: {e}; export the adapter again"))?;
    Ok(file)
}

/// The contents of `__metadata__`; empty if there are none.
pub(super) fn metadata(bytes: &[u8]) -> HashMap<String, String> {
    #[derive(Deserialize, Default)]
    struct Header {
        #[serde(default)]
        __metadata__: HashMap<String, String>,
    }
    let parsed = header(bytes).and_then(|header| serde_json::from_slice::<Header>(header).ok());
    parsed.unwrap_or_default().__metadata__
}

/// The contents of `__metadata__` of the file at `path`, of which only the header is read. Empty if the file is damaged.
pub(in crate::adapter) fn read_metadata(path: &Path) -> Result<HashMap<String, String>, Error> {
    read_start(path).map(|bytes| metadata(&bytes))
}

/// The names of the tensors in the file at `path`, of which only the header is read. Empty if the file is damaged.
pub(in crate::adapter) fn read_names(path: &Path) -> Result<Vec<String>, Error> {
    let bytes = read_start(path)?;
    let parsed = header(&bytes).and_then(|header| serde_json::from_slice::<Map<String, Value>>(header).ok());
    Ok(parsed.unwrap_or_default().into_iter().map(|(name, _)| name).collect())
}

/// The header of the file at `path`, with its length in front.
fn read_start(path: &Path) -> Result<Vec<u8>, Error> {
    let read = |path: &Path| -> io::Result<Vec<u8>> {
        let length =
            files::read_start(path, 8)?.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
        files::read_start(path, 8 + length.min(MAX_HEADER))
    };
    read(path).map_err(|e| Error::Read {
        path: path.into(),
        problem: format!("{e}; check the path and its permissions"),
    })
}

/// The header: the JSON text after the eight bytes with its length. `None` if the file is too short.
fn header(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

/// An object with unique names and any values.
struct UniqueNames;

impl<'de> Deserialize<'de> for UniqueNames {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = UniqueNames;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<UniqueNames, M::Error> {
                let mut names = HashSet::new();
                while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    if names.contains(&name) {
                        return Err(M::Error::custom(format!("tensor {name} appears twice, expected once")));
                    }
                    names.insert(name);
                }
                Ok(UniqueNames)
            }
        }
        deserializer.deserialize_map(Names)
    }
}

/// Lists all tensors, sorted by name. `place` parses a name.
pub(super) fn list<'a>(
    views: &'a [(String, TensorView<'a>)],
    place: impl Fn(&str) -> Option<Place>,
) -> Vec<Tensor<'a>> {
    let tensor = |(name, view): &'a (String, TensorView<'a>)| Tensor {
        name,
        place: place(name),
        shape: view.shape(),
        ty: view.dtype().to_string(),
        data: view.data(),
    };
    let mut tensors: Vec<Tensor> = views.iter().map(tensor).collect();
    tensors.sort_by_key(|t| t.name);
    tensors
}

/// A matrix to write.
pub(super) struct Matrix<'a> {
    pub name: String,
    /// Rows and columns; for experts, preceded by their number.
    pub shape: Vec<usize>,
    pub values: Cow<'a, [f32]>,
}

/// Serializes F32 matrices.
pub(super) fn serialize(matrices: &[Matrix], metadata: HashMap<String, String>) -> Result<Vec<u8>, String> {
    let views = matrices.iter().map(|Matrix { name, shape, values }| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values));
        (name, view.expect("a pair has the lengths of its slot and rank"))
    });
    to_bytes(views, metadata)
}

/// Serializes `views` deterministically. The crate alone would write `metadata` in the random order of its map.
pub(super) fn to_bytes<'a>(
    views: impl IntoIterator<Item = (impl AsRef<str> + Ord + fmt::Display, TensorView<'a>)>,
    metadata: HashMap<String, String>,
) -> Result<Vec<u8>, String> {
    let bytes = safetensors::serialize(views, (!metadata.is_empty()).then_some(metadata)).map_err(|_| {
        "it has too many matrices for one safetensors file; choose fewer target modules".to_string()
    })?;
    let old = header(&bytes).expect("the crate has just written it");
    let mut entries: Map<String, Value> = serde_json::from_slice(old).expect("the crate has just written it");
    if let Some(Value::Object(metadata)) = entries.get_mut("__metadata__") {
        metadata.sort_keys();
    }
    let mut new = serde_json::to_vec(&entries).expect("an object with text keys is JSON");
    new.resize(new.len().next_multiple_of(8), b' ');
    Ok([&(new.len() as u64).to_le_bytes(), &new[..], &bytes[8 + old.len()..]].concat())
}

/// Reads a whole file.
pub(in crate::adapter) fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    files::read(path).map_err(|source| Error::Read {
        path: path.into(),
        problem: format!("{source}; check the path and its permissions"),
    })
}
