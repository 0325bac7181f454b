//! Changes of texts: lines, words, numbers, brackets, quotes.

use super::bytes;
use crate::rng::Rng;

const NUMBERS: [&str; 18] = [
    "0",
    "-1",
    "1e309",
    "-1e309",
    "NaN",
    "inf",
    "1e39",
    "1e-320",
    "-0.0",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
    "0.1e",
    "0x10",
    "1_000",
    "1e400000",
    "2305843009213693955",
];
const WORDS: [&str; 26] = [
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "\\u0000",
    "\\ud800",
    "\u{feff}",
    "\u{fdd0}",
    "\r\n",
    "\0",
    "é",
    "🦀",
    "\"\"\"",
    "<|channel>thought\n",
    "<channel|>",
    "<|tool_call>call:f{a:",
    "<tool_call|>",
    "<|\"|>",
    "<|turn>",
    "<turn|>",
    "{% for i in range(99999999) %}",
    "{{ messages }}",
    "{%- endif -%}",
    "{% generation %}",
    "{{ 'a' * 99999999 }}",
];

/// A changed copy.
pub fn mutate(rng: &mut Rng, input: Vec<u8>) -> Vec<u8> {
    let Ok(text) = String::from_utf8(input) else {
        return bytes::mutate(rng, b"{}".to_vec());
    };
    let change = [number, word, lines, lines, token, nest, flood];
    let changed = rng.pick(&change)(rng, &text);
    changed.into_bytes()
}

/// A place between two characters.
fn place(rng: &mut Rng, text: &str) -> usize {
    let at = rng.below(text.len() + 1);
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn insert(text: &str, at: usize, new: &str) -> String {
    [&text[..at], new, &text[at..]].concat()
}

/// Replaces a number.
fn number(rng: &mut Rng, text: &str) -> String {
    let is_digit = |c: char| c.is_ascii_digit();
    let starts: Vec<usize> = text.match_indices(is_digit).map(|(at, _)| at).collect();
    if starts.is_empty() {
        return word(rng, text);
    }
    let start = *rng.pick(&starts);
    let rest = &text[start..];
    let end = start + rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len());
    [&text[..start], *rng.pick(&NUMBERS), &text[end..]].concat()
}

/// Inserts a word.
fn word(rng: &mut Rng, text: &str) -> String {
    let at = place(rng, text);
    let word: &str = WORDS[rng.below(WORDS.len())];
    insert(text, at, word)
}

/// Removes, doubles, swaps or joins lines.
fn lines(rng: &mut Rng, text: &str) -> String {
    let mut lines: Vec<&str> = text.split('\n').collect();
    let (a, b) = (rng.below(lines.len()), rng.below(lines.len()));
    match rng.below(4) {
        0 => drop(lines.remove(a)),
        1 => lines.insert(b, lines[a]),
        2 => lines.swap(a, b),
        _ => {
            let joined = [lines[a], lines[b]].concat();
            return [&lines[..a], &[&joined], &lines[(a + 1).min(lines.len())..]].concat().join("\n");
        }
    }
    lines.join("\n")
}

/// Removes, doubles or replaces a token between punctuation.
fn token(rng: &mut Rng, text: &str) -> String {
    let (start, other) = (place(rng, text), place(rng, text));
    let length = |rest: &str| {
        rest.char_indices().skip(1).find(|(_, c)| !c.is_alphanumeric()).map_or(rest.len(), |(at, _)| at)
    };
    let end = start + length(&text[start..]);
    let piece = &text[other..other + length(&text[other..])];
    match rng.below(3) {
        0 => [&text[..start], &text[end..]].concat(),
        1 => insert(text, start, &text[start..end]),
        _ => [&text[..start], piece, &text[end..]].concat(),
    }
}

/// A power of two below `2^bits`, seldom above `2^7`: most inputs are small, so that many can be read.
fn many(rng: &mut Rng, bits: usize) -> usize {
    let bits = if rng.once_in(16) { bits } else { 8 };
    1 << rng.below(bits)
}

/// Nests deeply.
fn nest(rng: &mut Rng, text: &str) -> String {
    let (open, close) = *rng.pick(&[
        ("[", "]"),
        ("{\"a\":", "}"),
        ("(", ")"),
        ("{", "}"),
        ("not ", ""),
        ("-", ""),
        ("{% if a %}", "{% endif %}"),
        ("a.", ""),
        ("1+", ""),
        ("{% for a in [1] %}", "{% endfor %}"),
    ]);
    let depth = many(rng, 14).min(200_000 / open.len());
    let at = place(rng, text);
    let closed = if rng.once_in(3) { String::new() } else { close.repeat(depth) };
    insert(text, at, &(open.repeat(depth) + "1" + &closed))
}

/// Repeats a piece many times, as it is or with the number of each copy in it.
fn flood(rng: &mut Rng, text: &str) -> String {
    let start = place(rng, text);
    let end = (start + 1 + rng.below(80)).min(text.len());
    let Some(piece) = text.get(start..end) else { return word(rng, text) };
    let times = many(rng, 15).min(200_000 / piece.len().max(1));
    let at = place(rng, piece);
    let copies: String = match rng.once_in(2) {
        true => (0..times).map(|number| insert(piece, at, &number.to_string())).collect(),
        false => piece.repeat(times),
    };
    insert(text, start, &copies)
}
