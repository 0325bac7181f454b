//! A teacher's log-probabilities by sample.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex};

use super::file::Blocks;
use crate::data::batch::Sample;
use crate::data::teacher::TeacherRows;
use crate::train::{TaughtToken, TrainError};

/// The bytes of a file.
pub enum Bytes {
    /// In memory.
    Memory(Vec<u8>),
    /// On disk, with its path for messages.
    Disk(Mutex<File>, String),
}

/// All rows of a file.
pub struct Rows {
    blocks: Blocks,
    bytes: Bytes,
}

impl Rows {
    /// The rows of a complete file.
    pub fn new(blocks: Blocks, bytes: Bytes) -> Rows {
        Rows { blocks, bytes }
    }

    /// Reads `count` rows from `first` on. A sample's rows are in one block.
    fn read(&self, first: usize, count: usize) -> Result<Vec<TaughtToken>, TrainError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let header = &self.blocks.header;
        let (at, size) = (self.blocks.place(first), header.row_bytes());
        let mut bytes = vec![0; count * size];
        self.fill(at, &mut bytes).map_err(|e| {
            let name = if let Bytes::Disk(_, name) = &self.bytes { name } else { "memory" };
            TrainError::Teacher(format!(
                "{name} cannot be read any more: {e}; check the disk and run the same command again"
            ))
        })?;
        Ok(bytes.chunks_exact(size).map(|row| header.row(row)).collect())
    }

    fn fill(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        match &self.bytes {
            Bytes::Memory(all) => {
                let all = all.get(at as usize..).and_then(|rest| rest.get(..bytes.len()));
                bytes.copy_from_slice(all.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Bytes::Disk(file, _) => {
                let mut file = file.lock().map_err(|_| io::ErrorKind::Other)?;
                file.seek(SeekFrom::Start(at))?;
                file.read_exact(bytes)
            }
        }
    }
}

/// The rows of some samples.
#[derive(Clone)]
pub struct Lessons {
    rows: Arc<Rows>,
    /// The first row of each sample; `None` for samples that the teacher has not read.
    places: Vec<Option<usize>>,
}

impl Lessons {
    /// The lessons of samples whose first rows are `places`.
    pub fn new(rows: &Arc<Rows>, places: Vec<Option<usize>>) -> Lessons {
        Lessons { rows: rows.clone(), places }
    }

    /// The teacher's probabilities at the loss tokens of sample `index`.
    pub fn of(&self, index: usize, sample: &Sample) -> Result<Vec<TaughtToken>, TrainError> {
        match self.places.get(index).copied().flatten() {
            Some(first) => self.rows.read(first, sample.loss_tokens()),
            None => Err(TrainError::Teacher(format!(
                "the teacher has not read the sample of {}; start over with --fresh",
                sample.origin
            ))),
        }
    }

    /// The teacher's distributions for the loss rows of some samples.
    pub fn rows<'s>(
        &self,
        samples: impl IntoIterator<Item = (usize, &'s Sample)>,
    ) -> Result<TeacherRows, TrainError> {
        let header = &self.rows.blocks.header;
        let mut rows = TeacherRows::unknown(header.top, header.whole);
        for (index, sample) in samples {
            self.of(index, sample)?.into_iter().for_each(|token| rows.push(token.row));
        }
        Ok(rows)
    }
}
