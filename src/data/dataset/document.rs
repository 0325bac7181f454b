//! A file of plain text, `.txt` or `.md`: one text, or as many parts of it as `max_seq_len` requires. Every token is a loss
//! token. Each part starts with `<bos>`, if the vocabulary has it, and the last one ends with `<eos>`. Text that spells a control token stays text.

use rayon::prelude::*;

use super::Options;
use super::error::Problem;
use crate::data::template::Rendered;
use crate::data::tokenizer::{Special, Tokenizer};

/// Bytes that are tokenized at a time, at least.
const BLOCK: usize = 1 << 16;

/// The parts of a file's text, in order.
pub(super) fn parts(
    bytes: &[u8],
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<Vec<Rendered>, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|error| Problem::Utf8(error.valid_up_to() + 1))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).trim();
    if text.is_empty() {
        return Err(Problem::EmptyFile);
    }
    let encode = |block: &&str| tokenizer.encode(block, Special::Plain);
    let mut ids = blocks(text).par_iter().map(encode).collect::<Vec<_>>().concat();
    ids.push(tokenizer.end_of_text());
    let room = options.max_seq_len.saturating_sub(1).max(1);
    let mut parts = Vec::new();
    let mut rest = &ids[..];
    while !rest.is_empty() {
        let even = rest.len().div_ceil(rest.len().div_ceil(room));
        let (part, others) =
            rest.split_at(if even < rest.len() { at_line_end(rest, even, tokenizer) } else { even });
        rest = others;
        let ids: Vec<u32> = tokenizer.bos().into_iter().chain(part.iter().copied()).collect();
        let labels = ids.iter().map(|&id| id as i32).collect();
        parts.push(Rendered { ids, labels, ..Rendered::default() });
    }
    if let Some(first) = parts.first_mut() {
        first.unwritten = tokenizer.unwritable(text);
    }
    Ok(parts)
}

/// The end of the last line within the last quarter of the first `most` tokens, otherwise `most`.
fn at_line_end(ids: &[u32], most: usize, tokenizer: &Tokenizer) -> usize {
    let ends = |&end: &usize| tokenizer.token_bytes(ids[end - 1]).ends_with(b"\n");
    (most - most / 4..=most).rev().filter(|end| *end > 0).find(ends).unwrap_or(most)
}

/// The text in blocks that end after a run of newlines, where no token crosses.
fn blocks(text: &str) -> Vec<&str> {
    let (mut blocks, mut start) = (Vec::new(), 0);
    let bytes = text.as_bytes();
    for at in 1..bytes.len() {
        if at - start >= BLOCK && bytes[at - 1] == b'\n' && bytes[at] != b'\n' {
            blocks.push(&text[start..at]);
            start = at;
        }
    }
    blocks.push(&text[start..]);
    blocks
}
