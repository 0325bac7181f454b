//! Temporary files and folders. Each is locked while its process lives, so that another process can remove those that a killed one
//! left. Not every system can lock a folder: a file beside it is locked instead.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fs4::{FileExt, TryLockError};
use tempfile::{NamedTempFile, TempDir};

use super::{UNFINISHED, builder, calls, ending};

/// Continues [`UNFINISHED`] in the names of temporary files and folders, so that those of other programs are not removed.
const OWNER: &str = "rullama-train-";
/// Continues the name of a temporary folder in the name of the file that is locked for it.
const LOCK: &str = ".lock";
/// Begins the names of files that wait in a temporary folder to be moved back. They may be the only copies.
pub(super) const EARLIER: &str = "earlier-";

/// Temporary files and folders of this process whose contents nobody needs after its end.
static DISPOSABLE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// How often, and at what intervals, a removal is tried while other threads use what is removed.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// A temporary folder, removed with its contents when dropped.
#[derive(Debug)]
pub struct Temporary {
    disposable: Option<Disposable>,
    // The fields are dropped in this order: the lock goes last.
    folder: TempDir,
    lock: NamedTempFile,
}

impl Temporary {
    /// Creates a folder in `parent`. Removes what killed processes left there.
    pub(super) fn create(mode: u32, parent: &Path) -> io::Result<Temporary> {
        let lock = locked_file(0o600, LOCK, parent)?;
        let name = lock.path().with_extension("");
        let name = name.file_name().unwrap_or_default();
        let folder = calls::temporary_folder(builder(mode).prefix(name).rand_bytes(0), parent)?;
        Ok(Temporary { disposable: None, folder, lock })
    }

    /// Lets [`remove_temporary`] remove the folder.
    pub(super) fn disposable(self) -> Temporary {
        Temporary { disposable: Some(Disposable::new(self.path())), ..self }
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Keeps the folder, which has another name now.
    pub(super) fn keep(mut self) {
        self.disposable = None;
        self.folder.disable_cleanup(true);
    }

    /// Leaves the folder to the next process that creates one in the same place.
    pub(super) fn leave(mut self) {
        self.folder.disable_cleanup(true);
        self.lock.disable_cleanup(true);
    }
}

/// Creates a temporary file in `parent`, locked until it is closed. Removes what killed processes left there.
pub(super) fn locked_file(mode: u32, suffix: &str, parent: &Path) -> io::Result<NamedTempFile> {
    remove_abandoned(parent);
    loop {
        let prefix = format!("{UNFINISHED}{OWNER}");
        let file = calls::temporary_file(builder(mode).prefix(&prefix).suffix(suffix), parent)?;
        // A process that found the file before it was locked removes it.
        let found = matches!(FileExt::try_lock(file.as_file()), Err(TryLockError::WouldBlock));
        if !found && file.path().exists() {
            return Ok(file);
        }
    }
}

/// A file or folder that [`remove_temporary`] removes, until this is dropped.
#[derive(Debug)]
pub(super) struct Disposable(PathBuf);

impl Disposable {
    pub(super) fn new(path: &Path) -> Disposable {
        disposable().push(path.into());
        Disposable(path.into())
    }
}

impl Drop for Disposable {
    fn drop(&mut self) {
        disposable().retain(|path| *path != self.0);
    }
}

fn disposable() -> MutexGuard<'static, Vec<PathBuf>> {
    DISPOSABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary files of this process, which ends in the middle of its work: other threads change no file from now on.
pub fn remove_temporary() {
    ending::begin();
    for path in disposable().iter().filter(|path| remove(path)) {
        let mut lock = path.clone().into_os_string();
        lock.push(LOCK);
        let _ = fs::remove_file(lock); // only folders have one
    }
}

/// Removes a file or folder, also if another thread is creating a file in it or, on Windows, has it open. Returns whether it is gone.
fn remove(path: &Path) -> bool {
    (0..TRIES).any(|_| {
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        let gone = removed.is_ok() || removed.is_err_and(|e| e.kind() == ErrorKind::NotFound);
        if !gone {
            std::thread::sleep(PAUSE);
        }
        gone
    })
}

/// Removes temporary files and folders in `parent` whose process is gone. One that cannot be removed does no harm.
pub(super) fn remove_abandoned(parent: &Path) {
    let prefix = format!("{UNFINISHED}{OWNER}");
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str().filter(|name| name.starts_with(&prefix)) else { continue };
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(lock) = File::options().write(true).open(&path) else { continue };
        if FileExt::try_lock(&lock).is_err() {
            continue;
        }
        let folder = name.strip_suffix(LOCK).map(|name| parent.join(name));
        // While the folder cannot be removed, its lock must stay.
        if folder.is_none_or(|folder| remove_folder(&folder, parent).is_ok()) {
            let _ = calls::remove_file(&path);
        }
    }
}

/// Removes a temporary folder in `parent`, if it exists, after the files in it that must be moved back.
fn remove_folder(folder: &Path, parent: &Path) -> io::Result<()> {
    if !folder.is_dir() || folder.is_symlink() {
        return Ok(());
    }
    let mut earlier = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_prefix(EARLIER)) {
            let place = parent.join(name);
            earlier.push((place.exists(), entry.path(), place));
        }
    }
    // In an exchange of files that did not end, the last one is missing. It is moved last here, too.
    if earlier.iter().any(|(exists, ..)| !exists) {
        earlier.sort_by_key(|(exists, ..)| !exists);
        for (_, from, place) in &earlier {
            calls::rename(from, place)?;
        }
        calls::sync_folder(parent)?;
    }
    calls::remove_dir_all(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_use_is_removed() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).expect("created");
        let in_use = folder.clone();
        // Ends when the folder is gone.
        let writer = std::thread::spawn(move || {
            let fill = |n: usize| fs::write(in_use.join(n.to_string()), "x");
            (0..).take_while(|n| fill(*n).is_ok()).count()
        });
        while fs::read_dir(&folder).expect("there").next().is_none() {}
        assert!(remove(&folder) && !folder.exists());
        assert!(writer.join().expect("it ends") > 0);
    }
}
