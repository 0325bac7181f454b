//! The digest of every byte of a base's tensors, cached in the user's cache folder by the file's path, size and times.

use std::fs::Metadata;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use rullama_train::base::Base;
use rullama_train::files;
use rullama_train::run::identity;

/// The digest of `base`. Its file is read in full at most once.
pub fn of(base: &Base) -> String {
    let place = place(base);
    let cached = place.as_ref().and_then(|place| files::read_to_string(place).ok());
    if let Some(digest) = cached.filter(|text| text.len() == 64) {
        return digest;
    }
    let digest = base.contents();
    if let Some(place) = place {
        // Without the cache the digest is made again.
        let _ = files::write_atomic(&place, digest.as_bytes());
    }
    digest
}

/// Path at which the digest of a file is cached; `None` for a base within this program.
fn place(base: &Base) -> Option<PathBuf> {
    let path = std::fs::canonicalize(base.gguf().file()).ok()?;
    let found = std::fs::metadata(&path).ok()?;
    let time = found.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let (path, size, time, file) = (path.display(), found.len(), time.as_nanos(), file(&found));
    let key = format!("{path} {size} {time} {file} {}", base.fingerprint());
    let folder = dirs::cache_dir()?.join("rullama-train").join("bases");
    Some(folder.join(identity::sha256(key.as_bytes())))
}

/// The number of the file and the time of its last change, which no program can set back as it can the time of the contents.
#[cfg(unix)]
fn file(found: &Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    format!("{}:{} {}.{:09}", found.dev(), found.ino(), found.ctime(), found.ctime_nsec())
}

/// The time at which the file was created: other systems give no time of the last change.
#[cfg(not(unix))]
fn file(found: &Metadata) -> String {
    let created = found.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    created.map_or_else(String::new, |time| time.as_nanos().to_string())
}
