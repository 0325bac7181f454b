//! Memory for gradients: of one process, or shared by the processes of a host.

use std::ops::Range;

#[cfg(feature = "native")]
use super::link::{Link, LinkError};

/// Values that the processes of a host read and write.
pub struct Window {
    start: *mut f32,
    len: usize,
    _memory: Memory,
}

enum Memory {
    Own {
        _values: Vec<f32>,
    },
    #[cfg(feature = "native")]
    Shared {
        _map: memmap2::MmapMut,
    },
}

impl Window {
    /// Memory of this process alone.
    pub fn own(len: usize) -> Window {
        let mut values = vec![0.0; len];
        Window { start: values.as_mut_ptr(), len, _memory: Memory::Own { _values: values } }
    }

    /// Memory that all members of `host` share, each of which must pass the same length; `None` for all of them if the host has no
    /// room for it, or they do not see the same files.
    #[cfg(feature = "native")]
    pub fn shared(host: &dyn Link, len: usize) -> Result<Option<Window>, LinkError> {
        let mut name = [0; NAME];
        let created = if host.rank() == 0 { create(4 * len as u64).ok() } else { None };
        if let Some((path, _)) = &created {
            let path = path.as_os_str().as_encoded_bytes();
            if path.len() <= NAME {
                name[..path.len()].copy_from_slice(path);
            }
        }
        host.broadcast(&mut name)?;
        let map = match created {
            Some((_, file)) => map(&file),
            None => open(&name).and_then(|file| map(&file)),
        };
        let fits = map.as_ref().is_some_and(|map| map.len() == 4 * len);
        let mut all = vec![0; host.size()];
        host.all_gather(&[u8::from(fits)], &mut all)?;
        if host.rank() == 0 {
            // The memory lasts as long as someone maps it, also if all are killed.
            let _ = path(&name).map(std::fs::remove_file);
        }
        let (Some(mut map), false) = (map, all.contains(&0)) else { return Ok(None) };
        let start = map.as_mut_ptr().cast();
        Ok(Some(Window { start, len, _memory: Memory::Shared { _map: map } }))
    }

    /// Values that last as long as the window, aligned as a vector's or a page's start is. Other ranks may use them too: between two
    /// barriers, each value has one writer or any number of readers.
    pub fn values(&self, range: Range<usize>) -> *mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "within the window");
        std::ptr::slice_from_raw_parts_mut(self.start.wrapping_add(range.start), range.len())
    }
}

/// Longest path of the file that is mapped.
#[cfg(feature = "native")]
const NAME: usize = 512;

/// A file in memory of `bytes`, which are reserved: without room this fails, rather than the first write to it.
#[cfg(feature = "native")]
fn create(bytes: u64) -> std::io::Result<(std::path::PathBuf, std::fs::File)> {
    let memory = std::path::Path::new("/dev/shm");
    let folders = [memory.to_path_buf(), std::env::temp_dir()];
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let new = tempfile::Builder::new().prefix("rullama-train-").tempfile_in(folder);
        let reserved = new.and_then(|file| {
            fs4::FileExt::allocate(file.as_file(), bytes)?;
            file.as_file().set_len(bytes)?;
            Ok(file)
        });
        match reserved {
            Ok(file) => {
                let (file, path) = file.keep().map_err(|e| e.error)?;
                return Ok((path, file));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(feature = "native")]
fn path(name: &[u8]) -> Option<&std::path::Path> {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    std::str::from_utf8(&name[..end]).ok().filter(|name| !name.is_empty()).map(std::path::Path::new)
}

#[cfg(feature = "native")]
fn open(name: &[u8]) -> Option<std::fs::File> {
    std::fs::File::options().read(true).write(true).open(path(name)?).ok()
}

#[cfg(feature = "native")]
fn map(file: &std::fs::File) -> Option<memmap2::MmapMut> {
    // SAFETY: only the members of this run know the file, and none of them changes its length.
    unsafe { memmap2::MmapMut::map_mut(file) }.ok()
}
