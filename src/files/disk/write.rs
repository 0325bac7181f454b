//! Atomic replacement of files and folders.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::{Error, at, builder, check_replaceable, follow, sync_folder};

/// Writes `bytes` to `path`. On an error, an existing file is unchanged.
///
/// Missing folders are created and symbolic links are followed. Fails on devices and pipes, which a rename would replace.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_atomic_with(path, |file| file.write_all(bytes))
}

/// [`write_atomic`] for contents that need not be in memory at once: `fill` writes them to the file.
pub fn write_atomic_with(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    replace_file(path, fill).map_err(at(path))
}

fn replace_file(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let place = follow(path);
    check_replaceable(&place)?;
    let parent = create_parent(&place)?;
    // The temporary file is removed when dropped, so a failure below does not leave it behind.
    let temporary = builder(0o666).tempfile_in(&parent)?;
    let mut writer = BufWriter::new(temporary.as_file());
    fill(&mut writer)?;
    writer.flush()?;
    drop(writer);
    temporary.as_file().sync_all()?;
    temporary.persist(&place).map_err(|e| e.error)?;
    sync_folder(&parent)
}

/// Moves the file `from` to `path` as [`write_atomic`] does. It must be on the same disk, and flushed.
pub fn replace(from: &Path, path: &Path) -> Result<(), Error> {
    let place = follow(path);
    check_replaceable(&place).map_err(at(path))?;
    let parent = create_parent(&place).map_err(at(path))?;
    fs::rename(from, &place).map_err(at(path))?;
    sync_folder(&parent).map_err(at(path))
}

/// Creates a temporary folder beside `path`, for a file that is checked before it is moved there. It is removed when dropped.
///
/// Fails if `path` cannot be written.
pub fn beside(path: &Path) -> Result<tempfile::TempDir, Error> {
    let place = follow(path);
    check_replaceable(&place).map_err(at(path))?;
    let parent = create_parent(&place).map_err(at(path))?;
    builder(0o700).tempdir_in(&parent).map_err(at(path))
}

/// Creates a temporary folder on the disk of `dir`, for results that are checked before they are written. It is removed when
/// dropped.
pub fn near(dir: &Path) -> Result<tempfile::TempDir, Error> {
    let place = std::path::absolute(follow(dir)).map_err(at(dir))?;
    let existing = place.ancestors().find(|p| p.is_dir()).unwrap_or(&place);
    builder(0o700).tempdir_in(existing).map_err(at(dir))
}

/// Writes a folder of files, given as names and contents. All of them are on disk before the first is put in place.
///
/// A new folder appears complete. In an existing folder, each file is replaced atomically and other files stay. The last of
/// `files` is removed first, so that after a crash between two replacements a mixture of old and new files is incomplete.
pub fn write_folder(dir: &Path, files: &[(&str, &[u8])]) -> Result<(), Error> {
    let place = follow(dir);
    let exists = place.is_dir();
    if place.exists() && !exists {
        return Err(at(dir)(ErrorKind::NotADirectory.into()));
    }
    let parent = create_parent(&place).map_err(at(dir))?;
    for (name, _) in files {
        check_replaceable(&place.join(name)).map_err(at(&dir.join(name)))?;
    }
    // Inside an existing folder, which is on the same disk and writable. Its parent may be neither.
    let staged = builder(0o777).tempdir_in(if exists { &place } else { &parent }).map_err(at(dir))?;
    for (name, bytes) in files {
        write_synced(&staged.path().join(name), bytes).map_err(at(&dir.join(name)))?;
    }
    sync_folder(staged.path()).map_err(at(dir))?;
    if !exists {
        fs::rename(staged.path(), &place).map_err(at(dir))?;
        // The folder is no longer temporary.
        let _ = staged.keep();
        return sync_folder(&parent).map_err(at(dir));
    }
    if let Some((last, _)) = files.last().filter(|(last, _)| place.join(last).exists()) {
        fs::remove_file(place.join(last)).map_err(at(&dir.join(last)))?;
        sync_folder(&place).map_err(at(dir))?;
    }
    for (name, _) in files {
        fs::rename(staged.path().join(name), place.join(name)).map_err(at(&dir.join(name)))?;
    }
    sync_folder(&place).map_err(at(dir))
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn create_parent(place: &Path) -> io::Result<PathBuf> {
    let Some(parent) = place.parent() else {
        return Ok(place.into()); // the root of a disk, which exists
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    fs::create_dir_all(parent)?;
    Ok(parent.into())
}
