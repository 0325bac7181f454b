//! Rows of a Parquet file as JSON objects. Null fields are skipped: in a nested column every row has all fields of any row, so
//! null means that the key is missing.

mod pages;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use serde_json::{Map, Value};

use super::error::Problem;
use super::record::{Numbered, Record};

/// The rows of a file, which may take at most `most` bytes in all.
pub(super) fn rows<'a>(bytes: &[u8], most: u64) -> Result<Box<dyn Iterator<Item = Numbered<'a>>>, Problem> {
    let too_large = move || Problem::TooLarge { what: "its decompressed columns".into(), most };
    let open = || SerializedFileReader::new(Bytes::copy_from_slice(bytes));
    let reader = caught(open)?.map_err(|error| failed(&error))?;
    let groups = reader.metadata().row_groups().iter();
    let sizes =
        groups.flat_map(|group| group.columns()).map(|column| column.uncompressed_size().max(0) as u64);
    if sizes.fold(0u64, u64::saturating_add) > most || decompressed(&reader, bytes)? > most {
        return Err(too_large());
    }
    let mut rows = caught(|| RowIter::from_file_into(Box::new(reader)))?;
    let (mut number, mut used, mut ended) = (0, 0u64, false);
    Ok(Box::new(std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let row = match caught(|| rows.next()) {
            Ok(None) => return None,
            Ok(Some(Ok(row))) => object(&row),
            Ok(Some(Err(error))) => {
                ended = true;
                return Some(Err(failed(&error)));
            }
            Err(problem) => {
                ended = true;
                return Some(Err(problem));
            }
        };
        // Rows without values are not free: a file may say that it has any number of them.
        let size = size_of::<Value>() + row.iter().map(|(key, value)| key.len() + size(value)).sum::<usize>();
        number += 1;
        used = used.saturating_add(size as u64);
        ended = used > most;
        Some(if ended { Err(too_large()) } else { Ok((number, Record::Object(row, size))) })
    })))
}

/// Bytes of all columns once decompressed, as the headers of their pages say; the file's metadata may say less.
fn decompressed(reader: &SerializedFileReader<Bytes>, bytes: &[u8]) -> Result<u64, Problem> {
    let columns = reader.metadata().row_groups().iter().flat_map(|group| group.columns());
    columns
        .map(|column| {
            let (start, length) = caught(|| column.byte_range())?;
            pages::uncompressed_size(bytes, start..start.saturating_add(length)).ok_or_else(damaged)
        })
        .try_fold(0u64, |sum, size| Ok(sum.saturating_add(size?)))
}

fn damaged() -> Problem {
    Problem::Parquet("the file is damaged; write it again".into())
}

fn failed(error: &ParquetError) -> Problem {
    let text = error.to_string();
    let codec = ["brotli", "lz4", "zstd", "snap", "lzo"].into_iter().find(|codec| {
        text.contains("Disabled feature at compile time") && text.contains(codec)
            || text.contains("not supported") && text.to_lowercase().contains(codec)
    });
    Problem::Parquet(match codec {
        Some(codec) => format!("its columns are compressed with {codec}; write it with snappy, gzip or zstd"),
        None => text,
    })
}

/// Runs code of the `parquet` crate, which panics on some damaged files.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, Problem> {
    crate::data::catch_panic::caught(run).ok_or_else(damaged)
}

fn object(row: &Row) -> Map<String, Value> {
    let fields = row.get_column_iter().map(|(name, field)| (name.clone(), value(field)));
    fields.filter(|(_, value)| !value.is_null()).collect()
}

/// Size of a value in memory, in bytes, about.
fn size(value: &Value) -> usize {
    let inside = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(object) => object.iter().map(|(key, value)| key.len() + size(value)).sum(),
        _ => 0,
    };
    inside + size_of::<Value>()
}
fn value(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(x) => (*x).into(),
        Field::Byte(x) => (*x).into(),
        Field::Short(x) => (*x).into(),
        Field::Int(x) | Field::Date(x) | Field::TimeMillis(x) => (*x).into(),
        Field::Long(x) | Field::TimestampMillis(x) | Field::TimestampMicros(x) | Field::TimeMicros(x) => {
            (*x).into()
        }
        Field::UByte(x) => (*x).into(),
        Field::UShort(x) => (*x).into(),
        Field::UInt(x) => (*x).into(),
        Field::ULong(x) => (*x).into(),
        Field::Float(x) => f64::from(*x).into(),
        Field::Double(x) => (*x).into(),
        Field::Str(text) => text.clone().into(),
        // Older writers do not mark a byte column as text.
        Field::Bytes(bytes) => match bytes.as_utf8() {
            Ok(text) => text.into(),
            Err(_) => bytes.data().to_vec().into(),
        },
        Field::Group(row) => object(row).into(),
        Field::ListInternal(list) => list.elements().iter().map(value).collect(),
        Field::MapInternal(map) => {
            let entries = map.entries().iter().map(|(key, field)| {
                let key = value(key);
                (key.as_str().map_or_else(|| key.to_string(), str::to_owned), value(field))
            });
            entries.collect::<Map<_, _>>().into()
        }
        other => other.to_string().into(),
    }
}
