//! Rows of a Parquet file as JSON objects. Null fields are skipped: in a nested column every row has all fields of any row, so
//! null means that the key is missing.

use bytes::Bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::{Map, Value};

use super::error::Problem;

/// Reads all rows of a file.
pub(super) fn rows(bytes: &[u8]) -> Result<Vec<Map<String, Value>>, Problem> {
    let failed = |error: parquet::errors::ParquetError| Problem::Parquet(error.to_string());
    let reader = SerializedFileReader::new(Bytes::copy_from_slice(bytes)).map_err(failed)?;
    let rows = reader.get_row_iter(None).map_err(failed)?;
    rows.map(|row| Ok(object(&row.map_err(failed)?))).collect()
}

fn object(row: &Row) -> Map<String, Value> {
    let fields = row.get_column_iter().map(|(name, field)| (name.clone(), value(field)));
    fields.filter(|(_, value)| !value.is_null()).collect()
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
