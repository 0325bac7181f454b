//! Atomic replacement of files and folders.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::calls::{self, sync_folder};
use super::faults::Faulty;
use super::temporary::{Disposable, EARLIER, Temporary, locked_file};
use super::{Error, at, check_replaceable, follow};

/// Writes `bytes` to `path`. After an error, an existing file is unchanged, or, if only the last flush failed, replaced as a whole.
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
    let temporary = locked_file(0o666, "", &parent)?;
    let _disposable = Disposable::new(temporary.path());
    let mut writer = BufWriter::new(Faulty(temporary.as_file()));
    fill(&mut writer)?;
    writer.flush()?;
    drop(writer);
    calls::sync(temporary.as_file())?;
    calls::persist(temporary, &place)?;
    sync_folder(&parent)
}

/// Moves the file `from` to `path` as [`write_atomic`] does. It must be on the same disk, and flushed.
pub fn replace(from: &Path, path: &Path) -> Result<(), Error> {
    let place = follow(path);
    check_replaceable(&place).map_err(at(path))?;
    let parent = create_parent(&place).map_err(at(path))?;
    calls::rename(from, &place).map_err(at(path))?;
    sync_folder(&parent).map_err(at(path))
}

/// Creates a temporary folder beside `path`, for a file that is checked before it is moved there. It is removed when dropped.
///
/// Fails if `path` cannot be written.
pub fn beside(path: &Path) -> Result<Temporary, Error> {
    let place = follow(path);
    check_replaceable(&place).map_err(at(path))?;
    let parent = create_parent(&place).map_err(at(path))?;
    Temporary::create(0o700, &parent).map(Temporary::disposable).map_err(at(path))
}

/// Creates a temporary folder on the disk of `dir`, for results that are checked before they are written. It is removed when
/// dropped.
pub fn near(dir: &Path) -> Result<Temporary, Error> {
    let place = std::path::absolute(follow(dir)).map_err(at(dir))?;
    let existing = place.ancestors().find(|p| p.is_dir()).unwrap_or(&place);
    Temporary::create(0o700, existing).map(Temporary::disposable).map_err(at(dir))
}

/// Writes a folder of files, given as names and contents. All of them are on disk before the first is put in place.
///
/// A new folder appears complete. In an existing folder other files stay, and after an error the earlier files are back. The
/// last of `files` goes first and comes last, so that after a crash between two files the folder is incomplete.
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
    let staged = if exists { &place } else { &parent };
    let staged = Temporary::create(0o777, staged).map_err(at(dir))?;
    // An existing folder's earlier files will wait in there.
    let staged = if exists { staged } else { staged.disposable() };
    for (name, bytes) in files {
        calls::write_new(&staged.path().join(name), bytes).map_err(at(&dir.join(name)))?;
    }
    sync_folder(staged.path()).map_err(at(dir))?;
    if !exists {
        calls::rename(staged.path(), &place).map_err(at(dir))?;
        // The folder is no longer temporary.
        staged.keep();
        return sync_folder(&parent).map_err(at(dir));
    }
    let mut exchange = Exchange { place: &place, staged: staged.path(), done: Vec::new() };
    let Err((name, source)) = exchange.run(files) else { return Ok(()) };
    let is_undone = exchange.undo().is_ok();
    if !is_undone {
        // The only copies of the earlier files are in there.
        staged.leave();
    }
    Err(Error { path: name.map_or(dir.into(), |name| dir.join(name)), source })
}

/// Files of a folder that are exchanged for new ones in a temporary folder inside it.
struct Exchange<'p, 'n> {
    place: &'p Path,
    staged: &'p Path,
    /// Files that were moved so far.
    done: Vec<(&'n str, Moved)>,
}

#[derive(Clone, Copy)]
enum Moved {
    /// The earlier file, out of the folder.
    Out,
    /// The new file, into the folder.
    In,
}

impl<'n> Exchange<'_, 'n> {
    /// Puts all new files in place. An error has the file's name, if it is one file's.
    fn run(&mut self, files: &[(&'n str, &[u8])]) -> Result<(), (Option<&'n str>, io::Error)> {
        if let Some((last, _)) = files.last() {
            self.take_out(last).map_err(|e| (Some(*last), e))?;
            sync_folder(self.place).map_err(|e| (None, e))?;
        }
        for (name, _) in files {
            self.take_out(name).and_then(|()| self.put_in(name)).map_err(|e| (Some(*name), e))?;
        }
        sync_folder(self.place).map_err(|e| (None, e))
    }

    /// Path at which an earlier file waits until the new ones are in place.
    fn aside(&self, name: &str) -> PathBuf {
        self.staged.join(format!("{EARLIER}{name}"))
    }

    fn take_out(&mut self, name: &'n str) -> io::Result<()> {
        let from = self.place.join(name);
        if from.exists() {
            calls::rename(&from, &self.aside(name))?;
            self.done.push((name, Moved::Out));
        }
        Ok(())
    }

    fn put_in(&mut self, name: &'n str) -> io::Result<()> {
        calls::rename(&self.staged.join(name), &self.place.join(name))?;
        self.done.push((name, Moved::In));
        Ok(())
    }

    /// Moves everything back, in the opposite order.
    fn undo(&self) -> io::Result<()> {
        for (name, moved) in self.done.iter().rev() {
            let place = self.place.join(name);
            match moved {
                Moved::Out => calls::rename(&self.aside(name), &place)?,
                Moved::In => calls::rename(&place, &self.staged.join(name))?,
            }
        }
        sync_folder(self.place)
    }
}

/// A file that only grows.
pub struct GrowingFile {
    path: PathBuf,
    file: File,
}

impl GrowingFile {
    /// Creates or replaces the file at `path`.
    pub fn create(path: PathBuf, contents: &[u8]) -> Result<GrowingFile, Error> {
        write_atomic(&path, contents)?;
        match calls::append(&path) {
            Ok(file) => Ok(GrowingFile { path, file }),
            Err(source) => Err(Error { path, source }),
        }
    }

    /// Appends `bytes` in one write, so that a killed run leaves no partial line.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        Faulty(&self.file).write_all(bytes).map_err(at(&self.path))
    }
}

fn create_parent(place: &Path) -> io::Result<PathBuf> {
    let Some(parent) = place.parent() else {
        return Ok(place.into()); // the root of a disk, which exists
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    calls::create_dir_all(parent)?;
    Ok(parent.into())
}
