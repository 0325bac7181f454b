//! Rows of a table: CSV (RFC 4180) with commas or semicolons, and TSV. The first row names the columns.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::error::Problem;
use super::record::{Numbered, Record};

/// Columns whose cells may be JSON.
const JSON_COLUMNS: [&str; 9] = [
    "messages",
    "conversations",
    "contents",
    "tools",
    "history",
    "input_ids",
    "labels",
    "chosen",
    "rejected",
];

/// The rows below the header. `separator`: the one that the file's ending suggests; a header may show another.
pub(super) fn rows(bytes: &[u8], separator: u8) -> Result<impl Iterator<Item = Numbered<'_>>, Problem> {
    if let Err(error) = std::str::from_utf8(bytes) {
        return Err(Problem::Utf8(error.valid_up_to() + 1));
    }
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(found_separator(bytes, separator))
        .flexible(true)
        .from_reader(bytes);
    let header = reader.headers().map_err(|error| Problem::Table(error.to_string()))?;
    let name = |(index, name): (usize, &str)| match name.trim() {
        "" => format!("column {}", index + 1),
        name => name.to_owned(),
    };
    let columns: Vec<String> = header.iter().enumerate().map(name).collect();
    let mut seen = HashSet::new();
    if let Some(twice) = columns.iter().find(|name| !seen.insert(name.as_str())) {
        return Err(Problem::Table(format!("its header has the column \"{twice}\" twice")));
    }
    Ok(reader.into_records().enumerate().map(move |(index, record)| {
        let row = index + 1;
        let record = record.map_err(|error| Problem::Table(format!("row {row}: {error}")))?;
        if record.len() != columns.len() {
            return Err(Problem::Table(format!(
                "row {row} has {} cells, but its header has {}; put a cell that has the separator or a line break in it into \
                 \"quotes\"",
                record.len(),
                columns.len()
            )));
        }
        let size = record.as_slice().len();
        let cells = columns.iter().zip(record.iter());
        let object: Map<String, Value> =
            cells.map(|(name, cell)| (name.clone(), value(name, cell))).collect();
        Ok((row, Record::Object(object, size)))
    }))
}

/// A cell: text, or JSON in a column that holds lists.
fn value(column: &str, cell: &str) -> Value {
    let json = JSON_COLUMNS.contains(&column).then(|| serde_json::from_str(cell).ok()).flatten();
    json.filter(|value: &Value| value.is_array()).unwrap_or_else(|| cell.into())
}

/// The separator that occurs most often in the header outside quotes.
fn found_separator(bytes: &[u8], suggested: u8) -> u8 {
    let mut counts = [(suggested, 0), (b',', 0), (b';', 0), (b'\t', 0)];
    let mut quoted = false;
    for &byte in bytes {
        quoted ^= byte == b'"';
        if byte == b'\n' && !quoted {
            break;
        }
        if let Some((_, count)) = counts.iter_mut().find(|(separator, _)| *separator == byte && !quoted) {
            *count += 1;
        }
    }
    // The suggested one wins a tie.
    counts.iter().rev().max_by_key(|(_, count)| *count).map_or(suggested, |(separator, _)| *separator)
}
