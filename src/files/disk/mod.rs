//! Files on disk. All reading and writing of files goes through here.
//!
//! Files are written to a temporary file in the same folder, flushed to disk, and renamed. A crash or a full disk never
//! replaces a good file with an incomplete one.

mod calls;
mod ending;
pub mod faults;
mod part;
mod temporary;
mod write;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

pub use calls::available_space;
pub use ending::wait_if_ending;
pub use part::{PartFile, link};
pub use temporary::{Temporary, remove_temporary};
pub use write::{GrowingFile, beside, near, replace, write_atomic, write_atomic_with, write_folder};

/// Prefix of temporary files and folders. A crash may leave some behind.
const UNFINISHED: &str = ".unfinished-";

/// Why a file or folder could not be written. An existing one is unchanged.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}; {}", .path.display(), next_step(.source))]
pub struct Error {
    /// The path as the caller gave it.
    pub path: PathBuf,
    /// Error of the operating system.
    pub source: io::Error,
}

/// Advice for an error.
fn next_step(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::PermissionDenied => "check the permissions, or choose another place",
        ErrorKind::ReadOnlyFilesystem => "choose a place that is writable",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space, or choose another disk",
        ErrorKind::FileTooLarge => "choose a disk or a limit that allows files of this size",
        ErrorKind::IsADirectory => "it is a folder, expected a file; choose another name",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "it is a file, expected a folder; remove it or choose another name"
        }
        ErrorKind::InvalidFilename | ErrorKind::InvalidInput => "choose another name",
        _ => "check the disk and try again",
    }
}

/// Converts an error of the operating system into an [`Error`] at `path`.
fn at(path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error { path: path.into(), source }
}

/// Reads a whole file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path)
}

/// Opens a file to read it piece by piece.
pub fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Reads at most the first `most` bytes of a file.
pub fn read_start(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a whole text file.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
}

/// Whether a file is at `path`.
pub fn is_file(path: &Path) -> bool {
    path.is_file()
}

/// Whether a folder is at `path`.
pub fn is_dir(path: &Path) -> bool {
    path.is_dir()
}

/// Whether a file or folder is at `path`.
pub fn exists(path: &Path) -> bool {
    path.exists()
}

/// Lists the files and folders in a folder, sorted by name.
pub fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}

/// Lists the files that match a pattern such as `data/*.jsonl`, sorted by name.
///
/// Fails with [`ErrorKind::InvalidInput`] if the pattern is invalid.
pub fn matching(pattern: &str) -> io::Result<Vec<PathBuf>> {
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
    let invalid = |e| io::Error::new(ErrorKind::InvalidInput, e);
    let paths = glob::glob_with(pattern, options).map_err(invalid)?;
    let paths = paths.collect::<Result<Vec<_>, _>>().map_err(io::Error::from)?;
    Ok(paths.into_iter().filter(|path| path.is_file()).collect())
}

/// Removes a folder with its contents. A crash meanwhile never leaves part of it under its name.
pub fn remove_folder(dir: &Path) -> Result<(), Error> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let aside = dir.with_file_name(format!("{UNFINISHED}{name}"));
    match calls::rename(dir, &aside) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        result => result.and_then(|()| calls::remove_dir_all(&aside)).map_err(at(dir)),
    }
}

/// Removes what interrupted writes left in the folder `dir`. No other process may be writing there.
pub fn remove_unfinished(dir: &Path) -> Result<(), Error> {
    temporary::remove_abandoned(dir);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            continue;
        }
        let removed = if path.is_dir() { calls::remove_dir_all(&path) } else { calls::remove_file(&path) };
        removed.map_err(at(&path))?;
    }
    Ok(())
}

/// Checks that [`write_folder`] can write to `dir`, before long work. Leaves nothing behind.
pub fn check_folder(dir: &Path) -> Result<(), Error> {
    let place = std::path::absolute(follow(dir)).map_err(at(dir))?;
    let existing = place.ancestors().find(|p| p.exists()).unwrap_or(&place);
    if !existing.is_dir() {
        return Err(at(dir)(ErrorKind::NotADirectory.into()));
    }
    temporary::locked_file(0o600, "", existing).map(drop).map_err(at(dir))
}

/// Checks that [`write_atomic`] can write to `path`, before long work. Leaves nothing behind.
pub fn check_file(path: &Path) -> Result<(), Error> {
    check_replaceable(&follow(path)).map_err(at(path))?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    check_folder(parent).map_err(|e| at(path)(e.source))
}

/// Follows symbolic links. Returns the path itself if nothing exists there.
fn follow(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.into())
}

/// Fails if something other than a file is at `place`.
fn check_replaceable(place: &Path) -> io::Result<()> {
    match fs::metadata(place) {
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() => {
            Err(io::Error::new(ErrorKind::InvalidInput, "it is a device or a pipe, not a file"))
        }
        _ => Ok(()),
    }
}

