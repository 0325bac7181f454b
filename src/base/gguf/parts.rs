//! Models in several files, as `llama-gguf-split` writes them: mapped one behind another, so that they are one file for whoever reads.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::parse::{Parsed, parse};
use super::value::FromValue;

/// Files in a row in memory. Each begins at a page; the bytes between them are zero.
pub(super) struct Region {
    start: *mut libc::c_void,
    length: usize,
}

// SAFETY: the memory is only read, and nobody else knows of it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region was reserved in `map`, and nothing borrows it any more.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

impl Region {
    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: every page was mapped for reading in `map`, and stays so as long as the region.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.length) }
    }

    /// Lets the system drop the pages of these bytes, which stay readable: it reads them from disk again.
    pub fn release(&self, bytes: Range<usize>) {
        // SAFETY: it only asks.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let start = bytes.start / page * page;
        // SAFETY: the pages are within the region, read-only, and backed by their files or zero, so they come back with the same bytes. A
        // failure means only that they stay.
        unsafe {
            libc::madvise(self.start.byte_add(start), bytes.end.saturating_sub(start), libc::MADV_DONTNEED)
        };
    }

    /// Maps files one behind another. Returns where each of them begins, and its length.
    fn map(files: &[File]) -> io::Result<(Region, Vec<(usize, usize)>)> {
        // SAFETY: it only asks.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let (mut places, mut length) = (Vec::new(), 0);
        for file in files {
            let bytes = file.metadata()?.len() as usize;
            if bytes == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is empty"));
            }
            places.push((length, bytes));
            length += bytes.next_multiple_of(page);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new region, which replaces nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let region = Region { start, length };
        for (file, (at, bytes)) in files.iter().zip(&places) {
            let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
            // SAFETY: the pages are within the region that was just reserved. That nobody truncates the file is what every user of a mapped
            // model file relies on, and is stated at `Gguf::open`.
            let mapped = unsafe {
                libc::mmap(region.start.byte_add(*at), *bytes, libc::PROT_READ, flags, file.as_raw_fd(), 0)
            };
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        Ok((region, places))
    }
}

/// A problem with one of the files.
pub(super) enum Problem {
    Io(PathBuf, io::Error),
    Damaged(PathBuf, String),
}

/// Opens all parts of a model whose first part was parsed as `first`. Ranges of tensors are those in the region.
pub(super) fn open(paths: &[PathBuf], mut first: Parsed) -> Result<(Region, Parsed), Problem> {
    let open = |path: &PathBuf| File::open(path).map_err(|error| Problem::Io(path.clone(), error));
    let files: Vec<File> = paths.iter().map(open).collect::<Result<_, _>>()?;
    let (region, places) = Region::map(&files).map_err(|error| Problem::Io(paths[0].clone(), error))?;
    check_number(&paths[0], &first, 0)?;
    for (index, (path, (at, length))) in paths.iter().zip(&places).enumerate().skip(1) {
        let damaged = |problem: String| Problem::Damaged(path.clone(), problem);
        let bytes = &region.bytes()[*at..at + length];
        let part =
            parse(bytes, *length as u64).expect("the header ends within the whole file").map_err(damaged)?;
        check_number(path, &part, index)?;
        for mut tensor in part.tensors {
            let range = &mut tensor.range;
            (range.start, range.end) = (range.start + *at as u64, range.end + *at as u64);
            if first.names.insert(tensor.name.clone(), first.tensors.len()).is_some() {
                let problem =
                    format!("tensor {} is in another part too; download the parts again", tensor.name);
                return Err(damaged(problem));
            }
            first.tensors.push(tensor);
        }
    }
    let all = first.keys.get("split.tensors.count").and_then(|&at| u64::from_value(&first.metadata[at].1));
    if let Some(all) = all.filter(|all| *all != first.tensors.len() as u64) {
        let problem = format!(
            "the parts have {} tensors, expected {all} by the metadata; download the parts again",
            first.tensors.len()
        );
        return Err(Problem::Damaged(paths[0].clone(), problem));
    }
    // Whoever reads or writes the model sees one file.
    first.metadata.retain(|(key, _)| !key.starts_with("split."));
    first.keys = first.metadata.iter().enumerate().map(|(index, (key, _))| (key.clone(), index)).collect();
    Ok((region, first))
}

/// Refuses a part of another place, or of another model, under this name.
fn check_number(path: &Path, part: &Parsed, index: usize) -> Result<(), Problem> {
    match number(part).filter(|number| *number != index as u64) {
        None => Ok(()),
        Some(number) => {
            let problem = format!(
                "is part {} by its metadata, expected part {} by its name; download the parts again",
                number + 1,
                index + 1
            );
            Err(Problem::Damaged(path.into(), problem))
        }
    }
}

/// The files of all `count` parts, if `path` is one of them by its name.
pub(super) fn beside(path: &Path, count: u32) -> Option<Vec<PathBuf>> {
    let name = path.file_name()?.to_str().filter(|name| name.to_ascii_lowercase().ends_with(".gguf"))?;
    let names = crate::base::stores::parts(name).into_iter();
    let paths: Vec<PathBuf> = names.map(|name| path.with_file_name(name)).collect();
    (paths.len() == count as usize).then_some(paths)
}

/// The problem of a model one of whose parts is not beside the others.
pub(super) fn missing(paths: &[PathBuf]) -> Option<String> {
    let missing = paths.iter().find(|path| !path.is_file())?;
    Some(format!(
        "is one of {} parts of a model, and {} is missing, expected all parts in one folder; download that part too, or name a \
         model in one file, which `llama-gguf-split --merge` makes",
        paths.len(),
        missing.display()
    ))
}

/// The number of a part by its metadata, from 0 on.
fn number(part: &Parsed) -> Option<u64> {
    part.keys.get("split.no").and_then(|&at| u64::from_value(&part.metadata[at].1))
}
