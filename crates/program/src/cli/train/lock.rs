//! One run per folder: a file lock, which the system releases however the program ends.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fs4::{FileExt, TryLockError};
use rullama_train::files;

use super::super::output;

/// The locked file. It is never removed, as two runs could then lock two files of the same name.
const FILE: &str = ".lock";

/// The longest wait for a run that was killed: the system releases its lock once the driver has freed the memory of the GPU.
const PATIENCE: Duration = Duration::from_secs(5);

/// Held from before the state of the folder is read until the run has ended.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Locks the folder `dir` if it has been locked before; creates nothing. Fails if another run holds the lock.
    pub fn existing(dir: &Path) -> Result<Option<Lock>> {
        match File::options().read(true).write(true).open(dir.join(FILE)) {
            Ok(file) => lock(file, dir).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Creates the folder `dir` and locks it.
    pub fn create(dir: &Path) -> Result<Lock> {
        let path = dir.join(FILE);
        let open = || {
            std::fs::create_dir_all(dir)?;
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)
        };
        let file = open().map_err(|source| files::Error { path: path.clone(), source })?;
        lock(file, dir)
    }
}

/// Whether no process runs in the folder `dir`; false if that cannot be known.
pub fn is_free(dir: &Path) -> bool {
    let file = File::options().read(true).write(true).open(dir.join(FILE));
    file.is_ok_and(|file| FileExt::try_lock(&file).is_ok())
}

/// Tries to lock the file for [`PATIENCE`].
fn wait(file: &File) -> Result<(), TryLockError> {
    let start = Instant::now();
    loop {
        match FileExt::try_lock(file) {
            Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => sleep(Duration::from_millis(50)),
            tried => return tried,
        }
    }
}

fn lock(mut file: File, dir: &Path) -> Result<Lock> {
    match wait(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut process = String::new();
            let known = file.read_to_string(&mut process).is_ok() && !process.is_empty();
            let process = if known { format!(", process {process},") } else { String::new() };
            bail!(
                "another run{process} is writing into {}; wait for it, or choose another output.dir",
                dir.display()
            );
        }
        // Some network file systems have no locks.
        Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => {
            output::line(
                "notice",
                format!(
                    "{} is on a file system without locks; do not start a second run there",
                    dir.display()
                ),
            );
        }
        Err(TryLockError::Error(source)) => return Err(files::Error { path: dir.join(FILE), source }.into()),
    }
    // Only for the error message of a second run; nothing depends on it.
    let _ =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{}", std::process::id()));
    Ok(Lock { _file: file })
}
