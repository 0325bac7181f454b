//! safetensors files with their dangers checked, and written in one way.

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

use super::Error;
use super::pairs::{Place, Tensor};
use crate::files;

/// More bytes of header than this are no adapter's; the crate's own limit is the same.
const MOST_HEADER: u64 = 100_000_000;

/// Opens the file that is `bytes`; a name that appears twice is refused, though the crate would take the last.
pub(super) fn open(bytes: &[u8]) -> Result<SafeTensors<'_>, String> {
    if bytes.starts_with(b"version https://git-lfs") {
        return Err("is a pointer of Git LFS, expected the tensors; run `git lfs pull`".into());
    }
    let file = SafeTensors::deserialize(bytes)
        .map_err(|e| format!("not a whole safetensors file: {e}; copy or export the adapter again"))?;
    let header = header(bytes).expect("the crate has read it");
    let _: UniqueNames = serde_json::from_slice(header)
        .map_err(|e| format!("the header is damaged: {e}; copy or export the adapter again"))?;
    Ok(file)
}

/// The text of `__metadata__`, empty where there is none.
pub(super) fn metadata(bytes: &[u8]) -> HashMap<String, String> {
    #[derive(Deserialize, Default)]
    struct Header {
        #[serde(default)]
        __metadata__: HashMap<String, String>,
    }
    let parsed = header(bytes).and_then(|header| serde_json::from_slice::<Header>(header).ok());
    parsed.unwrap_or_default().__metadata__
}

/// The same of the file at `path`, of which no more than the header is read; empty where it is damaged.
pub(super) fn read_metadata(path: &Path) -> Result<HashMap<String, String>, Error> {
    let read = |path: &Path| -> io::Result<Vec<u8>> {
        let length =
            files::read_start(path, 8)?.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
        files::read_start(path, 8 + length.min(MOST_HEADER))
    };
    match read(path) {
        Ok(bytes) => Ok(metadata(&bytes)),
        Err(e) => Err(Error::Read {
            path: path.into(),
            problem: format!("{e}; check the path and its permissions"),
        }),
    }
}

/// The JSON text behind the eight bytes that give its length; `None` where it is not there.
fn header(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

/// An object of any values whose names are all different.
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

/// Name, shape and type of every tensor of `file`, by name; `place` reads a name.
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

/// A matrix to be written.
pub(super) struct Matrix<'a> {
    pub name: String,
    /// Rows and columns, of experts behind their number.
    pub shape: Vec<usize>,
    pub values: Cow<'a, [f32]>,
}

/// A file of F32 matrices.
pub(super) fn serialize(matrices: &[Matrix], metadata: HashMap<String, String>) -> Result<Vec<u8>, String> {
    let views = matrices.iter().map(|Matrix { name, shape, values }| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values));
        (name, view.expect("a pair has the lengths that its slot and rank say"))
    });
    to_bytes(views, metadata)
}

/// A file of `views`, always the same bytes: the crate would write `metadata` in the random order of its map.
pub(super) fn to_bytes<'a>(
    views: impl IntoIterator<Item = (impl AsRef<str> + Ord + fmt::Display, TensorView<'a>)>,
    metadata: HashMap<String, String>,
) -> Result<Vec<u8>, String> {
    let bytes = safetensors::serialize(views, (!metadata.is_empty()).then_some(metadata)).map_err(|_| {
        "it has too many matrices for one safetensors file; choose fewer target modules".to_string()
    })?;
    let old = header(&bytes).expect("just written");
    let mut entries: Map<String, Value> = serde_json::from_slice(old).expect("just written");
    if let Some(Value::Object(metadata)) = entries.get_mut("__metadata__") {
        metadata.sort_keys();
    }
    let mut new = serde_json::to_vec(&entries).expect("an object with text keys is JSON");
    new.resize(new.len().next_multiple_of(8), b' ');
    Ok([&(new.len() as u64).to_le_bytes(), &new[..], &bytes[8 + old.len()..]].concat())
}
