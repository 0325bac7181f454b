//! The bytes of the file with a teacher's log-probabilities.
//!
//! A header: magic, key, tokens per row, whether they are all, rows. Then blocks, one for each pass of the teacher: their number of rows,
//! the rows, and a digest of the digest before it and the block. So a block is whole or it is not, and stands at its place. A row is the ids
//! of the likeliest tokens as u32, unless they are all, their log-probabilities and that of all others as f16, and the teacher's cross
//! entropy as f32.

use half::f16;
use sha2::{Digest, Sha256};

use crate::data::teacher::TaughtRow;
use crate::train::TaughtToken;

const MAGIC: &[u8; 8] = b"RLTEACH1";
/// Bytes of the header: magic, key, two numbers of 4 bytes, one of 8, a digest.
pub const HEADER: usize = 8 + 64 + 16 + DIGEST;
/// Bytes of a digest.
pub const DIGEST: usize = 32;
/// Bytes before the rows of a block.
pub const BLOCK: usize = 4;

/// Key and sizes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Digest of everything that decides the rows, in hexadecimal.
    pub key: String,
    /// Tokens per row.
    pub top: usize,
    /// Whether these are all tokens of the student.
    pub whole: bool,
    /// Rows of the whole file.
    pub rows: usize,
}

impl Header {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        if self.whole { 2 * self.top + 4 } else { 6 * self.top + 2 + 4 }
    }

    /// Bytes of the file, but for the few of its blocks.
    pub fn bytes(&self) -> u64 {
        (HEADER + self.rows * self.row_bytes()) as u64
    }

    /// For the start of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], self.key.as_bytes()].concat();
        bytes.extend((self.top as u32).to_le_bytes());
        bytes.extend(u32::from(self.whole).to_le_bytes());
        bytes.extend((self.rows as u64).to_le_bytes());
        let digest = Sha256::digest(&bytes);
        bytes.extend(digest);
        bytes
    }

    /// Reads the start of a file; `None` if it is none of these files, or damaged.
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let (fields, digest) = bytes.get(..HEADER)?.split_at(HEADER - DIGEST);
        let (key, numbers) = fields.strip_prefix(MAGIC)?.split_at(64);
        if Sha256::digest(fields).as_slice() != digest {
            return None;
        }
        let (words, _) = numbers.as_chunks::<4>();
        let [top, whole, low, high] = [0, 1, 2, 3].map(|i| u32::from_le_bytes(words[i]));
        let rows = u64::from(low) | u64::from(high) << 32;
        if whole > 1 {
            return None;
        }
        Some(Header {
            key: String::from_utf8(key.to_vec()).ok()?,
            top: top as usize,
            whole: whole == 1,
            rows: usize::try_from(rows).ok()?,
        })
    }

    /// The digest that the first block continues.
    pub fn digest(&self) -> [u8; DIGEST] {
        let bytes = self.to_bytes();
        bytes[HEADER - DIGEST..].try_into().expect("it is the end of the header")
    }

    /// A block of rows, behind the block with the digest `before`.
    pub fn block(&self, tokens: &[TaughtToken], before: &[u8; DIGEST]) -> Vec<u8> {
        let mut bytes = (tokens.len() as u32).to_le_bytes().to_vec();
        tokens.iter().for_each(|token| self.write(token, &mut bytes));
        let digest = next_digest(before, &bytes);
        bytes.extend(digest);
        bytes
    }

    fn write(&self, token: &TaughtToken, bytes: &mut Vec<u8>) {
        let log = |log: f32| f16::from_f32(log.max(f32::from(f16::MIN))).to_le_bytes();
        let TaughtRow { tokens, rest } = &token.row;
        if self.whole {
            let mut logs = vec![f32::NEG_INFINITY; self.top];
            tokens.iter().for_each(|(id, log)| logs[*id as usize] = *log);
            logs.iter().for_each(|&of| bytes.extend(log(of)));
        } else {
            tokens.iter().for_each(|(id, _)| bytes.extend(id.to_le_bytes()));
            tokens.iter().for_each(|(_, of)| bytes.extend(log(*of)));
            bytes.extend(log(rest.unwrap_or(f32::NEG_INFINITY)));
        }
        bytes.extend(token.loss.to_le_bytes());
    }

    /// Reads a row of [`Header::row_bytes`].
    pub fn row(&self, bytes: &[u8]) -> TaughtToken {
        let (rest, loss) = bytes.split_at(bytes.len() - 4);
        let loss = f32::from_le_bytes(loss.try_into().expect("four bytes"));
        let (ids, logs) = rest.split_at(if self.whole { 0 } else { 4 * self.top });
        let (logs, _) = logs.as_chunks::<2>();
        let logs: Vec<f32> = logs.iter().map(|log| f16::from_le_bytes(*log).to_f32()).collect();
        let (ids, _) = ids.as_chunks::<4>();
        let ids: Vec<u32> = match self.whole {
            true => (0..self.top as u32).collect(),
            false => ids.iter().map(|id| u32::from_le_bytes(*id)).collect(),
        };
        let rest = (!self.whole).then(|| logs[self.top]);
        let mut tokens: Vec<(u32, f32)> = ids.into_iter().zip(logs).collect();
        // Stable: the likeliest comes first, and of equal ones that with the smaller id.
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
        TaughtToken { row: TaughtRow { tokens, rest }, loss }
    }
}

/// The digest of a block without it.
pub fn next_digest(before: &[u8; DIGEST], block: &[u8]) -> [u8; DIGEST] {
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(block);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_headers_round_trip() {
        let header = Header { key: "k".repeat(64), top: 3, whole: false, rows: 1 << 33 };
        assert_eq!(Header::read(&header.to_bytes()), Some(header.clone()));
        let mut damaged = header.to_bytes();
        damaged[80] ^= 1;
        assert_eq!(Header::read(&damaged), None);
        let tokens = vec![(9, -0.5), (2, -1.25), (4, -2.0)];
        let token = TaughtToken { row: TaughtRow { tokens, rest: Some(-3.5) }, loss: 1.75 };
        let block = header.block(std::slice::from_ref(&token), &header.digest());
        assert_eq!(block.len(), BLOCK + header.row_bytes() + DIGEST);
        assert_eq!(header.row(&block[BLOCK..][..header.row_bytes()]), token);
        let whole = Header { whole: true, ..header };
        let token = TaughtToken {
            row: TaughtRow { tokens: vec![(1, -0.5), (0, -1.0), (2, -70000.0)], rest: None },
            loss: 0.5,
        };
        let block = whole.block(std::slice::from_ref(&token), &whole.digest());
        let read = whole.row(&block[BLOCK..][..whole.row_bytes()]);
        assert_eq!((read.row.tokens[0], read.row.tokens[2], read.row.rest), ((1, -0.5), (2, -65504.0), None));
    }
}
