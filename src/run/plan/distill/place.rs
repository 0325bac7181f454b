//! The file of a run's teacher: where it is, how much of it is there.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::file::Blocks;
use super::format::{HEADER, Header};
use super::lessons::{Bytes, Rows};
use super::pass::{Sink, of_file};
use crate::files;
use crate::recipe::Recipe;
use crate::train::TrainError;
use crate::words;

/// The file in the run's folder.
pub const FILE: &str = "teacher.bin";

/// A file that is not complete.
pub struct Unfinished {
    /// The blocks that are there.
    pub blocks: Blocks,
    /// The part.
    pub sink: Sink,
    place: PathBuf,
}

/// The state of a file.
pub enum Place {
    /// All rows are there.
    Complete(Arc<Rows>),
    /// Some are missing. The message tells why a file that was there does not count.
    Unfinished(Box<Unfinished>, Option<String>),
}

/// The path of the file of a run.
pub fn path(recipe: &Recipe) -> PathBuf {
    let named = recipe.distill.as_ref().and_then(|keys| keys.file.clone());
    named.unwrap_or_else(|| recipe.output.dir.join(FILE))
}

/// Opens the file of a run, or the part of it that is there. Fails for a file that is damaged or none of a teacher, and for one of something
/// else that the recipe names.
pub fn open(recipe: &Recipe, header: &Header) -> Result<Place, TrainError> {
    let path = path(recipe);
    let is_named = recipe.distill.as_ref().is_some_and(|keys| keys.file.is_some());
    let shown = path.display();
    let mut notice = None;
    if files::is_file(&path) {
        let (found, mut reader) = start(&path)?;
        let Some(found) = found else {
            return Err(TrainError::Teacher(format!(
                "{shown} is not a file of a teacher's log-probabilities, or is damaged at its start; remove it, or name another file as \
                 distill.file"
            )));
        };
        if found == *header {
            let blocks = Blocks::read(found, &mut reader).map_err(|e| unreadable(&path, &e))?;
            let length = reader.get_ref().metadata().map_err(|e| unreadable(&path, &e))?.len();
            if !blocks.is_complete() || length != blocks.end {
                return Err(TrainError::Teacher(format!(
                    "{shown} is damaged behind byte {}: {} of {} rows are sound; remove it, and the teacher runs again",
                    blocks.end,
                    blocks.rows(),
                    blocks.header.rows
                )));
            }
            let file = Mutex::new(reader.into_inner());
            return Ok(Place::Complete(Arc::new(Rows::new(blocks, Bytes::Disk(file, shown.to_string())))));
        }
        let of = "is of another teacher, other samples, or other settings of [distill]";
        if is_named {
            return Err(TrainError::Teacher(format!(
                "{shown} {of}; remove it, or name another file as distill.file"
            )));
        }
        notice = Some(format!("{shown} {of}, and is replaced"));
    }
    Ok(Place::Unfinished(Box::new(part(path, header)?), notice))
}

fn part(place: PathBuf, header: &Header) -> Result<Unfinished, TrainError> {
    let mut name = place.as_os_str().to_owned();
    name.push(".part");
    let path = PathBuf::from(name);
    let mut part = files::PartFile::open(path.clone()).map_err(of_file)?;
    let (found, mut reader) = start(&path)?;
    let blocks = match found {
        Some(found) if found == *header => {
            let blocks = Blocks::read(found, &mut reader).map_err(|e| unreadable(&path, &e))?;
            part.keep(blocks.end).map_err(of_file)?;
            blocks
        }
        _ => {
            part.clear().map_err(of_file)?;
            Blocks::none(header.clone())
        }
    };
    check_space(&place, header.bytes().saturating_sub(part.length()))?;
    if part.length() == 0 {
        part.append(&header.to_bytes()).map_err(of_file)?;
    }
    Ok(Unfinished { blocks, sink: Sink::Part(part), place })
}

impl Unfinished {
    /// Puts the complete file in its place.
    pub fn finish(self) -> Result<(), TrainError> {
        match self.sink {
            Sink::Part(part) => part.finish(&self.place).map_err(of_file),
            Sink::Memory(_) => Ok(()),
        }
    }
}

/// The header of a file, and a reader behind it.
fn start(path: &Path) -> Result<(Option<Header>, BufReader<std::fs::File>), TrainError> {
    let open = || {
        let mut reader = BufReader::with_capacity(1 << 20, files::open(path)?);
        let mut bytes = Vec::new();
        reader.by_ref().take(HEADER as u64).read_to_end(&mut bytes)?;
        Ok((Header::read(&bytes), reader))
    };
    open().map_err(|e| unreadable(path, &e))
}

fn unreadable(path: &Path, error: &std::io::Error) -> TrainError {
    TrainError::Teacher(format!("cannot read {}: {error}; check the disk and try again", path.display()))
}

fn check_space(place: &Path, needed: u64) -> Result<(), TrainError> {
    let existing = place.ancestors().skip(1).find(|p| p.is_dir()).unwrap_or(Path::new("."));
    // A file system that does not report its free space does not stop the run.
    let Ok(free) = files::available_space(existing) else { return Ok(()) };
    if free >= needed {
        return Ok(());
    }
    Err(TrainError::Teacher(format!(
        "{} has {} free, but the teacher's log-probabilities need {}; free some space, lower distill.top_k, or name a file on another disk \
         as distill.file",
        existing.display(),
        words::bytes(free),
        words::bytes(needed)
    )))
}
