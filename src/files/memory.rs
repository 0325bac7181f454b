//! The same as the native `files`, over a tree in memory, for where there is no disk: a browser.
//!
//! Whoever runs the library puts files here by the paths that recipes name ([`put`]), and takes out what was written ([`take`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};

thread_local! {
    static TREE: RefCell<BTreeMap<PathBuf, Vec<u8>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Why something could not be written. What stood in its place still stands there.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", .path.display())]
pub struct Error {
    /// The path as the caller gave it.
    pub path: PathBuf,
    /// The reason.
    pub source: io::Error,
}

/// Turns a reason into an [`Error`] at `path`.
fn at(path: &Path) -> impl Fn(ErrorKind) -> Error {
    move |kind| Error { path: path.into(), source: kind.into() }
}

/// A path without `.`, `..` and a root: there is one tree and no working directory.
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

/// Takes all files below `folder` out, by their paths from there.
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

/// A whole file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    TREE.with_borrow(|tree| tree.get(&place(path)).cloned()).ok_or_else(|| ErrorKind::NotFound.into())
}

/// At most the first `most` bytes of a file.
pub fn read_start(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = read(path)?;
    bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    Ok(bytes)
}

/// A whole file of text.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
}

/// Whether a file is at `path`.
pub fn is_file(path: &Path) -> bool {
    TREE.with_borrow(|tree| tree.contains_key(&place(path)))
}

/// Whether `path` is a folder that holds something.
pub fn is_dir(path: &Path) -> bool {
    let folder = place(path);
    TREE.with_borrow(|tree| tree.keys().any(|path| *path != folder && path.starts_with(&folder)))
}

/// Whether anything is at `path`.
pub fn exists(path: &Path) -> bool {
    is_file(path) || is_dir(path)
}

/// What a folder holds, files and folders, by name.
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

/// The files that match a pattern such as `data/*.jsonl`, by name.
///
/// Fails with [`ErrorKind::InvalidInput`] where it is no pattern.
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

/// Puts `bytes` at `path`.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    check_file(path)?;
    put(path, bytes.into());
    Ok(())
}

/// [`write_atomic`] of what `fill` writes.
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

/// A folder that goes, with what is in it, when this is dropped.
pub struct Temporary(PathBuf);

impl Temporary {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        take(&self.0);
    }
}

/// A folder beside `path` for a file that must be looked at first.
pub fn beside(path: &Path) -> Result<Temporary, Error> {
    check_file(path)?;
    near(path.parent().unwrap_or(Path::new("")))
}

/// A folder of our own in `dir` for results that must be looked at first.
pub fn near(dir: &Path) -> Result<Temporary, Error> {
    check_folder(dir)?;
    let name = |n: usize| dir.join(format!(".unfinished-{n}"));
    let free = (0..).map(name).find(|path| !exists(path)).expect("numbers do not end");
    Ok(Temporary(free))
}

/// Writes a folder of files; others in it stay.
pub fn write_folder(dir: &Path, files: &[(&str, &[u8])]) -> Result<(), Error> {
    check_folder(dir)?;
    files.iter().for_each(|(name, bytes)| put(&dir.join(name), bytes.to_vec()));
    Ok(())
}

/// Removes a folder and what is in it.
pub fn remove_folder(dir: &Path) -> Result<(), Error> {
    take(dir);
    Ok(())
}

/// Nothing is ever unfinished here.
pub fn remove_unfinished(_dir: &Path) -> Result<(), Error> {
    Ok(())
}

/// Fails where a file stands in the place of the folder `dir` or above it.
pub fn check_folder(dir: &Path) -> Result<(), Error> {
    let place = place(dir);
    match place.ancestors().any(is_file) {
        true => Err(at(dir)(ErrorKind::NotADirectory)),
        false => Ok(()),
    }
}

/// Fails where a file at `path` would have no place.
pub fn check_file(path: &Path) -> Result<(), Error> {
    if is_dir(path) {
        return Err(at(path)(ErrorKind::IsADirectory));
    }
    check_folder(path.parent().unwrap_or(Path::new(""))).map_err(|e| Error { path: path.into(), ..e })
}