/// A builder for temporary files with the given permissions. Results need the usual ones, as temporary files are private by default.
fn builder(mode: u32) -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(UNFINISHED);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    #[cfg(not(unix))]
    let _ = mode;
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All names in a folder, including hidden ones.
    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("the folder exists");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("readable").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_written_into_new_folders_and_replaced() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("a/b/file");
        write_atomic(&path, b"first, longer").expect("written");
        write_atomic(&path, b"second").expect("replaced");
        assert_eq!(fs::read(&path).expect("there"), b"second");
        assert_eq!(names(&dir.path().join("a/b")), ["file"]);
    }

    #[test]
    fn a_failure_while_writing_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("file");
        write_atomic(&path, b"good").expect("written");
        let error = write_atomic_with(&path, |file| {
            file.write_all(&[0; 100_000])?;
            Err(ErrorKind::StorageFull.into())
        })
        .expect_err("the disk is full");
        assert_eq!(
            error.to_string(),
            format!(
                "cannot write {}: no storage space; free some space, or choose another disk",
                path.display()
            )
        );
        assert_eq!(fs::read(&path).expect("there"), b"good");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn folders_and_devices_are_not_replaced() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let error = write_atomic(dir.path(), b"x").expect_err("a folder").to_string();
        assert!(error.contains("it is a folder, expected a file"), "{error}");
        write_atomic(&dir.path().join("file"), b"x").expect("written");
        let error = write_atomic(&dir.path().join("file/inside"), b"x").expect_err("no folder").to_string();
        assert!(error.contains("it is a file, expected a folder"), "{error}");
        let error = write_folder(&dir.path().join("file"), &[("a", b"x")]).expect_err("a file").to_string();
        assert!(error.contains("it is a file, expected a folder"), "{error}");
        assert_eq!(names(dir.path()), ["file"]);
        #[cfg(unix)]
        {
            // A socket in our own folder stands for every such thing: a test that fails must not harm the machine.
            let socket = dir.path().join("socket");
            let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
            let error = write_atomic(&socket, b"x").expect_err("a socket").to_string();
            assert!(error.contains("it is a device or a pipe"), "{error}");
        }
    }

    #[test]
    fn a_place_is_checked_and_left_as_it_was() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        check_folder(&dir.path().join("a/b")).expect("can be made");
        check_file(&dir.path().join("a/file")).expect("can be made");
        check_folder(Path::new("not/yet")).expect("can be made in the working directory");
        assert_eq!(names(dir.path()), [""; 0]);
        fs::write(dir.path().join("file"), "x").expect("written");
        for path in [dir.path().join("file"), dir.path().join("file/inside")] {
            let error = check_folder(&path).expect_err("a file").to_string();
            assert!(error.contains("it is a file, expected a folder"), "{error}");
        }
        check_file(&dir.path().join("file")).expect("can be replaced");
        let error = check_file(dir.path()).expect_err("a folder").to_string();
        assert!(error.contains("it is a folder, expected a file"), "{error}");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn a_folder_appears_whole_and_keeps_what_others_put_there() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let place = dir.path().join("runs/adapter");
        write_folder(&place, &[("weights", b"1"), ("config", b"2")]).expect("written");
        assert_eq!(names(&dir.path().join("runs")), ["adapter"]);
        fs::write(place.join("README.md"), "mine").expect("written");
        write_folder(&place, &[("weights", b"3"), ("config", b"4")]).expect("replaced");
        assert_eq!(names(&place), ["README.md", "config", "weights"]);
        let contents = ["README.md", "config", "weights"].map(|n| fs::read(place.join(n)).expect("there"));
        assert_eq!(contents, [b"mine".to_vec(), b"4".to_vec(), b"3".to_vec()]);
    }

    #[test]
    fn a_folder_that_cannot_be_replaced_stays_as_it_was() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir_all(dir.path().join("config")).expect("created");
        fs::write(dir.path().join("weights"), "old").expect("written");
        let error = write_folder(dir.path(), &[("weights", b"3"), ("config", b"4")]).expect_err("a folder");
        assert!(error.to_string().contains("config: "), "{error}");
        assert_eq!(fs::read(dir.path().join("weights")).expect("there"), b"old");
        assert_eq!(names(dir.path()), ["config", "weights"]);
    }

    #[test]
    fn removed_folders_and_leftovers_are_gone() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        write_folder(&dir.path().join("a"), &[("x", b"1")]).expect("written");
        write_folder(&dir.path().join("b"), &[("x", b"1")]).expect("written");
        fs::write(dir.path().join(".unfinished-file"), "x").expect("written");
        fs::create_dir_all(dir.path().join(".unfinished-folder/inside")).expect("created");
        remove_folder(&dir.path().join("a")).expect("removed");
        remove_folder(&dir.path().join("a")).expect("it is gone already");
        remove_unfinished(dir.path()).expect("removed");
        remove_unfinished(&dir.path().join("nowhere")).expect("nothing to remove");
        assert_eq!(names(dir.path()), ["b"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_permissions_are_the_usual_ones() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (usual, ours, link) =
            (dir.path().join("usual"), dir.path().join("ours"), dir.path().join("link"));
        fs::write(&usual, "x").expect("written");
        write_atomic(&ours, b"x").expect("written");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode(&ours), mode(&usual));
        symlink(&ours, &link).expect("linked");
        write_atomic(&link, b"through the link").expect("written");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(fs::read(&ours).expect("there"), b"through the link");
    }
}
