//! Files that are not samples but that people have in the place of samples, recognized by their first bytes.

use super::error::Problem;

/// First bytes, the kind of file, and how to convert it.
const KINDS: [(&[u8], &str, &str); 8] = [
    (b"PK\x03\x04", "a ZIP archive or an Excel file", "export the sheet as CSV, or unpack the archive"),
    (
        b"ARROW1",
        "an Arrow file",
        "convert it: python -c \"from datasets import Dataset; Dataset.from_file('FILE').to_parquet('data.parquet')\"",
    ),
    (
        &[0xff, 0xff, 0xff, 0xff],
        "an Arrow stream",
        "convert it: python -c \"from datasets import Dataset; Dataset.from_file('FILE').to_parquet('data.parquet')\"",
    ),
    (b"BZh", "compressed with bzip2", "decompress it, or use gzip or zstd"),
    (b"\xfd7zXZ", "compressed with xz", "decompress it, or use gzip or zstd"),
    (b"%PDF", "a PDF", "save its text as .txt"),
    (b"SQLite format 3", "an SQLite database", "export the table as CSV"),
    (b"GGUF", "a GGUF file", "name it in model.base if it is the model"),
];

/// Fails for a file of a kind that is not read, and for UTF-16.
pub(super) fn check(bytes: &[u8]) -> Result<(), Problem> {
    if let Some((_, kind, advice)) = KINDS.iter().find(|(start, ..)| bytes.starts_with(start)) {
        return Err(Problem::Foreign { kind, advice });
    }
    let marked = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    let zeros = |odd: usize| bytes.iter().skip(odd).step_by(2).take(32).all(|&b| b == 0) && bytes.len() > 8;
    if marked || zeros(0) || zeros(1) {
        return Err(Problem::Utf16);
    }
    Ok(())
}
