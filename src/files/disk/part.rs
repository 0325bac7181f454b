//! Files that arrive in pieces, such as downloads, and are continued after an interruption.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::calls;
use super::faults::Faulty;
use super::{Error, at};

/// A file of which a part has arrived.
pub struct PartFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl PartFile {
    /// Opens the part at `path`, or creates it with its folder.
    pub fn open(path: PathBuf) -> Result<PartFile, Error> {
        let open = || {
            calls::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            if !path.exists() {
                calls::write_new(&path, &[])?;
            }
            let file = calls::append(&path)?;
            let length = file.metadata()?.len();
            Ok((file, length))
        };
        let (file, length) = open().map_err(at(&path))?;
        Ok(PartFile { path, file, length })
    }

    /// Bytes that have arrived.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reads what has arrived.
    pub fn reader(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        Faulty(&self.file).write_all(bytes).map_err(at(&self.path))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Forgets what has arrived behind the first `length` bytes.
    pub fn keep(&mut self, length: u64) -> Result<(), Error> {
        self.file.set_len(length).map_err(at(&self.path))?;
        self.length = length;
        Ok(())
    }

    /// Forgets what has arrived.
    pub fn clear(&mut self) -> Result<(), Error> {
        self.file.set_len(0).map_err(at(&self.path))?;
        self.length = 0;
        Ok(())
    }

    /// Moves the complete file to its place.
    pub fn finish(self, place: &Path) -> Result<(), Error> {
        calls::sync(&self.file).map_err(at(place))?;
        drop(self.file);
        super::replace(&self.path, place)
    }
}

/// Makes `link` stand for the file `place`: by a relative link where the system has them, otherwise by another name of the file, or a
/// copy. An existing link is replaced.
pub fn link(place: &Path, link: &Path) -> Result<(), Error> {
    let clear = || if link.symlink_metadata().is_ok() { calls::remove_file(link) } else { Ok(()) };
    let make = || {
        let parent = link.parent().unwrap_or(Path::new("."));
        calls::create_dir_all(parent)?;
        clear()?;
        let linked = relative(place, parent).is_some_and(|target| symlink(&target, link).is_ok());
        if linked && link.exists() {
            return Ok(());
        }
        // Some systems make no link, or one that leads nowhere, and call it a success.
        clear()?;
        if fs::hard_link(place, link).is_ok() { Ok(()) } else { fs::copy(place, link).map(drop) }
    };
    make().map_err(at(link))
}

/// The path of `place` as seen from the folder `from`.
fn relative(place: &Path, from: &Path) -> Option<PathBuf> {
    let common = from.ancestors().find(|above| place.starts_with(above))?;
    let ups = from.strip_prefix(common).ok()?.components().map(|_| "..");
    Some(ups.collect::<PathBuf>().join(place.strip_prefix(common).ok()?))
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_continued_and_moved() {
        let dir = tempfile::tempdir().expect("a folder");
        let (part, place) = (dir.path().join("blobs/a.incomplete"), dir.path().join("blobs/a"));
        PartFile::open(part.clone()).expect("created").append(b"one ").expect("written");
        let mut file = PartFile::open(part.clone()).expect("opened");
        assert_eq!(file.length(), 4);
        file.append(b"two").expect("written");
        file.finish(&place).expect("moved");
        assert_eq!(fs::read(&place).expect("there"), b"one two");
        assert!(!part.exists());
        let linked = dir.path().join("snapshots/1/x/a");
        for _ in 0..2 {
            link(&place, &linked).expect("linked");
            assert_eq!(fs::read(&linked).expect("there"), b"one two");
        }
        assert_eq!(relative(&place, linked.parent().expect("one")), Some("../../../blobs/a".into()));
    }
}
