//! One run per folder: a file lock, which the system releases however the program ends.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::Path;

use anyhow::{Result, bail};
use fs4::{FileExt, TryLockError};
use rullama_train::files;

use super::super::output;

/// The locked file. It is never removed, as two runs could then lock two files of the same name.
const FILE: &str = ".lock";

/// Held while the run writes to its folder.
pub struct Lock {
    _file: File,
}

/// Fails if another run is writing into `dir`. Creates nothing.
pub fn check(dir: &Path) -> Result<()> {
    match File::options().read(true).write(true).open(dir.join(FILE)) {
        Ok(file) => lock(file, dir).map(drop),
        Err(_) => Ok(()),
    }
}

impl Lock {
    /// Creates the folder and locks it.
    pub fn take(dir: &Path) -> Result<Lock> {
        let path = dir.join(FILE);
        let open = || {
            std::fs::create_dir_all(dir)?;
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)
        };
        let file = open().map_err(|source| files::Error { path: path.clone(), source })?;
        let mut file = lock(file, dir)?;
        // Only for the error message of a second run; nothing depends on it.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "{}", std::process::id()));
        Ok(Lock { _file: file })
    }
}

fn lock(mut file: File, dir: &Path) -> Result<File> {
    match FileExt::try_lock(&file) {
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
    Ok(file)
}
