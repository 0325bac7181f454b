//! Files that are not samples but that people have in the place of samples, recognized by their first bytes.

use super::error::Problem;

/// First bytes, the kind of file, and how to convert it.
const KINDS: [(&[u8], &str, &str); 15] = [
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
    (b"{\\rtf", "a document in RTF", "save its text as .txt"),
    (b"\xd0\xcf\x11\xe0", "an old Word or Excel file", "save its text as .txt, or the sheet as CSV"),
    (b"\x89PNG", "a picture", PICTURE),
    (b"\xff\xd8\xff", "a picture", PICTURE),
    (b"GIF8", "a picture", PICTURE),
    (b"ID3\x04", "a recording", "write down what is said in it"),
    (b"ID3\x03", "a recording", "write down what is said in it"),
    (b"\0\0\0\x1cftyp", "a video", "write down what is said in it"),
    (b"SQLite format 3", "an SQLite database", "export the table as CSV"),
    (b"GGUF", "a GGUF file", "name it in model.base if it is the model"),
];

/// Advice for pictures.
const PICTURE: &str = "samples are text: type what is in it";

/// Folders in ZIP archives that are documents, their kind, and how to convert it.
const ARCHIVES: [(&[u8], &str, &str); 4] = [
    (b"word/", "a Word document", "save its text as .txt"),
    (b"xl/", "an Excel file", "save the sheet as CSV"),
    (b"ppt/", "a PowerPoint file", "save its text as .txt"),
    (b"content.xml", "a LibreOffice document", "save its text as .txt, or the sheet as CSV"),
];

/// The kind of a ZIP archive, and how to convert it. Its list of files is at its end.
fn archive(bytes: &[u8]) -> (&'static str, &'static str) {
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    let found = ARCHIVES.iter().find(|(part, ..)| has(part));
    found.map_or(("a ZIP archive", "unpack it"), |(_, kind, advice)| (kind, advice))
}

/// Fails for a file of a kind that is not read, and for UTF-16.
pub(super) fn check(bytes: &[u8]) -> Result<(), Problem> {
    if bytes.starts_with(b"PK\x03\x04") {
        let (kind, advice) = archive(bytes);
        return Err(Problem::Foreign { kind, advice });
    }
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
