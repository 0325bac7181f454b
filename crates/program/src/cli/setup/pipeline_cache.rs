//! Compiled pipelines, cached between runs if the backend supports it: one file per GPU in the user's cache folder.
//!
//! No problem with a file stops a run: a file that cannot be used is reported and rebuilt.

use std::io::ErrorKind;
use std::path::PathBuf;

use rullama_train::files;
use rullama_train::gpu::{Gpu, PipelinesKey};

use super::pipelines_file::{decode, encode};

/// The cache file of one device.
pub struct PipelineCache {
    /// `None` if the backend has no pipeline cache or the file cannot be written.
    file: Option<(PathBuf, PipelinesKey)>,
    /// Bytes of the driver's data in the file.
    saved_bytes: usize,
    /// Number of kernels that this process had compiled at the last save.
    compiled: usize,
}

impl PipelineCache {
    /// Loads the cached pipelines into the device. Must be called before the first kernel is compiled.
    pub fn open(gpu: &Gpu) -> PipelineCache {
        PipelineCache::open_in(gpu, dirs::cache_dir().map(|dir| dir.join("rullama-train").join("pipelines")))
    }

    fn open_in(gpu: &Gpu, folder: Option<PathBuf>) -> PipelineCache {
        let (Some(folder), Some(key)) = (folder, gpu.pipelines_key()) else {
            return PipelineCache { file: None, saved_bytes: 0, compiled: 0 };
        };
        let path = folder.join(format!("{}.pipelines", key.device));
        let found = match files::read(&path) {
            Ok(bytes) => decode(&bytes, &key).map(<[u8]>::to_vec),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Ok(Vec::new())
            }
            Err(error) => Err(format!("cannot be read ({error})")),
        };
        let earlier = found.unwrap_or_else(|problem| {
            eprintln!("note: {} {problem}; the kernels are compiled again", path.display());
            Vec::new()
        });
        // SAFETY: the digest proves that the data is what the driver returned earlier.
        unsafe { gpu.keep_pipelines((!earlier.is_empty()).then_some(&earlier)) };
        PipelineCache { file: Some((path, key)), saved_bytes: earlier.len(), compiled: gpu.compiled() }
    }

    /// Saves the pipelines for later runs. Does nothing if no kernel was compiled since the last save.
    pub fn save(&mut self, gpu: &Gpu) {
        let compiled = gpu.compiled();
        if compiled == self.compiled {
            return;
        }
        self.compiled = compiled;
        let (Some((path, key)), Some(data)) = (&self.file, gpu.pipelines()) else { return };
        // A driver's data only grows: equal size means equal content.
        if data.len() <= self.saved_bytes {
            return;
        }
        self.saved_bytes = data.len();
        if let Err(error) = files::write_atomic(path, &encode(&data, key)) {
            eprintln!("note: compiled kernels cannot be cached: {error}");
            self.file = None;
        }
    }
}
