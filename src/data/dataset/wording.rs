//! Texts of errors that depend on several values.

use std::fmt::Display;

use super::kinds::{Container, Format};

/// The keys that identify a format.
pub(super) fn expected_keys(format: Format) -> String {
    let quoted =
        |shape: &Format| shape.keys().iter().map(|key| format!("\"{key}\"")).collect::<Vec<_>>().join(" + ");
    match format {
        Format::Auto => either(Format::SHAPES.iter().map(quoted)),
        shape => quoted(&shape),
    }
}

/// The names of formats.
pub(super) fn names(formats: &[Format]) -> String {
    either(formats.iter().map(|format| format!("\"{}\"", format.name())))
}

/// Joins names: `a, b or c`.
fn either(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// A help for broken JSON that has a common cause.
pub(super) fn json_hint(message: &str) -> &'static str {
    match message {
        "trailing characters" => "; expected one object per line",
        "expected value" => {
            "; expected a JSON object (tables and plain text need names that end in .csv, .tsv, .txt or .md)"
        }
        _ => "",
    }
}

/// The advice for samples of up to `longest` tokens.
fn longer(longest: usize, max_seq_len: usize, context: usize) -> String {
    match context {
        usize::MAX => "raise data.max_seq_len".into(),
        _ if longest <= context => format!("raise data.max_seq_len (this base takes up to {context} tokens)"),
        _ if max_seq_len < context => {
            format!(
                "raise data.max_seq_len (this base takes up to {context} tokens, which is less than the longest sample)"
            )
        }
        _ => format!("this base takes no more than {context} tokens: split the samples"),
    }
}

/// The text of an error: `count` of `total` samples are too long.
pub(super) fn overlong(
    [count, total]: [usize; 2],
    first: &str,
    [length, longest]: [usize; 2],
    max_seq_len: usize,
    context: usize,
) -> String {
    let noun = if total == 1 { "sample" } else { "samples" };
    let (verb, longest_of) = match count {
        1 => ("is", String::new()),
        _ => ("are", format!(", the longest has {longest}")),
    };
    format!(
        "{count} of {total} {noun} {verb} longer than max_seq_len = {max_seq_len}: {first} has {length} tokens{longest_of}; {}, or set \
         data.overlong to \"drop\" or \"truncate\"",
        longer(longest, max_seq_len, context)
    )
}

/// The text of an error: no record is a sample. `invalid`: the first one that cannot be used.
pub(super) fn no_samples<P: Display>(
    container: Container,
    invalid: Option<&(usize, P)>,
    dropped: usize,
    longest: usize,
    max_seq_len: usize,
    context: usize,
) -> String {
    let unit = container.unit();
    match (dropped, invalid) {
        (_, Some((number, problem))) => {
            format!("no {unit} can be used; the first problem, in {unit} {number}: {problem}")
        }
        (0, None) => match container {
            Container::Lines => "the file contains no sample; expected one JSON object per line".to_owned(),
            _ => format!("the {} contains no {unit}", container.name()),
        },
        (n, None) => format!(
            "all {n} samples are longer than max_seq_len = {max_seq_len} and were dropped; {}, or set data.overlong to \
             \"truncate\"",
            longer(longest, max_seq_len, context)
        ),
    }
}

/// Bytes in GiB.
pub(super) fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
