//! Sizes of the pages of a Parquet file, from their headers. The `parquet` crate allocates them before it decompresses a page, whatever
//! the file's metadata says.

use std::ops::Range;

/// Thrift's compact protocol: kinds of fields.
const STOP: u8 = 0;
const I32: u8 = 5;
/// Maximum nesting of a header's structures; Parquet's have three levels.
const MAX_DEPTH: usize = 8;

/// The sum of the sizes, once decompressed, of all pages in the bytes `chunk` of `file`. `None` if a header is damaged.
pub(super) fn uncompressed_size(file: &[u8], chunk: Range<u64>) -> Option<u64> {
    let chunk = usize::try_from(chunk.start).ok()?..usize::try_from(chunk.end).ok()?;
    let mut rest = file.get(chunk)?;
    let mut sum = 0u64;
    while !rest.is_empty() {
        let mut header = Compact { rest };
        let [_, uncompressed, compressed] = header.sizes()?;
        sum = sum.saturating_add(uncompressed);
        rest = header.rest.get(usize::try_from(compressed).ok()?..)?;
    }
    Some(sum)
}

/// A reader of Thrift's compact protocol.
struct Compact<'a> {
    rest: &'a [u8],
}

impl Compact<'_> {
    /// Reads the header of a page. Returns its kind, and its sizes decompressed and in the file.
    fn sizes(&mut self) -> Option<[u64; 3]> {
        let (mut id, mut found) = (0, [None; 3]);
        loop {
            let kind = self.field(&mut id)?;
            match (kind, id) {
                (STOP, _) => break,
                (I32, 1..=3) => found[id as usize - 1] = Some(u64::try_from(self.integer()?).ok()?),
                _ => self.skip(kind, 0)?,
            }
        }
        let [Some(kind), Some(uncompressed), Some(compressed)] = found else { return None };
        Some([kind, uncompressed, compressed])
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// The kind of the next field; `id` becomes its number.
    fn field(&mut self, id: &mut i64) -> Option<u8> {
        let byte = self.byte()?;
        let kind = byte & 15;
        *id = match byte >> 4 {
            _ if kind == STOP => 0,
            0 => self.integer()?,
            more => id.checked_add(more.into())?,
        };
        Some(kind)
    }

    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(value);
            }
        }
        None
    }

    fn integer(&mut self) -> Option<i64> {
        let bits = self.unsigned()?;
        Some((bits >> 1) as i64 ^ -((bits & 1) as i64))
    }

    fn bytes(&mut self, count: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(count).ok()?..)?;
        Some(())
    }

    /// Skips a value in a structure, where the kind of a truth value is the value itself.
    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match kind {
            1 | 2 => Some(()),
            3 => self.bytes(1),
            4..=6 => self.unsigned().map(drop),
            7 => self.bytes(8),
            8 => self.unsigned().and_then(|length| self.bytes(length)),
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.unsigned()? } else { (head >> 4).into() };
                (0..count).try_for_each(|_| self.item(head & 15, depth))
            }
            11 => {
                let count = self.unsigned()?;
                let kinds = if count == 0 { 0 } else { self.byte()? };
                (0..count).try_for_each(|_| {
                    self.item(kinds >> 4, depth)?;
                    self.item(kinds & 15, depth)
                })
            }
            12 => {
                let mut id = 0;
                loop {
                    match self.field(&mut id)? {
                        STOP => return Some(()),
                        kind => self.skip(kind, depth + 1)?,
                    }
                }
            }
            13 => self.bytes(16),
            _ => None,
        }
    }

    /// Skips a value in a list or a map, where a truth value takes a byte.
    fn item(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            1 | 2 => self.bytes(1),
            kind => self.skip(kind, depth + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::uncompressed_size;

    /// A header with the sizes 300 and 3, a boolean, a text and a nested structure with a list of booleans.
    const HEADER: [u8; 18] =
        [0x15, 0, 0x15, 0xd8, 0x04, 0x15, 6, 0x11, 0x18, 1, b'x', 0x1c, 0x19, 0x21, 1, 2, STOP, STOP];
    const STOP: u8 = super::STOP;

    #[test]
    fn the_sizes_of_all_pages_are_added() {
        let page = [&HEADER[..], b"abc"].concat();
        let file = [b"PAR1", &page[..], &page].concat();
        let size = |end: usize| uncompressed_size(&file, 4..end as u64);
        assert_eq!(size(4), Some(0));
        assert_eq!(size(4 + page.len()), Some(300));
        assert_eq!(size(4 + 2 * page.len()), Some(600));
        for end in 5..4 + page.len() {
            assert_eq!(size(end), None, "{end}");
        }
        assert_eq!(size(file.len() + 1), None);
        assert_eq!(uncompressed_size(&file, 9..u64::MAX), None);
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = [&[0x15, 0, 0x15, 2, 0x15, 0][..], &[0x1c; 100_000]].concat();
        assert_eq!(uncompressed_size(&deep, 0..deep.len() as u64), None);
    }
}
