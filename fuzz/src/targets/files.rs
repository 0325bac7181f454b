//! Several files as one input, and files on disk for readers that take a path.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Packs files: of each its length as a little-endian u32, then its bytes.
pub fn pack(files: &[Vec<u8>]) -> Vec<u8> {
    files.iter().flat_map(|file| [&(file.len() as u32).to_le_bytes()[..], file].concat()).collect()
}

/// The first `count` files of an input. Missing ones are `None`; a length beyond the end means the rest.
pub fn unpack(input: &[u8], count: usize) -> Vec<Option<&[u8]>> {
    let mut rest = input;
    let mut next = || {
        let (length, tail) = rest.split_first_chunk::<4>()?;
        let (file, tail) = tail.split_at((u32::from_le_bytes(*length) as usize).min(tail.len()));
        rest = tail;
        Some(file)
    };
    (0..count).map(|_| next()).collect()
}

/// A folder of one thread, in memory where the system has such a folder, and the files that it holds.
struct Folder {
    dir: TempDir,
    files: BTreeMap<String, Vec<u8>>,
}

impl Folder {
    fn new() -> Folder {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Folder { dir: dir.expect("a folder"), files: BTreeMap::new() }
    }
}

/// Makes a folder of this thread hold exactly `files`, and returns its path. Files that it holds already are not written again.
pub fn folder(files: &[(&str, Option<&[u8]>)]) -> PathBuf {
    thread_local! {
        static FOLDER: RefCell<Folder> = RefCell::new(Folder::new());
    }
    FOLDER.with_borrow_mut(|folder| {
        let Folder { dir, files: held } = folder;
        let wanted: BTreeMap<&str, &[u8]> =
            files.iter().filter_map(|(name, bytes)| Some((*name, (*bytes)?))).collect();
        held.retain(|name, _| {
            let kept = wanted.contains_key(&**name);
            if !kept {
                let _ = fs::remove_file(dir.path().join(name));
            }
            kept
        });
        for (name, bytes) in wanted {
            let path = dir.path().join(name);
            // A reader may have removed the file.
            if held.get(name).is_none_or(|earlier| earlier != bytes) || !path.exists() {
                fs::write(path, bytes).expect("written");
                held.insert(name.to_owned(), bytes.to_vec());
            }
        }
        dir.path().to_owned()
    })
}
