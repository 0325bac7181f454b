//! Files with a teacher's log-probabilities: written block by block, continued after an interruption, and read by row.

use std::io::{self, Read};

use super::format::{BLOCK, DIGEST, Header, next_digest};

/// Position of a block in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Block {
    /// Its first row.
    first: usize,
    /// Its rows.
    rows: usize,
    /// Byte of its first row.
    at: u64,
}

/// The whole blocks of a file.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// The header.
    pub header: Header,
    blocks: Vec<Block>,
    /// Byte behind the last one.
    pub end: u64,
    /// Digest of the last one.
    pub digest: [u8; DIGEST],
}

impl Blocks {
    /// No blocks behind the header.
    pub fn none(header: Header) -> Blocks {
        let (end, digest) = (header.to_bytes().len() as u64, header.digest());
        Blocks { header, blocks: Vec::new(), end, digest }
    }

    /// Reads and checks blocks behind the header, up to the first that is not whole.
    pub fn read(header: Header, from: &mut impl Read) -> io::Result<Blocks> {
        let mut found = Blocks::none(header);
        while found.rows() < found.header.rows {
            let mut block = vec![0; BLOCK];
            if !fill(from, &mut block)? {
                break;
            }
            let rows = u32::from_le_bytes(block[..BLOCK].try_into().expect("four bytes")) as usize;
            if rows == 0 || rows > found.header.rows - found.rows() {
                break;
            }
            // A number that is wrong takes no more memory than there are bytes.
            let size = (rows as u64).saturating_mul(found.header.row_bytes() as u64);
            from.by_ref().take(size).read_to_end(&mut block)?;
            let mut digest = [0; DIGEST];
            if (block.len() - BLOCK) as u64 != size || !fill(from, &mut digest)? {
                break;
            }
            if next_digest(&found.digest, &block) != digest {
                break;
            }
            found.add(rows, digest);
        }
        Ok(found)
    }

    /// Notes a block of `rows` rows.
    pub fn add(&mut self, rows: usize, digest: [u8; DIGEST]) {
        let at = self.end + BLOCK as u64;
        self.blocks.push(Block { first: self.rows(), rows, at });
        self.end = at + (rows * self.header.row_bytes() + DIGEST) as u64;
        self.digest = digest;
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.first + block.rows)
    }

    /// Whether all rows are there.
    pub fn is_complete(&self) -> bool {
        self.rows() == self.header.rows
    }

    /// Byte of a row that is there.
    pub fn place(&self, row: usize) -> u64 {
        let index = self.blocks.partition_point(|block| block.first + block.rows <= row);
        let block = &self.blocks[index];
        block.at + ((row - block.first) * self.header.row_bytes()) as u64
    }
}

/// Fills `bytes`; false at the end of the file.
fn fill(from: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::teacher::TaughtRow;
    use crate::train::TaughtToken;

    #[test]
    fn blocks_are_read_up_to_the_first_that_is_damaged() {
        let header = Header { key: "0".repeat(64), top: 1, whole: false, rows: 5 };
        let token = |n: u32| TaughtToken {
            row: TaughtRow { tokens: vec![(n, -0.5)], rest: Some(-1.0) },
            loss: n as f32,
        };
        let (mut bytes, mut blocks) = (Vec::new(), Blocks::none(header.clone()));
        for of in [0..2u32, 2..3, 3..5] {
            let tokens: Vec<TaughtToken> = of.map(token).collect();
            let block = header.block(&tokens, &blocks.digest);
            blocks.add(tokens.len(), block[block.len() - DIGEST..].try_into().expect("a digest"));
            bytes.extend(block);
        }
        let read = |bytes: &[u8]| Blocks::read(header.clone(), &mut &bytes[..]).expect("memory");
        let found = read(&bytes);
        assert!(found.is_complete() && found.end == blocks.end && found.digest == blocks.digest);
        let whole = [header.to_bytes(), bytes.clone()].concat();
        for row in 0..5 {
            let at = found.place(row) as usize;
            assert_eq!(header.row(&whole[at..][..header.row_bytes()]), token(row as u32));
        }
        for cut in 0..bytes.len() {
            let rows = read(&bytes[..cut]).rows();
            assert!([0, 2, 3].contains(&rows), "{rows} rows of {cut} bytes");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert!(!read(&damaged).is_complete(), "byte {at}");
        }
    }
}
