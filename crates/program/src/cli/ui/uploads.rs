//! Files that the page has sent, and temporary folders in which they get the names that a recipe has for them.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rullama_train::files;
use tempfile::TempDir;

use super::folders::is_relative;
use super::problem::Problem;
use super::types::Sent;

/// Uploaded files, in a temporary folder that ends with the program.
pub struct Uploads(TempDir);

impl Uploads {
    pub fn new() -> Result<Uploads> {
        let folder = tempfile::Builder::new().prefix("rullama-train-").tempdir();
        Ok(Uploads(folder.context("cannot create a temporary folder")?))
    }

    fn place(&self, id: &str) -> Result<PathBuf, Problem> {
        let valid = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if valid {
            Ok(self.0.path().join(id))
        } else {
            Err(Problem::new(format!("the upload has the id {id:?}, expected 32 hexadecimal digits")))
        }
    }

    /// Writes a part of the upload `id`. The part at 0 starts it anew.
    pub fn write(&self, id: &str, offset: u64, bytes: &[u8]) -> Result<(), Problem> {
        let path = self.place(id)?;
        if offset == 0 {
            // The folder of a run may hold a link to the old one.
            let _ = std::fs::remove_file(&path);
        }
        let mut options = File::options();
        let mut file = options.write(true).create(true).truncate(false).open(&path)?;
        if file.metadata()?.len() != offset {
            return Err(Problem::new("the parts of the upload are out of order; send the file again"));
        }
        file.seek(SeekFrom::Start(offset))?;
        Ok(file.write_all(bytes)?)
    }

    /// A temporary folder in `parent`, or where the system has such, with the files under their names.
    pub fn staged(&self, sent: &[Sent], parent: Option<&Path>) -> Result<TempDir, Problem> {
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(".rullama-train-");
        let folder = match parent {
            Some(parent) => builder.tempdir_in(parent),
            None => builder.tempdir(),
        };
        let folder = folder?;
        for Sent { path, upload } in sent {
            self.link(upload, folder.path(), Path::new(path))?;
        }
        Ok(folder)
    }

    /// Puts an upload into a folder, without a copy where the system can.
    fn link(&self, upload: &str, folder: &Path, name: &Path) -> Result<(), Problem> {
        if !is_relative(name) {
            return Err(Problem::new(format!(
                "{} is not a plain name; rename the file, then pick it again",
                name.display()
            )));
        }
        let (from, to) = (self.place(upload)?, folder.join(name));
        if !from.is_file() {
            let message =
                format!("{} was sent to an earlier start of the program; pick it again", name.display());
            return Err(Problem::new(message));
        }
        to.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        if std::fs::hard_link(&from, &to).is_err() {
            std::fs::copy(&from, &to)?;
        }
        Ok(())
    }
}

/// The adapter in a folder of sent files: a folder with `adapter_config.json`, or one file.
pub fn adapter(folder: &Path, sent: &[Sent]) -> Result<PathBuf, Problem> {
    let config = sent.iter().find(|file| file.path.rsplit('/').next() == Some("adapter_config.json"));
    let place = match (config, sent) {
        (Some(config), _) => folder.join(&config.path).parent().map(Path::to_owned),
        (None, [file]) => Some(folder.join(&file.path)),
        (None, _) => None,
    };
    let names = || sent.iter().map(|file| &file.path[..]).collect::<Vec<_>>().join(", ");
    place.filter(|path| files::exists(path)).ok_or_else(|| {
        Problem::new(format!(
            "found {}, expected an adapter: a folder with adapter_config.json, or one file (.gguf, .safetensors)",
            names()
        ))
    })
}
