//! Compiled pipelines, kept between runs where the backend gives them out: a file a GPU in the user's cache folder.
//!
//! The file is `MAGIC`, the digest of what the pipelines are for (driver, shaders), the SHA-256 of the rest, and what the
//! driver gave. Nothing about it stops a run: what cannot be used is said and made anew.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rullama_train::files;
use rullama_train::gpu::{Gpu, PipelinesKey};
use sha2::{Digest, Sha256};

const MAGIC: &[u8; 8] = b"RLPIPES1";

/// Where a device's pipelines are kept.
pub struct Pipelines {
    place: Option<(PathBuf, PipelinesKey)>,
    /// Bytes of what the file holds.
    known: usize,
    /// Kernels of this run at the last look.
    compiled: usize,
}

impl Pipelines {
    /// Gives the device what an earlier run kept for it. Before the first kernel.
    pub fn open(gpu: &Gpu) -> Pipelines {
        Pipelines::open_in(gpu, dirs::cache_dir().map(|dir| dir.join("rullama-train").join("pipelines")))
    }

    fn open_in(gpu: &Gpu, folder: Option<PathBuf>) -> Pipelines {
        let (Some(folder), Some(key)) = (folder, gpu.pipelines_key()) else {
            return Pipelines { place: None, known: 0, compiled: 0 };
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
            note(&path, &format!("{problem}; the kernels are compiled anew"));
            Vec::new()
        });
        // SAFETY: their digest says that they are as they were written.
        unsafe { gpu.keep_pipelines((!earlier.is_empty()).then_some(&earlier)) };
        Pipelines { place: Some((path, key)), known: earlier.len(), compiled: gpu.compiled() }
    }

    /// Keeps what was compiled since, for the next run. Costs nothing where that is no kernel.
    pub fn keep(&mut self, gpu: &Gpu) {
        let compiled = gpu.compiled();
        if compiled == self.compiled {
            return;
        }
        self.compiled = compiled;
        let (Some((path, key)), Some(data)) = (&self.place, gpu.pipelines()) else { return };
        // What a driver keeps only grows.
        if data.len() <= self.known {
            return;
        }
        self.known = data.len();
        if let Err(error) = files::write_atomic(path, &encode(&data, key)) {
            eprintln!("note: compiled kernels are not kept: {error}");
            self.place = None;
        }
    }
}

fn note(path: &Path, text: &str) {
    eprintln!("note: {} {text}", path.display());
}

fn encode(data: &[u8], key: &PipelinesKey) -> Vec<u8> {
    [&MAGIC[..], &key.digest, &Sha256::digest(data), data].concat()
}

/// What the driver gave, or what is wrong with the file.
fn decode<'a>(bytes: &'a [u8], key: &PipelinesKey) -> Result<&'a [u8], String> {
    let parts = bytes.strip_prefix(MAGIC).and_then(|rest| {
        let (digest, rest) = rest.split_at_checked(32)?;
        let (sum, data) = rest.split_at_checked(32)?;
        (Sha256::digest(data)[..] == *sum).then_some((digest, data))
    });
    match parts {
        None => Err("is damaged".into()),
        Some((digest, _)) if digest != key.digest => {
            Err("is of another driver, or of another version of this program".into())
        }
        Some((_, data)) => Ok(data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_files_of_the_same_driver_and_shaders_are_taken() {
        let key = PipelinesKey { device: "a GPU".into(), digest: [7; 32] };
        let file = encode(b"what the driver gave", &key);
        assert_eq!(decode(&file, &key), Ok(&b"what the driver gave"[..]));
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
