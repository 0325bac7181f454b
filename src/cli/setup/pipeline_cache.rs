//! Compiled pipelines, cached between runs if the backend supports it: one file per GPU in the user's cache folder.
//!
//! A file consists of `MAGIC`, the digest of driver and shaders, the SHA-256 of the data, and the driver's data. No problem
//! with a file stops a run: a file that cannot be used is reported and rebuilt.

use std::io::ErrorKind;
use std::path::PathBuf;

use rullama_train::files;
use rullama_train::gpu::{Gpu, PipelinesKey};
use sha2::{Digest, Sha256};

const MAGIC: &[u8; 8] = b"RLPIPES1";

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

fn encode(data: &[u8], key: &PipelinesKey) -> Vec<u8> {
    [&MAGIC[..], &key.digest, &Sha256::digest(data), data].concat()
}

/// The driver's data in a file, or what is wrong with the file.
fn decode<'a>(bytes: &'a [u8], key: &PipelinesKey) -> Result<&'a [u8], String> {
    let parts = bytes.strip_prefix(MAGIC).and_then(|rest| {
        let (digest, rest) = rest.split_at_checked(32)?;
        let (sum, data) = rest.split_at_checked(32)?;
        (Sha256::digest(data)[..] == *sum).then_some((digest, data))
    });
    match parts {
        None => Err("is damaged".into()),
        Some((digest, _)) if digest != key.digest => {
            Err("was written by another driver or another version of this program".into())
        }
        Some((_, data)) => Ok(data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_intact_files_of_the_same_driver_and_shaders_are_used() {
        let key = PipelinesKey { device: "a GPU".into(), digest: [7; 32] };
        let file = encode(b"data of the driver", &key);
        assert_eq!(decode(&file, &key), Ok(&b"data of the driver"[..]));
        for at in [0, 45, file.len() - 1] {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged, &key), Err("is damaged".into()), "byte {at}");
        }
        for end in [0, 8, 40, 71, file.len() - 1] {
            assert!(decode(&file[..end], &key).is_err(), "cut after {end} bytes");
        }
        let other = PipelinesKey { digest: [8; 32], ..key };
        assert!(decode(&file, &other).is_err_and(|problem| problem.contains("another driver")));
    }
}
