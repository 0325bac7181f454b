//! One file: continued where an earlier attempt ended, and checked.

use std::io::{ErrorKind, Read};
use std::path::Path;

use fs4::FileExt;
use sha2::{Digest, Sha256};

use super::client::{Client, Error};
use crate::base::stores::hub::Kind;
use crate::base::stores::listing::Listed;
use crate::files::{self, PartFile};
use crate::words::{bytes as in_words, hex};

/// Attempts without a new byte before a download fails.
const ATTEMPTS: u32 = 5;
/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// A repository at a commit.
pub struct At<'a> {
    pub kind: Kind,
    pub repo: &'a str,
    pub commit: &'a str,
}

/// Downloads `file` to `blob`, if it is not there. `progress` gets the number of bytes that are there.
pub fn download(
    client: &Client,
    at: &At,
    file: &Listed,
    (blob, lock): (&Path, &Path),
    progress: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let _lock = locked(lock)?;
    if blob.metadata().is_ok_and(|found| found.len() == file.bytes) {
        progress(file.bytes);
        return Ok(());
    }
    let part = blob.with_file_name(format!("{}.incomplete", file.blob));
    let mut part = PartFile::open(part)?;
    let mut hash = Sha256::new();
    if part.length() > file.bytes {
        part.clear()?;
    }
    read_all(&part, &mut hash)?;
    check_space(blob, file, part.length())?;
    let mut failures = 0;
    while part.length() < file.bytes {
        let before = part.length();
        match piece(client, at, file, &mut part, &mut hash, progress) {
            Ok(()) => {}
            Err(error @ Error::Unreachable(_)) if part.length() <= before => {
                failures += 1;
                if failures >= ATTEMPTS {
                    return Err(error);
                }
            }
            Err(Error::Unreachable(_)) => failures = 0,
            Err(error) => return Err(error),
        }
    }
    let found = hex(hash.finalize().as_slice());
    if file.sha256.as_ref().is_some_and(|wanted| *wanted != found) {
        let wanted = file.sha256.as_deref().unwrap_or_default();
        part.clear()?;
        return Err(Error::Refused(format!(
            "{} of {} arrived with the SHA-256 {found}, expected {wanted}; it was removed, download it again",
            file.path, at.repo
        )));
    }
    part.finish(blob)?;
    Ok(())
}

/// Reads one answer, which may end early.
fn piece(
    client: &Client,
    at: &At,
    file: &Listed,
    part: &mut PartFile,
    hash: &mut Sha256,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let from = part.length();
    let mut answer = client.file(at.kind, at.repo, at.commit, &file.path, from)?;
    let header =
        |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    // A server that does not continue starts from the beginning.
    let starts = header("Content-Range")
        .and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
    if from > 0 && (answer.status() != 206 || starts != Some(from)) {
        part.clear()?;
        *hash = Sha256::new();
        if answer.status() != 200 {
            return Err(Error::Unreachable(format!("{} cannot continue {}", client.endpoint(), file.path)));
        }
    }
    let mut reader = answer.body_mut().as_reader();
    let mut buffer = vec![0; PIECE];
    loop {
        let count = match reader.read(&mut buffer) {
            Ok(0) if part.length() < file.bytes => {
                return Err(Error::Unreachable(format!(
                    "{} ended {} early; try again",
                    client.endpoint(),
                    file.path
                )));
            }
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => {
                let text = format!(
                    "the connection to {} broke ({error}); the same command continues",
                    client.endpoint()
                );
                return Err(Error::Unreachable(text));
            }
        };
        if part.length() + count as u64 > file.bytes {
            part.clear()?;
            return Err(Error::Refused(format!(
                "{} of {} is longer than {}, which the Hub listed; it has changed meanwhile, try again",
                file.path,
                at.repo,
                in_words(file.bytes)
            )));
        }
        hash.update(&buffer[..count]);
        part.append(&buffer[..count])?;
        progress(part.length());
    }
}

/// Adds what has arrived before to the digest.
fn read_all(part: &PartFile, hash: &mut Sha256) -> Result<(), Error> {
    let failed =
        |error: std::io::Error| Error::Refused(format!("a part of the download cannot be read: {error}"));
    let mut reader = part.reader().map_err(failed)?;
    let mut buffer = vec![0; PIECE];
    loop {
        match reader.read(&mut buffer).map_err(failed)? {
            0 => return Ok(()),
            count => hash.update(&buffer[..count]),
        }
    }
}

/// Fails if the disk has too little space for the rest.
fn check_space(blob: &Path, file: &Listed, known: u64) -> Result<(), Error> {
    let folder = blob.parent().unwrap_or(Path::new("."));
    let Ok(free) = files::available_space(folder) else { return Ok(()) };
    if free >= file.bytes - known {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{} takes {} more, and the disk of {} has {} left; free some space, or set HF_HOME to another disk",
        file.path,
        in_words(file.bytes - known),
        folder.display(),
        in_words(free)
    )))
}

/// A lock that other downloads of the file respect, those of `huggingface_hub` too. File systems without locks have none.
fn locked(path: &Path) -> Result<Option<std::fs::File>, Error> {
    let file = path.parent().map(std::fs::create_dir_all).and_then(|made| made.ok()).and_then(|()| {
        std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path).ok()
    });
    Ok(file.filter(|file| FileExt::lock(file).is_ok()))
}
