//! The only way to files: reading them, and writing them so that a crash or a full disk never leaves half a file in the place
//! of a good one.
//!
//! Everything is written beside its place, flushed to the disk, and then renamed. Where there is no disk, `memory.rs` stands in
//! for this module.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// What every temporary file and folder is called; something follows. One that is found later was left by a crash.
const UNFINISHED: &str = ".unfinished-";

/// Why something could not be written. What stood in its place still stands there.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}; {}", .path.display(), next_step(.source))]
pub struct Error {
    /// The path as the caller gave it.
    pub path: PathBuf,
    /// The system's reason.
    pub source: io::Error,
}

/// What the user can do about it.
fn next_step(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::PermissionDenied => "check who may write there, or choose another place",
        ErrorKind::ReadOnlyFilesystem => "choose a place that can be written to",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space, or choose another disk",
        ErrorKind::FileTooLarge => "choose a disk or a limit that allows files of this size",
        ErrorKind::IsADirectory => "it is a folder where a file is expected; choose another name",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "a file stands where a folder is expected; remove it or choose another name"
        }
        ErrorKind::InvalidFilename | ErrorKind::InvalidInput => "choose another name",
        _ => "check the disk and try again",
    }
}

/// Turns a system's reason into an [`Error`] at `path`.
fn at(path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error { path: path.into(), source }
}

/// A whole file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path)
}

/// At most the first `most` bytes of a file.
pub fn read_start(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A whole file of text.
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

/// Whether anything is at `path`.
pub fn exists(path: &Path) -> bool {
    path.exists()
}

/// What a folder holds, files and folders, by name.
pub fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}

/// The files that match a pattern such as `data/*.jsonl`, by name.
///
/// Fails with [`ErrorKind::InvalidInput`] where it is no pattern.
pub fn matching(pattern: &str) -> io::Result<Vec<PathBuf>> {
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
    let invalid = |e| io::Error::new(ErrorKind::InvalidInput, e);
    let paths = glob::glob_with(pattern, options).map_err(invalid)?;
    let paths = paths.collect::<Result<Vec<_>, _>>().map_err(io::Error::from)?;
    Ok(paths.into_iter().filter(|path| path.is_file()).collect())
}

/// Writes `bytes` to `path`: afterwards the file is whole, or what stood there still stands.
///
/// Missing folders are created. A symbolic link is followed. Devices and pipes are refused: a rename would replace them.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_atomic_with(path, |file| file.write_all(bytes))
}

/// [`write_atomic`] for contents that need not be in memory at once: `fill` writes them.
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
    // Dropping the temporary file removes it: no failure below leaves it behind.
    let temporary = builder(0o666).tempfile_in(&parent)?;
    let mut writer = BufWriter::new(temporary.as_file());
    fill(&mut writer)?;
    writer.flush()?;
    drop(writer);
    temporary.as_file().sync_all()?;
    temporary.persist(&place).map_err(|e| e.error)?;
    sync_folder(&parent)
}

/// Puts the file `from`, which is on the same disk and flushed, in the place of `path`, as [`write_atomic`] does.
pub fn replace(from: &Path, path: &Path) -> Result<(), Error> {
    let place = follow(path);
    check_replaceable(&place).map_err(at(path))?;
    let parent = create_parent(&place).map_err(at(path))?;
    fs::rename(from, &place).map_err(at(path))?;
    sync_folder(&parent).map_err(at(path))
}

/// A folder beside `path`, for a file that must be looked at before it takes that place; removed when dropped.
///
/// Fails where nothing could be put at `path`.
pub fn beside(path: &Path) -> Result<tempfile::TempDir, Error> {
    let place = follow(path);
    check_replaceable(&place).map_err(at(path))?;
    let parent = create_parent(&place).map_err(at(path))?;
    builder(0o700).tempdir_in(&parent).map_err(at(path))
}

/// A folder of our own where `dir` is or will be, for results that must be looked at first; removed when dropped.
pub fn near(dir: &Path) -> Result<tempfile::TempDir, Error> {
    let place = std::path::absolute(follow(dir)).map_err(at(dir))?;
    let existing = place.ancestors().find(|p| p.is_dir()).unwrap_or(&place);
    builder(0o700).tempdir_in(existing).map_err(at(dir))
}

