//! Files in memory, with the interface of the files on disk, for browsers.
//!
//! The host puts files at the paths that recipes name ([`put`]), and takes out the files that were written ([`take`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};

thread_local! {
    static TREE: RefCell<BTreeMap<PathBuf, Vec<u8>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Why a file or folder could not be written. An existing one is unchanged.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", .path.display())]
pub struct Error {
    /// The path as the caller gave it.
    pub path: PathBuf,
    /// Error in the terms of an operating system.
    pub source: io::Error,
}

/// Converts a kind of error into an [`Error`] at `path`.
fn at(path: &Path) -> impl Fn(ErrorKind) -> Error {
    move |kind| Error { path: path.into(), source: kind.into() }
}

/// Normalizes a path: removes `.`, `..` and the root. There is no working directory.
fn place(path: &Path) -> PathBuf {
    let mut place = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => place.push(name),
            Component::ParentDir => drop(place.pop()),
            _ => {}
        }
    }
    place
}

/// Puts a file at `path`.
pub fn put(path: &Path, bytes: Vec<u8>) {
    TREE.with_borrow_mut(|tree| tree.insert(place(path), bytes));
}

/// Removes all files below `folder` and returns them with their paths relative to it.
pub fn take(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = place(folder);
    TREE.with_borrow_mut(|tree| {
        let (below, rest): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(tree).into_iter().partition(|(path, _)| path.starts_with(&folder));
        *tree = rest;
        let inside = |path: PathBuf| path.strip_prefix(&folder).map(Path::to_owned).unwrap_or(path);
        below.into_iter().map(|(path, bytes)| (inside(path), bytes)).collect()
    })
}

/// Reads a whole file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    TREE.with_borrow(|tree| tree.get(&place(path)).cloned()).ok_or_else(|| ErrorKind::NotFound.into())
}

/// Reads at most the first `most` bytes of a file.
pub fn read_start(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = read(path)?;
    bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    Ok(bytes)
}

/// Reads a whole text file.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
}

/// Whether a file is at `path`.
pub fn is_file(path: &Path) -> bool {
    TREE.with_borrow(|tree| tree.contains_key(&place(path)))
}

/// Whether `path` is a folder with contents.
pub fn is_dir(path: &Path) -> bool {
    let folder = place(path);
    TREE.with_borrow(|tree| tree.keys().any(|path| *path != folder && path.starts_with(&folder)))
}

/// Whether a file or folder is at `path`.
pub fn exists(path: &Path) -> bool {
    is_file(path) || is_dir(path)
}

/// Lists the files and folders in a folder, sorted by name.
pub fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    if !is_dir(folder) {
        return Err(ErrorKind::NotFound.into());
    }
    let inside = place(folder);
    let child = |path: &PathBuf| Some(folder.join(path.strip_prefix(&inside).ok()?.components().next()?));
    let mut found: Vec<PathBuf> = TREE.with_borrow(|tree| tree.keys().filter_map(child).collect());
    found.dedup();
    Ok(found)
}

/// Lists the files that match a pattern such as `data/*.jsonl`, sorted by name.
///
/// Fails with [`ErrorKind::InvalidInput`] if the pattern is invalid.
pub fn matching(pattern: &str) -> io::Result<Vec<PathBuf>> {
    let invalid = |e| io::Error::new(ErrorKind::InvalidInput, e);
    let options = glob::MatchOptions {
        require_literal_leading_dot: true,
        require_literal_separator: true,
        ..Default::default()
    };
    let pattern = glob::Pattern::new(&place(Path::new(pattern)).to_string_lossy()).map_err(invalid)?;
    let matches = |path: &&PathBuf| pattern.matches_path_with(path, options);
    Ok(TREE.with_borrow(|tree| tree.keys().filter(matches).cloned().collect()))
}

/// Writes `bytes` to `path`.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    check_file(path)?;
    put(path, bytes.into());
    Ok(())
}

/// [`write_atomic`] for contents that `fill` writes.
pub fn write_atomic_with(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    check_file(path)?;
    let mut bytes = Vec::new();
    fill(&mut bytes).map_err(|source| Error { path: path.into(), source })?;
    put(path, bytes);
    Ok(())
}

/// Moves a file.
pub fn replace(from: &Path, path: &Path) -> Result<(), Error> {
    check_file(path)?;
    let bytes = TREE.with_borrow_mut(|tree| tree.remove(&place(from)));
    put(path, bytes.ok_or_else(|| at(path)(ErrorKind::NotFound))?);
    Ok(())
}

/// A temporary folder, removed with its contents when dropped.
pub struct Temporary(PathBuf);

impl Temporary {
    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        take(&self.0);
    }
}

/// Creates a temporary folder beside `path`, for a file that is checked first.
pub fn beside(path: &Path) -> Result<Temporary, Error> {
    check_file(path)?;
    near(path.parent().unwrap_or(Path::new("")))
}

/// Creates a temporary folder in `dir`, for results that are checked first.
pub fn near(dir: &Path) -> Result<Temporary, Error> {
    check_folder(dir)?;
    let name = |n: usize| dir.join(format!(".unfinished-{n}"));
    let free = (0..).map(name).find(|path| !exists(path)).expect("there are infinitely many numbers");
    Ok(Temporary(free))
}

/// Writes a folder of files. Other files in it stay.
pub fn write_folder(dir: &Path, files: &[(&str, &[u8])]) -> Result<(), Error> {
    check_folder(dir)?;
    files.iter().for_each(|(name, bytes)| put(&dir.join(name), bytes.to_vec()));
    Ok(())
}

/// Removes a folder with its contents.
pub fn remove_folder(dir: &Path) -> Result<(), Error> {
    take(dir);
    Ok(())
}

/// Does nothing: writes in memory cannot be interrupted.
pub fn remove_unfinished(_dir: &Path) -> Result<(), Error> {
    Ok(())
}

/// Fails if a file is at `dir` or at one of its parents.
pub fn check_folder(dir: &Path) -> Result<(), Error> {
    let place = place(dir);
    match place.ancestors().any(is_file) {
        true => Err(at(dir)(ErrorKind::NotADirectory)),
        false => Ok(()),
    }
}

/// Fails if no file can be written to `path`.
pub fn check_file(path: &Path) -> Result<(), Error> {
    if is_dir(path) {
        return Err(at(path)(ErrorKind::IsADirectory));
    }
    check_folder(path.parent().unwrap_or(Path::new(""))).map_err(|e| Error { path: path.into(), ..e })
}
