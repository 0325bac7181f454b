//! The calls of the operating system that change files. All of them can fail for [`super::faults`].

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use tempfile::{Builder, NamedTempFile, TempDir};

use super::faults::{Call, Faulty, pass};

/// Creates a folder and its parents, if it does not exist.
pub fn create_dir_all(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    pass(Call::Allocate)?;
    fs::create_dir_all(folder)
}

pub fn temporary_file(builder: &Builder, folder: &Path) -> io::Result<NamedTempFile> {
    pass(Call::Allocate)?;
    builder.tempfile_in(folder).map_err(without_path)
}

pub fn temporary_folder(builder: &Builder, folder: &Path) -> io::Result<TempDir> {
    pass(Call::Allocate)?;
    builder.tempdir_in(folder).map_err(without_path)
}

/// Removes the name of a temporary file from an error of the crate that creates them: the user's file is named instead.
fn without_path(error: io::Error) -> io::Error {
    match error.to_string().split_once(" at path ") {
        Some((cause, _)) => io::Error::new(error.kind(), cause),
        None => error,
    }
}

/// Creates a file, writes `bytes` and flushes them to disk.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    pass(Call::Allocate)?;
    let file = File::create_new(path)?;
    Faulty(&file).write_all(bytes)?;
    sync(&file)
}

/// Flushes a file to disk.
pub fn sync(file: &File) -> io::Result<()> {
    pass(Call::Allocate)?;
    file.sync_all()
}

/// Flushes renames inside `folder` to disk. Only possible on Unix.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    pass(Call::Other)?;
    if cfg!(unix) {
        // Some network file systems do not support this. The files themselves are safe.
        match File::open(folder)?.sync_all() {
            Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
            result => result,
        }
    } else {
        Ok(())
    }
}

/// Moves a temporary file to its place.
pub fn persist(file: NamedTempFile, place: &Path) -> io::Result<()> {
    pass(Call::Other)?;
    file.persist(place).map(drop).map_err(|e| e.error)
}

pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    pass(Call::Other)?;
    fs::rename(from, to)
}

pub fn remove_file(path: &Path) -> io::Result<()> {
    pass(Call::Other)?;
    fs::remove_file(path)
}

pub fn remove_dir_all(folder: &Path) -> io::Result<()> {
    pass(Call::Other)?;
    fs::remove_dir_all(folder)
}

/// Opens a file to append to it.
pub fn append(path: &Path) -> io::Result<File> {
    pass(Call::Other)?;
    File::options().append(true).open(path)
}

/// Bytes that this user can still write to the disk of `folder`.
pub fn available_space(folder: &Path) -> io::Result<u64> {
    pass(Call::Other)?;
    fs4::available_space(folder)
}