/// Writes a folder of files, given as names and contents: all of them are on the disk before the first takes its place.
///
/// A new folder appears whole. In an existing one each file is replaced whole and other files stay; the last of `files`
/// is away meanwhile, so that a crash between two replacements cannot pass for a mixture of old and new.
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
    // Inside an existing folder, because that is surely writable and on the same disk; its parent may be neither.
    let staged = builder(0o777).tempdir_in(if exists { &place } else { &parent }).map_err(at(dir))?;
    for (name, bytes) in files {
        write_synced(&staged.path().join(name), bytes).map_err(at(&dir.join(name)))?;
    }
    sync_folder(staged.path()).map_err(at(dir))?;
    if !exists {
        fs::rename(staged.path(), &place).map_err(at(dir))?;
        // It is no longer temporary.
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

/// Removes a folder and what is in it. A crash meanwhile leaves no part of it under its own name.
pub fn remove_folder(dir: &Path) -> Result<(), Error> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let aside = dir.with_file_name(format!("{UNFINISHED}{name}"));
    match fs::rename(dir, &aside) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        result => result.and_then(|()| fs::remove_dir_all(&aside)).map_err(at(dir)),
    }
}

/// Removes what interrupted writes left in the folder `dir`. Nobody else may be writing there.
pub fn remove_unfinished(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            continue;
        }
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(at(&path))?;
    }
    Ok(())
}

/// Fails where [`write_folder`] would find no place to write: a check before long work. Nothing is left behind.
pub fn check_folder(dir: &Path) -> Result<(), Error> {
    let place = std::path::absolute(follow(dir)).map_err(at(dir))?;
    let existing = place.ancestors().find(|p| p.exists()).unwrap_or(&place);
    if !existing.is_dir() {
        return Err(at(dir)(ErrorKind::NotADirectory.into()));
    }
    builder(0o600).tempfile_in(existing).map(drop).map_err(|e| at(dir)(e.kind().into()))
}

/// Fails where [`write_atomic`] would find no place to write: a check before long work. Nothing is left behind.
pub fn check_file(path: &Path) -> Result<(), Error> {
    check_replaceable(&follow(path)).map_err(at(path))?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    check_folder(parent).map_err(|e| at(path)(e.source))
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// What a path leads to, through symbolic links; the path itself where nothing is there yet.
fn follow(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.into())
}

/// Fails where something other than a file stands at `place`.
fn check_replaceable(place: &Path) -> io::Result<()> {
    match fs::metadata(place) {
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() => {
            Err(io::Error::new(ErrorKind::InvalidInput, "it is a device or a pipe, not a file"))
        }
        _ => Ok(()),
    }
}

fn create_parent(place: &Path) -> io::Result<PathBuf> {
    let Some(parent) = place.parent() else {
        return Ok(place.into()); // The root of a disk: it exists and cannot be renamed.
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    fs::create_dir_all(parent)?;
    Ok(parent.into())
}

/// Temporary files are private unless told otherwise; results get the user's usual permissions.
fn builder(mode: u32) -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(UNFINISHED);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    #[cfg(not(unix))]
    let _ = mode;
    builder
}

/// Makes renames inside `folder` survive a power cut; only Unix lets a folder be flushed.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        // Some network disks cannot do it and say so; the files themselves are safe.
        match File::open(folder)?.sync_all() {
            Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
            result => result,
        }
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names in a folder, hidden ones too: what a failure may not leave behind.
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
    fn places_that_are_no_files_are_refused() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let error = write_atomic(dir.path(), b"x").expect_err("a folder").to_string();
        assert!(error.contains("it is a folder where a file is expected"), "{error}");
        write_atomic(&dir.path().join("file"), b"x").expect("written");
        let error = write_atomic(&dir.path().join("file/inside"), b"x").expect_err("no folder").to_string();
        assert!(error.contains("a file stands where a folder is expected"), "{error}");
        let error = write_folder(&dir.path().join("file"), &[("a", b"x")]).expect_err("a file").to_string();
        assert!(error.contains("a file stands where a folder is expected"), "{error}");
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
            assert!(error.contains("a file stands where a folder is expected"), "{error}");
        }
        check_file(&dir.path().join("file")).expect("can be replaced");
        let error = check_file(dir.path()).expect_err("a folder").to_string();
        assert!(error.contains("it is a folder where a file is expected"), "{error}");
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
