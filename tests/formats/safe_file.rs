//! Safetensors files to inspect and to damage.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// Type, shape and bytes of a tensor.
pub type SafeTensor = (Dtype, Vec<usize>, Vec<u8>);

/// A safetensors file that can be changed.
#[derive(Clone)]
pub struct SafeFile {
    pub metadata: HashMap<String, String>,
    pub tensors: BTreeMap<String, SafeTensor>,
}

impl SafeFile {
    pub fn read(path: &Path) -> SafeFile {
        let bytes = fs::read(path).expect("there");
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("sound");
        let file = SafeTensors::deserialize(&bytes).expect("sound");
        let tensor =
            |(name, t): (String, TensorView)| (name, (t.dtype(), t.shape().to_vec(), t.data().to_vec()));
        SafeFile {
            metadata: header.metadata().clone().unwrap_or_default(),
            tensors: file.tensors().into_iter().map(tensor).collect(),
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, (ty, shape, data))| {
            (name, TensorView::new(*ty, shape.clone(), data).expect("the test keeps sizes right"))
        });
        let metadata = (!self.metadata.is_empty()).then(|| self.metadata.clone());
        safetensors::serialize(views, metadata).expect("sound")
    }
}
